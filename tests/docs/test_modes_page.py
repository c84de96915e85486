"""docs/modes.md says of every mode which keys it stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.train.modes import TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "modes.md").read_text()


@pytest.mark.parametrize("mode", TABLES)
def test_every_mode_has_its_row_with_all_that_it_sets(mode: str):
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{mode}` | `")]
    for table, keys in TABLES[mode].items():
        for key, value in keys.items():
            assert f"`{table}.{key} = {value}`" in row
