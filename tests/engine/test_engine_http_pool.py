"""The hot path's connections: kept, tried again, limited, closed, and none left behind."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
from aiohttp import web
from raw_server import CLOSE, WAIT, ask, chunked, pool_to, raw_server, sized, soon

from agentrl.engine.http import Broken


async def test_the_user_of_a_url_is_authorized_and_not_part_of_the_host() -> None:
    async with raw_server([sized(b"ok")]) as server, pool_to(server.url.replace("//", "//me:p%40ss@")) as pool:
        assert await ask(pool) == (200, b"ok")
    assert b"\r\nauthorization: Basic bWU6cEBzcw==\r\n" in server.requests[0]
    assert b"host: localhost:" in server.requests[0]


async def test_a_connection_is_used_again_and_again() -> None:
    async with raw_server([chunked(b"a", b"b")], [sized(b"c")]) as server, pool_to(server.url) as pool:
        assert [await ask(pool) for _ in range(3)] == [(200, b"ab"), (200, b"c"), (200, b"c")]
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        [sized(b"ok", headers="connection: close\r\n")],
        [sized(b"ok").replace(b"HTTP/1.1", b"HTTP/1.0")],
        [sized(b"ok") + b"HTTP/1.1 200 OK\r\n"],
        [sized(b"ok") + sized(b"more")],
    ],
    ids=["connection: close", "HTTP/1.0", "bytes after the end", "a second answer"],
)
async def test_a_connection_that_cannot_be_trusted_again_is_closed(answer: list[bytes]) -> None:
    async with raw_server(answer) as server, pool_to(server.url) as pool:
        assert [await ask(pool) for _ in range(2)] == [(200, b"ok")] * 2
        await server.until(lambda: server.lost == 2)
        assert server.connections == 2


@pytest.mark.parametrize("answer", [[CLOSE], [sized(b"ok"), CLOSE]], ids=["at once", "after an answer"])
async def test_a_kept_connection_that_was_closed_meanwhile_is_not_the_requests_fault(answer: list[bytes]) -> None:
    async with raw_server([sized(b"first")], answer, [sized(b"second")]) as server, pool_to(server.url) as pool:
        assert await ask(pool) == (200, b"first")
        assert [(await ask(pool))[0] for _ in range(2)] == [200, 200]
        assert server.connections == 2


async def test_a_new_connection_that_is_closed_at_once_is_not_tried_again() -> None:
    async with raw_server([CLOSE]) as server, pool_to(server.url) as pool:
        with pytest.raises(Broken, match="closed the connection"):
            await ask(pool)
        assert len(server.requests) == 1


async def test_a_request_goes_out_again_only_once() -> None:
    async with raw_server([sized(b"first")], [CLOSE]) as server, pool_to(server.url) as pool:
        await ask(pool)
        with pytest.raises(Broken, match="closed the connection"):
            await ask(pool)
        assert len(server.requests) == 3


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_request_that_got_any_byte_of_an_answer_is_not_sent_again(begun: bytes) -> None:
    """The server had taken it up."""
    async with raw_server([sized(b"first")], [begun, CLOSE]) as server, pool_to(server.url) as pool:
        await ask(pool)
        with pytest.raises(Broken, match="closed the connection"):
            await ask(pool)
        assert len(server.requests) == 2


@pytest.mark.parametrize("answer", [[WAIT], [chunked(b"a", end=b""), WAIT]], ids=["before the head", "in the body"])
async def test_a_cancelled_request_closes_its_connection_and_frees_its_slot(answer: list[bytes]) -> None:
    async with raw_server(answer, [sized(b"ok")]) as server, pool_to(server.url, max_connections=1) as pool:
        asking = asyncio.create_task(ask(pool))
        await server.until(lambda: server.requests)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await server.until(lambda: server.lost == 1)
        assert await ask(pool) == (200, b"ok")


async def test_no_more_connections_are_opened_than_allowed_and_the_others_wait() -> None:
    async with raw_server([chunked(b"x")]) as server, pool_to(server.url, max_connections=3) as pool:
        assert await asyncio.gather(*(ask(pool) for _ in range(20))) == [(200, b"x")] * 20
        assert server.connections == 3


async def test_the_wait_for_a_free_connection_ends_at_the_deadline() -> None:
    async with raw_server([WAIT], [sized(b"ok")]) as server, pool_to(server.url, max_connections=1) as pool:
        asking = asyncio.create_task(ask(pool))
        await server.until(lambda: server.requests)
        with pytest.raises(TimeoutError):
            await pool.post("/a", b"", soon(0.05))
        asking.cancel()
        await asyncio.wait([asking])
        assert await ask(pool) == (200, b"ok")


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with raw_server([sized(b"ok")]) as server, pool_to(server.url, keepalive_s=0.05) as pool:
        await asyncio.gather(ask(pool), ask(pool))
        await server.until(lambda: server.lost == 2)
        assert await ask(pool) == (200, b"ok")
        assert server.connections == 3


async def test_closing_ends_what_is_in_flight_and_what_is_idle() -> None:
    async with raw_server([sized(b"ok")], [sized(b"ok")], [WAIT]) as server, pool_to(server.url) as pool:
        await asyncio.gather(ask(pool), ask(pool))
        asking = asyncio.create_task(ask(pool))
        await server.until(lambda: len(server.requests) == 3)
        pool.close()
        with pytest.raises(Broken):
            await asking
        await server.until(lambda: server.lost == 2)
        with pytest.raises(Broken, match="was closed"):
            await ask(pool)


async def test_a_port_that_nobody_listens_on_is_named() -> None:
    async with raw_server([CLOSE]) as server:
        url = server.url
    async with pool_to(url) as pool:
        with pytest.raises(Broken, match=r"localhost:\d+ took no connection"):
            await ask(pool)


async def test_an_answer_before_the_whole_request_was_sent_ends_the_connection() -> None:
    """As of a server that refuses a body for its size: what it has not read must not look like the next request."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sized(b"too large", "413 Content Too Large"))
        await gone.wait()
        writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with pool_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as pool:
        assert await ask(pool, b"x" * 2**26) == (413, b"too large")
        assert not pool._idle
        gone.set()
    server.close()


async def test_a_real_web_server_and_a_hundred_requests_at_once() -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        body = await request.read()
        for start in range(0, len(body), 1000):
            await response.write(body[start : start + 1000])
        return response

    app = web.Application()
    app.router.add_post("/a", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with pool_to(f"http://127.0.0.1:{runner.addresses[0][1]}") as pool:
        bodies = [b"%d" % number * 3000 for number in range(100)]
        for _ in range(2):
            assert await asyncio.gather(*(ask(pool, body) for body in bodies)) == [(200, body) for body in bodies]
        assert await ask(pool, path="/b") == (404, b"404: Not Found")
        assert len(pool._idle) <= 100
    await runner.cleanup()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of localhost, signed by itself, with its key in the same file."""
    file = tmp_path / "both.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {file}.key -out {file}"
    subprocess.run([*command.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    with file.open("a") as both:
        both.write(Path(f"{file}.key").read_text())
    return file


async def test_an_engine_behind_tls_is_asked_only_if_its_certificate_is_trusted(certificate: Path) -> None:
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(certificate)
    async with raw_server([chunked(b"safe")], tls=theirs) as server:
        async with pool_to(server.url, ssl.create_default_context(cafile=str(certificate))) as pool:
            assert [await ask(pool) for _ in range(2)] == [(200, b"safe")] * 2
            assert server.connections == 1
        async with pool_to(server.url) as pool:
            with pytest.raises(Broken, match="certificate verify failed"):
                await ask(pool)
