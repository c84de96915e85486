"""What was there before a test is not what it left."""

from __future__ import annotations

import pytest
import sandboxes


@pytest.fixture(autouse=True)
def _kept() -> None:
    sandboxes.KEPT.clear()
    sandboxes.KEPT.update(pid for pid, _ in sandboxes.children())
