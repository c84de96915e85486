"""`agentrl env play`: one episode in which you, or a file, are the policy."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from agentrl.cli.env_actions import read_action, signature
from agentrl.cli.env_options import ConstructorOption, EnvId, TaskFile, option_values
from agentrl.env import registry
from agentrl.env.base import Observation
from agentrl.env.contract import Step
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import ConfigError
from agentrl.messages import Message
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.episode import run_episode
from agentrl.rollout.hosts.base import EnvHost
from agentrl.rollout.hosts.choice import EnvHosts
from agentrl.rollout.program import run_program
from agentrl.rollout.program_host import ProgramHost
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.types import Episode, Sampling, Task

OUT_OF_ACTIONS = 3
"""Exit status when a file of actions ended before the episode did."""


class UnreadableAction(Exception):
    """A line of the file of actions is no action: nobody is there to type another."""


def play(
    env_id: EnvId,
    seed: Annotated[int, typer.Option(help="Which order of tasks.")] = 0,
    task: Annotated[int, typer.Option(help="Which task of that order, from 0.", min=0)] = 0,
    split: Annotated[str, typer.Option(help="The split that the task is from.")] = "train",
    task_file: TaskFile = None,
    option: ConstructorOption = None,
    actions: Annotated[
        str | None, typer.Option(help="A file of actions, one a line, in place of the keyboard; - is standard input.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one call of the environment may take.", min=0.1)] = 60.0,
) -> None:
    """You are the policy: answer in words, or call a tool.

    A line is an answer. `/tool {"argument": value}` or `/tool argument=value` calls a tool, `//` begins an answer that
    begins with a slash, and what stands between two lines of `\"\"\"` is one answer. Exit status 0 when the episode
    ended, 1 when the environment failed, 3 when the file of actions ended first.

    Example: `agentrl env play agentrl/Calculator-v0`, then `/calculate expression=2*3`, then the answer.
    """
    console = Console(emoji=False)
    logging.basicConfig(format="%(message)s")
    kwargs = registry.placed(env_id, option_values(option or []))
    order = registry.tasks(env_id, split=split, seed=seed, env_kwargs=kwargs, file=task_file)
    chosen = next(itertools.islice(order, task, None), None)
    if chosen is None:
        raise ConfigError(f"split {split!r} of {env_id} has no task {task}, the first being 0; give a lower number")
    try:
        read = _lines(console, actions)
        episode = asyncio.run(_play(console, chosen, kwargs, read, typed=actions is None, timeout_s=timeout))
    except UnreadableAction as error:
        raise ConfigError(str(error)) from None
    except EOFError:
        console.print("\nThe input ended before the episode did.")
        raise typer.Exit(0 if actions is None else OUT_OF_ACTIONS) from None
    if not episode.stop_reason.by_policy:
        raise typer.Exit(1)


def _lines(console: Console, actions: str | None) -> Callable[[], str]:
    """What gives the next line, and raises EOFError after the last."""
    you = "[bold green]you[/bold green] "
    if actions is None and sys.stdin.isatty():
        return lambda: console.input(you)
    if actions in (None, "-"):
        return _reader(_own_stdin(), ask=None if actions else lambda: console.print(you, end=""))
    try:
        lines = Path(actions).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--actions {actions} cannot be read: {error}") from None
    return _reader(iter(lines))


def _own_stdin() -> Iterator[str]:
    """Python closes `sys.stdin` as it ends, and aborts where a thread still waits for a line of that object."""
    try:
        return iter(open(os.dup(sys.stdin.fileno()), encoding="utf-8"))
    except OSError:  # it stands for no file
        return iter(sys.stdin)


def _reader(lines: Iterator[str], ask: Callable[[], None] | None = None) -> Callable[[], str]:
    def read() -> str:
        if ask is not None:
            ask()
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line.rstrip("\r\n")

    return read


async def _play(
    console: Console, task: Task, kwargs: dict[str, Any], read: Callable[[], str], *, typed: bool, timeout_s: float
) -> Episode:
    player = _Player(console, read, typed=typed)
    gateway = ScriptedGateway(player.answer)
    player.gateway = gateway
    config = RolloutConfig(env_timeout_s=timeout_s)
    limits = registry.limits_of(task.env_id).tighter(task.limits)
    shared: dict[str, Any] = {"limits": limits, "sampling": Sampling(), "roles": registry.roles_of(task.env_id)}
    program = registry.program(task.env_id)
    if program is not None:
        host = ProgramHost(program, kwargs, name=task.env_id, timeout_s=timeout_s, hung=HungCalls())
        episode = await run_program(host, task, gateway, **shared)
    else:
        hosts = EnvHosts(config, kwargs)
        try:
            episode = await run_episode(_Shown(await hosts.host(task.env_id), console), task, gateway, **shared)
        finally:
            await hosts.close()
    player.show_rest(episode)
    _say_end(console, episode)
    return episode


def _say_end(console: Console, episode: Episode) -> None:
    console.print(f"[bold]{episode.stop_reason}[/bold] after {episode.turns} turns, reward {episode.reward}")
    for other in episode.others:
        console.print(f"{other.role or 'another speaker'}: {other.turns} turns, reward {other.reward}")
    if episode.reward is None and episode.stop_reason.by_policy:
        console.print("The environment gave no reward (`score` returned none): in a run a reward service has to.")
    if episode.error:
        console.print(escape(episode.error), style="red")


class _Shown(EnvHost):
    """Says what each step earned."""

    def __init__(self, host: EnvHost, console: Console) -> None:
        self._host = host
        self._console = console

    async def reset(self, task: Task) -> Observation:
        return await self._host.reset(task)

    async def tools(self) -> list[dict[str, Any]]:
        return await self._host.tools()

    async def step(self, action: Message) -> Step:
        step = await self._host.step(action)
        earned = "none" if step.reward is None else f"{step.reward:g}"
        ended = " (the end)" if step.terminated else " (truncated)" if step.truncated else ""
        self._console.print(f"step reward {earned}{ended}", style="dim", highlight=False, soft_wrap=True)
        return step

    async def close(self) -> None:
        await self._host.close()


class _Player:
    """The policy at the keyboard, or in a file."""

    def __init__(self, console: Console, read: Callable[[], str], *, typed: bool) -> None:
        self.gateway: ScriptedGateway | None = None
        self._console = console
        self._read = read
        self._typed = typed
        self._keyboard = CallThread("agentrl-keyboard", HungCalls())  # which no exit waits for
        self._shown: dict[int, int] = {}  # messages on the screen, by session
        self._tools: dict[int, list[dict[str, Any]]] = {}

    async def answer(self, messages: list[Message]) -> Message:
        session = self._session(messages)
        for message in messages[self._shown.get(session, 0) :]:
            self.show(message)
        self._shown[session] = len(messages) + 1  # the reply was typed, so it is on the screen
        tools = self._offered(session)
        while True:
            try:
                action = await self._keyboard.run(lambda: read_action(self._read, tools), None, "reading what you type")
            except ValueError as error:
                if not self._typed:
                    raise UnreadableAction(f"--actions: {error}") from None
                self._console.print(escape(str(error)), style="red")
                continue
            if not self._typed:
                self.show(action, "you")
            return action

    def show(self, message: Message, who: str = "") -> None:
        calls = [call.get("function") or {} for call in message.tool_calls]
        called = [f"/{function.get('name')} {function.get('arguments')}" for function in calls]
        text = "\n".join(part for part in (message.text, *called) if part)
        self._console.print(
            f"[bold cyan]{who or message.role}[/bold cyan] {escape(text)}", highlight=False, soft_wrap=True
        )

    def show_rest(self, episode: Episode) -> None:
        for message in episode.messages[self._shown.get(0, 0) :]:
            self.show(Message(message))

    def _session(self, messages: list[Message]) -> int:
        """Whose conversation this is: the session that was asked last."""
        assert self.gateway is not None
        lengths = [session.prompts[-1] if session.prompts else None for session in self.gateway.sessions]
        return max(index for index, prompt in enumerate(lengths) if prompt == messages)

    def _offered(self, session: int) -> list[dict[str, Any]]:
        """The tools of this speaker, shown when they are new."""
        assert self.gateway is not None
        tools = self.gateway.sessions[session].tools
        if tools != self._tools.get(session, []):
            for tool in tools:
                self._console.print(
                    escape(signature(tool.get("function") or {})), style="dim", highlight=False, soft_wrap=True
                )
            self._tools[session] = tools
        return tools
