"""The data of examples/08_supervised is what its script writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "08_supervised"


def test_the_examples_data_is_what_its_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("make_supervised_data", FOLDER / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, rows in zip(("transcripts.jsonl", "pairs.jsonl"), script.lines(), strict=True):
        assert (FOLDER / name).read_text() == script.written(rows)
