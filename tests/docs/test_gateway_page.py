"""What docs/gateway.md says of the gateway is so: its commands, its programs, its tables."""

from __future__ import annotations

import asyncio
import re
import shlex
import typing
from pathlib import Path
from typing import Any

import typer
from gateway_builders import END, always, ids, serving

from agentrl.cli.main import app
from agentrl.gateway import dialects
from agentrl.gateway.attempts import KEPT
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.control_bodies import OpenSession
from agentrl.types import Limits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gateway.md").read_text()
SOURCES = [path.read_text() for path in (ROOT / "agentrl" / "gateway").rglob("*.py")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(title: str, column: int) -> list[str]:
    """The cells of a column of a section's table, its head left out."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [line.split("|")[column + 1] for line in lines[2:]]


def in_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_command_has_options_that_exist() -> None:
    serve = typing.cast(Any, typer.main.get_command(app)).commands["serve"]
    for line in "".join(blocks("bash")).splitlines():
        serve.make_context("serve", shlex.split(line.removeprefix("agentrl serve ")))
    options = {option for parameter in serve.params for option in parameter.opts}
    assert set(re.findall(r"`(--(?:store|name|parser|public-url))\b", PAGE)) <= options


async def test_both_programs_run_as_printed_in_one_session() -> None:
    openai_program, anthropic_program = blocks("python")
    start, end = openai_program.split("control.post(f", 1)
    whole = start + anthropic_program + "control.post(f" + end
    async with serving(always([*ids("408"), END])) as served:
        found: dict[str, Any] = {"ADMIN_KEY": served.server.admin_key}
        await asyncio.to_thread(exec, whole.replace("http://127.0.0.1:8080", served.server.url), found)
    assert (found["answer"].choices[0].message.content, found["text"]) == ("408", "408")
    assert len(found["trajectory"]["calls"]) == 2
    assert {"calls", "rows", "dropped"} <= set(found["trajectory"])
    assert set(found["trajectory"]["rows"][0]) == {"token_ids", "loss_mask", "logprobs", "versions"}


def test_the_dialects_are_those_that_are_served() -> None:
    assert [in_code(cell)[0] for cell in table("What agents speak", 1)] == [d.path for d in dialects.ALL]


def test_every_option_of_a_session_is_listed() -> None:
    [options, _] = re.split(r"\n\n\| in `dropped`", section("Sessions"))
    listed = {name for line in options.splitlines() if line.startswith("| `") for name in in_code(line.split("|")[1])}
    assert listed - {"POST /sessions"} == set(OpenSession.model_fields)
    limits = next(line for line in options.splitlines() if line.startswith("| `limits`"))
    assert set(Limits.__struct_fields__) <= set(in_code(limits))


def test_every_code_is_listed_with_its_status_and_no_other_is() -> None:
    listed = {
        (int(status), code)
        for status, codes in zip(table("Errors", 0), table("Errors", 1), strict=True)
        for code in in_code(codes)
    }
    raised = {
        (int(status), code)
        for source in SOURCES
        for status, code in re.findall(r'Refusal\(\s*(\d{3}),\s*"(\w+)"', source)
    }
    assert listed == raised | {(404, "not_found")}


async def test_every_metric_is_listed_with_its_labels_and_no_other_is() -> None:
    listed = {name for cell in table("Metrics", 0) for name in in_code(cell)}
    async with serving(always([END])) as served:
        text = (await served.http.get("/metrics")).text
        labels = {
            metric._name: metric._labelnames  # type: ignore[attr-defined]
            for metric in set(served.server.gateway.metrics.registry._names_to_collectors.values())
        }
    shown = {name for name in re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE) if not name.endswith("_created")}
    assert listed == shown
    for names, of_them in zip(table("Metrics", 0), table("Metrics", 1), strict=True):
        for name in in_code(names):
            assert list(labels[name.removesuffix("_total")]) == in_code(of_them), name


def test_settings_are_named_as_they_are() -> None:
    named = {word for word in in_code(PAGE) if re.fullmatch(r"(max|breaker|engine|session|request|measure)_\w+", word)}
    others = {
        "max_calls",
        "max_tokens",
        "engine_lost",
        "engine_fault",
        "engine_error",
        "engine_not_found",
        "engine_exists",
    }
    others |= {word for word in named if word.startswith("session_") and word != "session_idle_s"}
    assert named - others <= set(GatewayConfig.model_fields)


def test_every_reason_for_which_tokens_are_dropped_is_listed() -> None:
    rows = [line for line in section("Sessions").partition("in `dropped`")[2].splitlines() if line.startswith("| `")]
    listed = {name for line in rows for name in in_code(line.split("|")[1])}
    for reason in ("constrained", "undelivered", "aborted", "engine_lost", "engine_fault", "version_changed"):
        assert reason in listed
        assert any(f'"{reason}"' in source for source in SOURCES)
    of_samples = re.findall(r'return "(\w+)"', (ROOT / "agentrl/gateway/graph.py").read_text())
    overruns = re.findall(r'"(past_\w+)"', (ROOT / "agentrl/gateway/generation.py").read_text())
    assert {*of_samples, *overruns} <= listed


def test_so_many_requests_are_remembered() -> None:
    assert f"last {KEPT} requests" in section("Retries")
