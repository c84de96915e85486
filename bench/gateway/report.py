"""The results as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.gateway.results import Results
from bench.gateway.subjects import SUBJECTS


def print_results(results: Results, console: Console) -> None:
    if results.requests_per_s_32:
        console.print(_gateways(results))
    for line in _lines(results):
        console.print(line, highlight=False)


def _gateways(results: Results) -> Table:
    sizes, speed = results.sizes, results.requests_per_s_32
    table = Table(
        title=f"1 and 32 clients; {sizes['prompt_tokens']:,} prompt ids, {sizes['answer_tokens']} sampled, "
        f"{sizes['turns']} turns an episode; medians of {results.rounds} rounds of {results.seconds:g} s"
    )
    table.add_column("", no_wrap=True)
    for title in ("1: p50 ms", "p99 ms", "req/s", "32: p50 ms", "p99 ms", "req/s", "CPU ms", "agentrl is"):
        table.add_column(title, justify="right", no_wrap=True)
    for name in speed:
        ratio = (
            f"{speed['agentrl'] / speed[name]:.1f}×" if "agentrl" in speed and name not in ("agentrl", "none") else ""
        )
        cpu = results.cpu_ms_per_request_32.get(name)
        table.add_row(
            f"{SUBJECTS[name].title} {results.versions.get(name, '')}".strip(),
            f"{results.p50_ms_1[name]:.2f}",
            f"{results.p99_ms_1[name]:.2f}",
            f"{results.requests_per_s_1[name]:,.0f}",
            f"{results.p50_ms_32[name]:.1f}",
            f"{results.p99_ms_32[name]:.1f}",
            f"{speed[name]:,.0f}",
            "" if cpu is None else f"{cpu:.2f}",
            ratio,
        )
    return table


def _lines(results: Results) -> list[str]:
    lines = []
    if results.vllm_tokens_ratio is not None:
        found = results.vllm
        lines.append(
            f"vLLM, {found['sequences']} sequences: {found['tokens_per_s_gateway']:,.0f} tokens/s through the gateway, "
            f"{found['tokens_per_s_direct']:,.0f} without: {results.vllm_tokens_ratio:.3f}"
        )
    if results.prefix_hit_ratio is not None:
        found = results.prefix
        lines.append(
            f"prefix cache, {found['turns']}-turn episodes: {found['hits']:,} of {found['possible']:,} possible tokens "
            f"(blocks of {found['block_size']}): {results.prefix_hit_ratio:.3f}"
        )
    if (load := results.sessions) is not None:
        lines.append(
            f"{load.sessions:,} sessions of {load.turns} turns: {load.errors} errors, {load.requests_per_s:,.0f} "
            f"requests/s, p99 {load.latency_p99_ms:,.0f} ms, {load.rss_peak_mib:,.0f} MiB at most "
            f"({load.rss_start_mib:,.0f} before), event-loop lag p99 {load.loop_lag_p99_ms:.0f} ms"
        )
    return lines
