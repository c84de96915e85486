"""One environment under test: every call measured, limited and written down."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import inspect
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import gymnasium
import orjson

from agentrl.env.base import Env
from agentrl.env.check.child.bench import Bench
from agentrl.env.check.child.contract import read_reset, read_step, read_tools
from agentrl.env.check.child.leftovers import OWN_THREADS
from agentrl.env.check.child.outside import Outside
from agentrl.env.check.records import CallRecord, Mutation, Place, ToolRaised
from agentrl.env.program import Program
from agentrl.env.threads import CallThread, HungCalls
from agentrl.env.tool import ToolError, tools_of
from agentrl.env.tool_env import ToolEnv
from agentrl.errors import EnvironmentFault
from agentrl.messages import Message
from agentrl.types import Task

_GRACE_S = 2.0  # beyond the limit, before the fault handler ends a process whose event loop stands still


class Instance:
    """Plain methods run in a thread of its own and `async def` ones on the loop, as in a rollout worker."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._thread = CallThread(f"{OWN_THREADS}-env", HungCalls())
        self._thread_id: int | None = None
        self._handed_out: list[tuple[Message | dict[str, Any], bytes]] = []
        self._tool_errors: list[ToolRaised] = []
        self.env: gymnasium.Env[Any, Any] | Program | None = None

    async def make(self) -> CallRecord:
        record, made = await self._measured("__init__", self._bench.make, on_loop=False)
        if isinstance(made, gymnasium.Env | Program):
            self.env = made
        if isinstance(made, gymnasium.Env):
            self._watch_tools(made.unwrapped)
        return record

    async def reset(self, task: Task) -> CallRecord:
        self._handed_out = []
        options = {**task.options, "split": task.split}
        record, result = await self.call("reset", seed=task.seed, options=options)
        if record.raised is None:
            self._keep(read_reset(record, result))
        return record

    async def tools(self) -> CallRecord:
        env = self.env
        assert isinstance(env, gymnasium.Env)

        def read() -> Any:
            return env.get_wrapper_attr("tools") if env.has_wrapper_attr("tools") else []

        record, result = await self._measured("tools", read, on_loop=False)
        if record.raised is None:
            read_tools(record, result)
        return record

    async def step(self, action: Message) -> CallRecord:
        given = orjson.loads(orjson.dumps(action))
        self._keep([action])
        record, result = await self.call("step", action)
        record.action = given
        record.tool_errors, self._tool_errors = self._tool_errors, []
        if record.raised is None:
            self._keep(read_step(record, result))
        return record

    async def close(self) -> CallRecord:
        record, _ = await self.call("close")
        return record

    async def plainly(self, call: Callable[[Any], Any], method: str) -> tuple[CallRecord, Any]:
        """`call(env)` in the environment's thread, without an event loop, as gymnasium's own tools call it."""
        return await self._measured(method, functools.partial(call, self.env), on_loop=False)

    def retire(self) -> None:
        """Lets the thread end."""
        self._thread.close()

    async def call(self, method: str, *arguments: Any, **named: Any) -> tuple[CallRecord, Any]:
        env = self.env
        assert env is not None
        """Any method, by its name."""
        bound = functools.partial(getattr(env, method), *arguments, **named)
        if isinstance(env, Env | Program):
            on_loop = env.is_async(method)
        else:
            on_loop = inspect.iscoroutinefunction(getattr(env, method))
        return await self._measured(method, bound, on_loop=on_loop)

    async def _measured(self, method: str, call: Callable[[], Any], *, on_loop: bool) -> tuple[CallRecord, Any]:
        bench = self._bench
        record = CallRecord(method=method, on_loop=on_loop)
        bench.begin(method)
        before = Outside.now()
        bench.watch.begin()
        faulthandler.dump_traceback_later(bench.plan.timeout_s + _GRACE_S, exit=True, file=bench.dump)
        wall, cpu = time.perf_counter(), time.process_time()
        result = None
        try:
            result = await (self._on_loop(record, call) if on_loop else self._in_thread(record, method, call))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt) and not on_loop:
                raise
            record.raised = bench.author.raised(_original(error))
        finally:
            record.wall_ms, record.cpu_ms = 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)
            faulthandler.cancel_dump_traceback_later()
        stalls = await bench.watch.end()
        record.stalls = stalls if on_loop else []
        record.effects = before.changes(bench.seen)
        record.mutated = self._mutations()
        before.restore()
        return record, result

    async def _in_thread(self, record: CallRecord, method: str, call: Callable[[], Any]) -> Any:
        def noted() -> Any:
            self._thread_id = threading.get_ident()
            return call()

        # The thread is never told to give up: what it is doing is to be seen, and the process ends after that.
        task = asyncio.ensure_future(self._thread.run(noted, None, method))
        return await self._limited(record, task, self._stack)

    async def _on_loop(self, record: CallRecord, call: Callable[[], Awaitable[Any]]) -> Any:
        task = asyncio.ensure_future(_contained(call))
        coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
        return await self._limited(record, task, lambda: self._bench.author.of_coroutine(coroutine))

    async def _limited(self, record: CallRecord, task: asyncio.Future[Any], stack: Callable[[], Place | None]) -> Any:
        if isinstance(task, asyncio.Task):
            task.set_name(f"{OWN_THREADS}-call")
        done, _ = await asyncio.wait({task}, timeout=self._bench.plan.timeout_s)
        if not done:
            record.hung = True
            record.stack = stack()
            raise TimeoutError(f"{record.method} did not return")
        return task.result()

    def _stack(self) -> Place | None:
        frames = sys._current_frames()
        return self._bench.author.of_frame(frames.get(self._thread_id or -1))

    def _keep(self, messages: list[Any]) -> None:
        self._handed_out += [(message, _bytes(message)) for message in messages if isinstance(message, dict)]

    def _mutations(self) -> list[Mutation]:
        found: list[Mutation] = []
        for number, (message, before) in enumerate(self._handed_out):
            now = _bytes(message)
            if now != before:
                self._handed_out[number] = (message, now)
                role = orjson.loads(before).get("role")
                found.append(Mutation(str(role), before.decode()[:300], now.decode()[:300]))
        return found

    def _watch_tools(self, env: Any) -> None:
        """`ToolEnv` turns what a tool raises into a message; the traceback is caught before that."""
        if not isinstance(env, ToolEnv):
            return
        with contextlib.suppress(Exception):  # tools that cannot be described are found when they are read
            for described in tools_of(type(env)).values():
                watched = self._watched(described.name, getattr(env, described.attribute))
                setattr(env, described.attribute, watched)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(error: Exception, arguments: dict[str, Any]) -> None:
            if not isinstance(error, ToolError | EnvironmentFault):
                shown = orjson.dumps(arguments, default=repr).decode()[:200]
                self._tool_errors.append(ToolRaised(name, shown, self._bench.author.raised(error)))

        @functools.wraps(function)
        def plain(**arguments: Any) -> Any:
            try:
                return function(**arguments)
            except Exception as error:
                note(error, arguments)
                raise

        @functools.wraps(function)
        async def awaited(**arguments: Any) -> Any:
            try:
                return await function(**arguments)
            except Exception as error:
                note(error, arguments)
                raise

        return awaited if inspect.iscoroutinefunction(function) else plain


async def _contained(call: Callable[[], Awaitable[Any]]) -> Any:
    """A SystemExit would end the loop, and with it the check."""
    try:
        return await call()
    except (SystemExit, KeyboardInterrupt) as error:
        raise EnvironmentFault(f"the call raised {error!r}") from error


def _original(error: BaseException) -> BaseException:
    """What the environment raised, where `CallThread` carries it as a fault of its own."""
    if isinstance(error, EnvironmentFault) and isinstance(
        error.__cause__, SystemExit | KeyboardInterrupt | GeneratorExit
    ):
        return error.__cause__
    return error


def _bytes(message: Any) -> bytes:
    try:
        return orjson.dumps(message, default=repr, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return orjson.dumps({"role": None, "content": repr(message)[:1000]})
