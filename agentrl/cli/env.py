"""`agentrl env`: which environments there are, and one episode in which you are the policy."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import logging
import uuid
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.env import registry
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import ConfigError
from agentrl.messages import Message, assistant
from agentrl.rollout.episode import run_episode
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.types import Episode, Limits, Sampling, Task

env_app = typer.Typer(help="List environments, or play one by hand.", no_args_is_help=True)

_CALL = '/TOOL {"argument": value}'


@env_app.command("list")
def list_environments() -> None:
    """The environments that are installed. Example: `agentrl env list`"""
    table = Table("id", "what it is", box=None)
    for env_id in registry.known():
        described = (registry.env_class(env_id).__doc__ or "").strip().partition("\n")[0]
        table.add_row(escape(env_id), escape(described))
    Console(emoji=False).print(table)


@env_app.command()
def play(
    env_id: Annotated[
        str, typer.Argument(help="An id from `agentrl env list`, module:Class or path/to/file.py:Class.")
    ],
    seed: Annotated[int, typer.Option(help="Which order of tasks.")] = 0,
    task: Annotated[int, typer.Option(help="Which task of that order, from 0.", min=0)] = 0,
    split: Annotated[str, typer.Option(help="The split that the task is from.")] = "train",
) -> None:
    """You are the policy: answer in words, or call a tool. Exit status 1 when the environment fails.

    Example: `agentrl env play agentrl/Calculator-v0`, then `/calculate {"expression": "2*3"}`, then the answer.
    """
    console = Console(emoji=False)
    logging.basicConfig(format="%(message)s")
    chosen = next(itertools.islice(registry.tasks(env_id, split=split, seed=seed), task, None), None)
    if chosen is None:
        raise ConfigError(f"split {split!r} of {env_id} has no task {task}, the first being 0; give a lower number")
    try:
        episode = asyncio.run(_play(console, chosen))
    except EOFError:
        console.print("\nThe input ended before the episode did.")
    else:
        if not episode.stop_reason.by_policy:
            raise typer.Exit(1)


async def _play(console: Console, task: Task) -> Episode:
    person = _Person(console)
    gateway = ScriptedGateway(person.answer)
    person.gateway = gateway
    make = functools.partial(registry.make, task.env_id)
    episode = await run_episode(make, task, gateway, limits=Limits(), sampling=Sampling())
    for message in episode.messages[person.shown :]:
        person.show(Message(message))
    console.print(f"[bold]{episode.stop_reason}[/bold] after {episode.turns} turns, reward {episode.reward}")
    if episode.reward is None and episode.stop_reason.by_policy:
        console.print("The environment gave no reward (`score` returned none): in a run a reward service has to.")
    if episode.error:
        console.print(escape(episode.error), style="red")
    return episode


class _Person:
    """The policy at the keyboard."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.shown = 0
        self.gateway: ScriptedGateway | None = None
        self._keyboard = CallThread("agentrl-keyboard", HungCalls())  # which no exit waits for

    def _read(self) -> str:
        return self.console.input("[bold green]you[/bold green] ")

    async def answer(self, messages: list[Message]) -> Message:
        if self.shown == 0:
            self._show_tools()
        for message in messages[self.shown :]:
            self.show(message)
        self.shown = len(messages) + 1  # the reply was typed, so it is on the screen
        while True:
            line = await self._keyboard.run(self._read, None, "reading what you type")
            try:
                return parse(line)
            except ValueError as error:
                self.console.print(escape(str(error)), style="red")

    def show(self, message: Message) -> None:
        self.console.print(f"[bold cyan]{message.role}[/bold cyan] {escape(message.text)}", highlight=False)

    def _show_tools(self) -> None:
        assert self.gateway is not None
        for tool in self.gateway.sessions[0].tools:
            function = tool["function"]
            arguments = ", ".join(function["parameters"].get("properties", {}))
            text = f"/{function['name']} ({arguments}): {function.get('description', '')}"
            self.console.print(escape(text), style="dim", highlight=False)


def parse(line: str) -> Message:
    """The assistant message that a typed line stands for. Raises ValueError for a call that cannot be read."""
    if not line.startswith("/"):
        return assistant(line)
    name, _, arguments = line[1:].strip().partition(" ")
    try:
        json.loads(arguments or "{}")
    except ValueError as error:
        raise ValueError(f"those arguments are not JSON ({error}); type {_CALL}") from None
    function = {"name": name, "arguments": arguments or "{}"}
    return assistant(
        None, tool_calls=[{"id": f"call_{uuid.uuid4().hex[:8]}", "type": "function", "function": function}]
    )
