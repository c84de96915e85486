"""Agent programs against the gateway's twin: who ends an attempt, what it earns, and that the policy is out of reach
by the time it is graded."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import agentrl
from agentrl.env.policy import Policy
from agentrl.env.program import Program, program, program_class
from agentrl.env.roles import Role
from agentrl.env.threads import HungCalls
from agentrl.errors import ContextOverflow, GatewayError
from agentrl.rollout.program import run_program
from agentrl.rollout.program_host import ProgramHost
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.types import Episode, Limits, Sampling, Task

TASK = Task(id="t1", env_id="test/program", seed=11, options={"question": "2*3"})


async def attempt(
    solve: Callable[..., Any],
    policy: Any = lambda messages: "6",
    *,
    gateway: ScriptedGateway | None = None,
    limits: Limits | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout_s: float = 5.0,
) -> Episode:
    made_by = program_class(solve)
    host = ProgramHost(made_by, kwargs or {}, name=TASK.env_id, timeout_s=timeout_s, hung=HungCalls())
    return await run_program(
        host,
        TASK,
        gateway or ScriptedGateway(policy),
        limits=limits or Limits(),
        sampling=Sampling(max_tokens=9),
        metadata={"group_id": "g", "index": 2},
        roles=made_by.roles,
    )


async def ask_once(task: Task, policy: Policy) -> float:
    message = await policy.chat([agentrl.user(task.options["question"])])
    return float(message.text == "6")


# What an attempt gives


async def test_an_async_function_calls_the_policy_and_gives_the_reward() -> None:
    gateway = ScriptedGateway(lambda messages: "6")
    episode = await attempt(ask_once, gateway=gateway)
    (session,) = gateway.sessions
    assert (episode.stop_reason, episode.reward, episode.turns, episode.error) == ("done", 1.0, 1, None)
    assert [message["content"] for message in episode.messages] == ["2*3", "6"]
    assert (session.final_reward, session.components, session.stop_reason) == (1.0, {"env": 1.0}, "done")
    assert session.request.metadata == {"group_id": "g", "index": 2}
    assert session.request.pin_max_tokens


async def test_a_plain_function_may_block_and_is_given_the_message_itself() -> None:
    def solve(task: Task, policy: Policy) -> float:
        assert threading.current_thread() is not threading.main_thread()
        message = policy.chat([agentrl.user("?")])
        return float(message.text == "6")

    assert (await attempt(solve)).reward == 1.0


async def test_arguments_of_the_environment_section_go_to_the_function() -> None:
    async def solve(task: Task, policy: Policy, bonus: float = 0.0) -> float:
        return bonus

    assert (await attempt(solve, kwargs={"bonus": 0.5})).reward == 0.5


@pytest.mark.parametrize(
    ("result", "reward", "components"),
    [
        (0.5, 0.5, {"env": 0.5}),
        (1, 1.0, {"env": 1.0}),
        (None, None, {"env": None}),
        ({"right": 1.0, "short": -0.25}, 0.75, {"right": 1.0, "short": -0.25}),
        ({"right": 1.0, "style": None}, None, {"right": 1.0, "style": None}),
        ({}, None, {}),
    ],
)
async def test_a_reward_is_a_number_or_parts_that_are_summed_and_none_is_missing(
    result: Any, reward: float | None, components: dict[str, float | None]
) -> None:
    async def solve(task: Task, policy: Policy) -> Any:
        return result

    gateway = ScriptedGateway(lambda messages: "6")
    episode = await attempt(solve, gateway=gateway)
    assert (episode.stop_reason, episode.reward) == ("done", reward)
    assert gateway.sessions[0].components == components


@pytest.mark.parametrize("result", [math.nan, math.inf, "much", [1.0], {"right": math.nan}])
async def test_what_is_no_finite_number_is_a_fault_and_no_reward(result: Any) -> None:
    async def solve(task: Task, policy: Policy) -> Any:
        return result

    episode = await attempt(solve)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "gave" in (episode.error or "")


async def test_a_class_is_made_run_graded_and_closed_in_this_order() -> None:
    seen: list[str] = []

    class Agent(Program):
        def __init__(self) -> None:
            seen.append("made")

        async def run(self, task: Task, policy: Policy) -> str:
            seen.append("run")
            return (await policy.chat([agentrl.user("?")])).text

        def grade(self, task: Task, result: str) -> float:
            seen.append(f"graded {result}")
            return 0.25

        async def close(self) -> None:
            seen.append("closed")

    assert (await attempt(Agent)).reward == 0.25
    assert seen == ["made", "run", "graded 6", "closed"]


# Grading


async def test_the_session_is_sealed_when_it_is_graded() -> None:
    kept: list[Policy] = []

    class Agent(Program):
        async def run(self, task: Task, policy: Policy) -> None:
            kept.append(policy)

        async def grade(self, task: Task, result: Any) -> float:
            with pytest.raises(GatewayError, match="is finished"):
                await kept[0].chat([agentrl.user("what is the answer?")])
            return 1.0

    gateway = ScriptedGateway(lambda messages: "6")
    assert (await attempt(Agent, gateway=gateway)).reward == 1.0
    assert gateway.sessions[0].prompts == []


async def test_a_grader_that_asks_the_policy_all_the_same_is_at_fault_itself() -> None:
    class Agent(Program):
        async def run(self, task: Task, policy: Policy) -> Policy:
            return policy

        async def grade(self, task: Task, result: Policy) -> float:
            await result.chat([agentrl.user("how good was I?")])
            return 1.0

    episode = await attempt(Agent)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "grade raised GatewayError: session session-0 is finished" in (episode.error or "")


async def test_a_task_that_a_program_left_behind_cannot_call_the_policy_either() -> None:
    left: list[asyncio.Task[Any]] = []
    graded, refused = threading.Event(), threading.Event()

    class Agent(Program):
        async def run(self, task: Task, policy: Policy) -> None:
            async def later() -> None:
                await asyncio.to_thread(graded.wait, 5)
                try:
                    await policy.chat([agentrl.user("?")])
                except GatewayError:
                    refused.set()

            left.append(asyncio.create_task(later()))

        async def grade(self, task: Task, result: Any) -> float:
            graded.set()
            assert await asyncio.to_thread(refused.wait, 5)
            return 1.0

    gateway = ScriptedGateway(lambda messages: "6")
    assert (await attempt(Agent, gateway=gateway)).reward == 1.0
    assert gateway.sessions[0].prompts == []


async def test_a_grader_that_fails_makes_the_reward_missing_and_is_named() -> None:
    def grade(task: Task, result: Any) -> float:
        raise LookupError("no key")

    solve = program(grade=grade)(functools.partial(ask_once))
    episode = await attempt(solve)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert episode.error == "test/program.grade raised LookupError: no key"


async def test_a_grader_has_a_time_limit() -> None:
    release = threading.Event()

    class Agent(Program):
        grade_timeout_s = 0.05

        def run(self, task: Task, policy: Policy) -> None: ...

        def grade(self, task: Task, result: Any) -> float:
            release.wait()
            return 1.0

    episode = await attempt(Agent)
    release.set()
    assert (episode.stop_reason, episode.reward) == ("env_timeout", None)


# Who ends it


async def test_a_program_that_raises_has_no_reward_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def solve(task: Task, policy: Policy) -> float:
        raise LookupError("no such tool")

    gateway = ScriptedGateway(lambda messages: "6")
    episode = await attempt(solve, gateway=gateway)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert episode.error == "test/program.run raised LookupError: no such tool"
    assert "in solve" in caplog.text
    assert gateway.sessions[0].stop_reason == "env_error"


async def loops_for_ever(task: Task, policy: Policy) -> float:
    while True:
        await policy.chat([agentrl.user("again")])


async def test_a_limit_that_a_program_runs_into_is_no_failure_and_earns_nothing() -> None:
    episode = await attempt(loops_for_ever, limits=Limits(max_calls=3))
    assert (episode.stop_reason, episode.reward, episode.turns) == ("max_turns", 0.0, 3)


async def test_what_a_limit_cut_off_is_graded_without_a_result() -> None:
    solve = program(grade=lambda task, result: -1.0 if result is None else 1.0)(functools.partial(loops_for_ever))
    assert (await attempt(solve, limits=Limits(max_calls=3))).reward == -1.0


async def test_a_limit_that_a_program_caught_keeps_what_it_returned() -> None:
    async def solve(task: Task, policy: Policy) -> float:
        try:
            return await loops_for_ever(task, policy)
        except agentrl.AgentRLError:
            return 0.5

    episode = await attempt(solve, limits=Limits(max_calls=2))
    assert (episode.stop_reason, episode.reward) == ("max_turns", 0.5)


async def test_an_sdks_error_for_a_limit_counts_as_the_limit() -> None:
    """An SDK raises an error of its own kind, which nobody here knows."""

    async def solve(task: Task, policy: Policy) -> float:
        try:
            return await loops_for_ever(task, policy)
        except agentrl.AgentRLError:
            raise RuntimeError("Error code: 400") from None

    episode = await attempt(solve, limits=Limits(max_calls=1))
    assert (episode.stop_reason, episode.reward, episode.error) == ("max_turns", 0.0, None)


async def test_a_full_context_ends_it_by_the_policys_doing() -> None:
    def full(messages: Any) -> str:
        raise ContextOverflow("full")

    assert (await attempt(ask_once, full)).stop_reason == "context_overflow"


async def test_a_session_that_somebody_else_finished_is_nothing_that_the_policy_did() -> None:
    """The gateway ends sessions that nobody uses."""

    class Forgetful(ScriptedGateway):
        async def open_session(self, request: Any) -> Any:
            session = await super().open_session(request)
            session.stop_reason = "abandoned"
            return session

    async def solve(task: Task, policy: Policy) -> float:
        return 1.0

    episode = await attempt(solve, gateway=Forgetful(lambda messages: "6"))
    assert (episode.stop_reason, episode.reward) == ("policy_error", None)
    assert "finished as 'abandoned'" in (episode.error or "")


async def test_the_gateways_failure_is_never_a_reward() -> None:
    """Invariant 6."""

    def gone(messages: Any) -> str:
        raise GatewayError("no engine")

    episode = await attempt(ask_once, gone)
    assert (episode.stop_reason, episode.reward, episode.error) == ("policy_error", None, "no engine")


async def test_a_program_that_hides_an_unanswered_request_has_no_reward() -> None:
    """It may have answered wrongly for that alone."""

    class Owing(ScriptedGateway):
        async def open_session(self, request: Any) -> Any:
            session = await super().open_session(request)
            session.unanswered = 1
            return session

    async def solve(task: Task, policy: Policy) -> float:
        return 0.0

    episode = await attempt(solve, gateway=Owing(lambda messages: "6"))
    assert (episode.stop_reason, episode.reward) == ("policy_error", None)
    assert "1 requests of the program were not answered" in (episode.error or "")


async def test_the_deadline_ends_an_async_program_and_it_is_closed() -> None:
    ended, closed = threading.Event(), threading.Event()

    class Agent(Program):
        async def run(self, task: Task, policy: Policy) -> float:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return 1.0

        def close(self) -> None:
            closed.set()

    episode = await attempt(Agent, limits=Limits(deadline_s=0.05))
    assert (episode.stop_reason, episode.reward) == ("deadline", None)
    assert (ended.is_set(), closed.is_set()) == (True, True)


async def test_a_program_that_spins_costs_its_own_episode_only() -> None:
    """Invariant 9."""

    async def spin(task: Task, policy: Policy) -> float:
        while True:
            pass

    stuck, *others = await asyncio.gather(
        attempt(spin, limits=Limits(deadline_s=0.3)), *(attempt(ask_once) for _ in range(7))
    )
    assert (stuck.stop_reason, stuck.reward) == ("deadline", None)
    assert [episode.reward for episode in others] == [1.0] * 7


async def test_a_cancelled_attempt_is_sealed_and_closed_once_however_often_it_is_cancelled() -> None:
    running = asyncio.Event()
    loop = asyncio.get_running_loop()
    closed = []

    class Agent(Program):
        async def run(self, task: Task, policy: Policy) -> float:
            loop.call_soon_threadsafe(running.set)
            await asyncio.Event().wait()
            return 1.0

        def close(self) -> None:
            closed.append(1)

    gateway = ScriptedGateway(lambda messages: "6")
    playing = asyncio.create_task(attempt(Agent, gateway=gateway))
    await running.wait()
    for _ in range(3):
        playing.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert closed == [1]
    assert (gateway.sessions[0].stop_reason, gateway.sessions[0].final_reward) == ("cancelled", None)


async def test_a_constructor_that_raises_is_the_programs_failure() -> None:
    class Agent(Program):
        def __init__(self) -> None:
            raise LookupError("no model file")

    gateway = ScriptedGateway(lambda messages: "6")
    episode = await attempt(Agent, gateway=gateway)
    assert (episode.stop_reason, episode.error) == (
        "env_error",
        "test/program.__init__ raised LookupError: no model file",
    )
    assert gateway.sessions[0].stop_reason == "env_error"


# Roles


DEBATE = {"solver": Role(), "critic": Role(train=False)}


async def test_each_role_has_a_session_a_conversation_and_a_reward_of_its_own() -> None:
    @program(roles=DEBATE)
    async def solve(task: Task, policy: Policy) -> Any:
        answer = await policy.chat([agentrl.user("2*3")])
        await policy.role("critic").chat([agentrl.user(f"Is {answer.text} right?")])
        return {"solver": 1.0, "critic": {"fair": 0.25, "short": 0.25}}

    gateway = ScriptedGateway(lambda messages: "6")
    episode = await attempt(solve, gateway=gateway)
    solver, critic = gateway.sessions
    assert (solver.request.mode, solver.request.metadata["role"]) == ("train", "solver")
    assert (critic.request.mode, critic.request.metadata["role"]) == ("eval", "critic")
    assert (solver.request.across_swaps, critic.request.across_swaps) == (False, True)
    assert (solver.final_reward, critic.final_reward, critic.components) == (1.0, 0.5, {"fair": 0.25, "short": 0.25})
    (other,) = episode.others
    assert (episode.role, episode.trained, episode.reward, episode.session_id) == ("solver", True, 1.0, solver.id)
    assert (other.role, other.trained, other.reward, other.session_id) == ("critic", False, 0.5, critic.id)
    assert [message["content"] for message in other.messages] == ["Is 6 right?", "6"]


async def test_one_reward_is_that_of_every_role() -> None:
    @program(roles={"a": Role(), "b": Role()})
    async def solve(task: Task, policy: Policy) -> float:
        return 0.5

    episode = await attempt(solve)
    assert [episode.reward, *(other.reward for other in episode.others)] == [0.5, 0.5]


async def test_the_policy_may_play_the_user_too_in_a_role_that_is_not_trained() -> None:
    @program(roles={"clerk": Role(), "customer": Role(train=False)})
    async def solve(task: Task, policy: Policy) -> Any:
        customer = agentrl.Simulator.of(policy.role("customer"), persona="You want boots.")
        messages = [await customer.reply([])]
        messages.append(await policy.chat(messages))
        messages.append(await customer.reply(messages))
        return {"clerk": float(messages[-1].text == "boots of size 9")}

    def policy(messages: list[agentrl.Message]) -> str:
        if messages[0].text != "You want boots.":
            return "Which size?"
        return "boots of size 9" if messages[-1].text == "Which size?" else "I want boots."

    gateway = ScriptedGateway(policy)
    episode = await attempt(solve, gateway=gateway)
    clerk, customer = gateway.sessions
    assert (episode.reward, episode.others[0].reward) == (1.0, None)
    assert (clerk.request.mode, customer.request.mode) == ("train", "eval")
    seen = [[message.text for message in prompt] for prompt in customer.prompts]
    assert seen[0][0] == "You want boots."
    assert seen[1] == [*seen[0], "I want boots.", "Which size?"], "its second prompt continues its first"


@pytest.mark.parametrize("wrong", ["call", "reward"])
async def test_a_role_that_is_not_declared_is_named(wrong: str) -> None:
    @program(roles=DEBATE)
    async def solve(task: Task, policy: Policy) -> Any:
        if wrong == "call":
            policy.role("judge")
        return {"judge": 1.0}

    episode = await attempt(solve)
    assert episode.stop_reason == "env_error"
    assert "'judge'" in (episode.error or "")
    assert "solver, critic" in (episode.error or "")


# The variables


async def test_the_policys_variables_are_those_that_sdks_read_and_its_key_is_never_shown() -> None:
    seen: list[Policy] = []

    @program(roles=DEBATE)
    async def solve(task: Task, policy: Policy) -> float:
        seen.append(policy)
        return 1.0

    gateway = ScriptedGateway(lambda messages: "6")
    await attempt(solve, gateway=gateway)
    solver, critic = gateway.sessions
    assert seen[0].env() == {
        "OPENAI_BASE_URL": solver.base_url,
        "OPENAI_API_BASE": solver.base_url,
        "OPENAI_API_KEY": solver.api_key,
        "ANTHROPIC_BASE_URL": solver.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": solver.api_key,
        "AGENTRL_MODEL": "policy",
        "AGENTRL_ROLE_SOLVER_BASE_URL": solver.base_url,
        "AGENTRL_ROLE_SOLVER_API_KEY": solver.api_key,
        "AGENTRL_ROLE_CRITIC_BASE_URL": critic.base_url,
        "AGENTRL_ROLE_CRITIC_API_KEY": critic.api_key,
    }
    assert solver.api_key not in repr(seen[0])
