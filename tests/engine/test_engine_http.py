"""The hot path's HTTP: answers however they are cut and however they break."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_server import CLOSE, WAIT, ask, body_of, chunked, pool_to, raw_server, sized, soon

from agentrl.engine import http
from agentrl.engine.http import Broken, Connection


class FakeTransport(asyncio.Transport):
    closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0


ANSWERS = {
    "sized": (sized(b"hello"), b"hello"),
    "empty": (sized(b""), b""),
    "chunked": (chunked(b"he", b"llo, ", b"world"), b"hello, world"),
    "chunked with extensions and trailers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
        b"hello",
    ),
    "after informational answers": (
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + sized(b"x"),
        b"x",
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
@given(data=st.data())
def test_an_answer_reads_the_same_however_its_bytes_are_cut(kind: str, data: st.DataObject) -> None:
    sent, expected = ANSWERS[kind]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)))) | {0, len(sent)})

    async def run() -> None:
        connection = Connection(lambda _: None)
        connection.connection_made(FakeTransport())
        connection.send(b"")
        reading = asyncio.create_task(body_of(connection, soon()))
        for start, end in pairwise(cuts):
            connection.data_received(sent[start:end])
            if data.draw(st.booleans()):
                await asyncio.sleep(0)
        assert await reading == expected
        assert (connection.status, connection.is_reusable) == (200, True)

    asyncio.run(run())


async def test_a_request_is_http_with_its_length_and_the_path_below_the_url() -> None:
    async with raw_server([sized(b"ok")]) as server, pool_to(server.url + "/engines/1/") as pool:
        assert await ask(pool, b'{"a":1}', "/b") == (200, b"ok")
    head, body = server.requests[0].split(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /engines/1/b HTTP/1.1"
    assert f"host: {server.url.removeprefix('http://')}" in lines
    assert (lines[-1], body) == ("content-length: 7", b'{"a":1}')


BROKEN = {
    "no HTTP": ([b"SSH-2.0-OpenSSH\r\n"], b"", "no HTTP"),
    "half a head": ([b"HTTP/1.1 200 OK\r\n", CLOSE], b"", "closed the connection"),
    "too short": ([sized(b"hello")[:-2], CLOSE], b"hel", "closed the connection"),
    "chunks without an end": ([chunked(b"hello", end=b""), CLOSE], b"hello", "closed the connection"),
    "half a chunk": ([chunked(end=b"9\r\nhel"), CLOSE], b"hel", "closed the connection"),
    "a chunk of no size": ([chunked(b"hello", end=b"xyz\r\n")], b"hello", "no HTTP"),
    "a chunk longer than it says": ([chunked(b"hello", end=b"1\r\nabc\r\n")], b"helloa", "no HTTP"),
    "two lengths": ([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"], b"", "no HTTP"),
    "another protocol": ([b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], b"", "no HTTP"),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_what_came_of_a_broken_answer_is_read_before_the_error(kind: str) -> None:
    answer, expected, message = BROKEN[kind]
    got: list[bytes] = []
    async with raw_server(answer) as server, pool_to(server.url) as pool:
        with pytest.raises(Broken, match=message):
            await ask(pool, into=got)
        await server.until(lambda: server.lost == 1)
    assert b"".join(got) == expected


@pytest.mark.parametrize("answer", [[WAIT], [b"HTTP/1.1 200 OK\r\n", WAIT], [chunked(end=b""), WAIT]])
async def test_a_deadline_ends_the_wait_and_the_connection(answer: list[bytes]) -> None:
    async with raw_server(answer) as server, pool_to(server.url) as pool:
        with pytest.raises(TimeoutError):
            await ask(pool, seconds=0.1)
        await server.until(lambda: server.lost == 1)


async def test_a_deadline_may_move_both_ways_between_reads() -> None:
    async with raw_server([chunked(b"a", end=b""), WAIT]) as server, pool_to(server.url) as pool:
        connection = await pool.post("/a", b"", soon(60))
        assert await connection.read(soon(60)) == b"a"
        for seconds in (0.02, 0.05):  # sooner than the first, then later again
            begun = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await connection.read(begun + seconds)
            assert asyncio.get_running_loop().time() >= begun + seconds
        pool.release(connection)


async def test_a_reader_that_lags_behind_holds_the_server_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BUFFERED_BYTES", 1000)
    piece = b"x" * 2**20
    async with raw_server([chunked(*[piece] * 32)], [sized(b"ok")]) as server, pool_to(server.url) as pool:
        connection = await pool.post("/a", b"", soon())
        for _ in range(50):
            await asyncio.sleep(0)
        first = await connection.read(soon())
        assert len(first) < 2**20
        assert len(first + await body_of(connection, soon())) == 32 * 2**20
        pool.release(connection)
        assert await ask(pool) == (200, b"ok")
        assert server.connections == 1
