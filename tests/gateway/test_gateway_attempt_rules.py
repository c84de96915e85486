"""Which request is another one sent again: the rules, without HTTP."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.gateway.attempts import KEPT, Attempt, Attempts
from agentrl.gateway.refusal import Refusal


def body(name: str) -> bytes:
    return name.encode()


async def test_an_equal_body_alone_repeats_nothing() -> None:
    attempts = Attempts()
    attempts.begin(body("a"))
    assert attempts.begin(body("a"))[1] is None


async def test_an_empty_key_names_nothing() -> None:
    attempts = Attempts()
    attempts.begin(body("a"), key="")
    assert attempts.begin(body("a"), key="")[1] is None
    assert attempts.begin(body("b"), key="")[1] is None


async def test_a_retry_repeats_the_attempt_before_it_and_so_on() -> None:
    attempts = Attempts()
    first, _ = attempts.begin(body("a"))
    second, earlier = attempts.begin(body("a"), count=1)
    assert earlier is first
    assert attempts.begin(body("a"), count=2)[1] is second


async def test_a_retry_whose_predecessor_never_arrived_repeats_the_one_before_that() -> None:
    attempts = Attempts()
    first, _ = attempts.begin(body("a"))
    assert attempts.begin(body("a"), count=2)[1] is first


async def test_of_two_equal_requests_a_retry_repeats_the_one_whose_answer_was_missed() -> None:
    attempts = Attempts()
    missed, _ = attempts.begin(body("a"))
    delivered, _ = attempts.begin(body("a"))
    delivered.delivered = True
    assert attempts.begin(body("a"), count=1)[1] is missed


async def test_two_retries_of_two_equal_requests_repeat_one_each() -> None:
    attempts = Attempts()
    requests = [attempts.begin(body("a"))[0] for _ in range(2)]
    repeated = [attempts.begin(body("a"), count=1)[1] for _ in range(2)]
    assert sorted(map(id, repeated)) == sorted(map(id, requests))


async def test_a_key_with_another_body_is_refused_and_remembered_as_it_was() -> None:
    attempts = Attempts()
    first, _ = attempts.begin(body("a"), key="k")
    with pytest.raises(Refusal) as refused:
        attempts.begin(body("b"), key="k")
    assert (refused.value.status, refused.value.code) == (409, "idempotency_key_reused")
    assert attempts.begin(body("a"), key="k")[1] is first


sent = st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from([None, None, "k", "l"]), st.booleans())


@given(st.lists(sent, max_size=100))
def test_whatever_comes_a_retry_repeats_an_earlier_request_of_the_same_body_and_each_is_repeated_by_count_once(
    requests: list[tuple[str, int, str | None, bool]],
) -> None:
    async def run() -> None:
        attempts, seen, by_count = Attempts(), list[Attempt](), set[int]()
        for name, count, key, delivered in requests:
            recent = seen[-KEPT:]
            holders = [a for a in recent if a.key == key] if key is not None else []
            if holders and holders[-1].body != body(name):
                with pytest.raises(Refusal):
                    attempts.begin(body(name), count=count, key=key)
                continue
            attempt, earlier = attempts.begin(body(name), count=count, key=key)
            if earlier is not None:
                assert earlier in recent
                assert (earlier.body, earlier.key) == (body(name), key)
            if key is not None:
                assert earlier is (holders[-1] if holders else None)
            elif earlier is not None:
                assert earlier.count < count
                assert id(earlier) not in by_count
                by_count.add(id(earlier))
            elif count > 0:
                assert not [
                    a
                    for a in recent
                    if a.body == body(name) and a.key is None and a.count < count and id(a) not in by_count
                ]
            attempt.delivered = delivered
            seen.append(attempt)

    asyncio.run(run())
