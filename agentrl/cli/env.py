"""`agentrl env`: which environments there are, what is wrong with one, what it is like to play, how to begin one."""

from __future__ import annotations

import typer

from agentrl.cli.env_check import check
from agentrl.cli.env_init import init
from agentrl.cli.env_list import list_environments
from agentrl.cli.env_play import play
from agentrl.cli.env_serve import serve

env_app = typer.Typer(help="List environments, begin one, check it, play it by hand.", no_args_is_help=True)

env_app.command("list")(list_environments)
env_app.command()(init)
env_app.command()(check)
env_app.command()(play)
env_app.command()(serve)
