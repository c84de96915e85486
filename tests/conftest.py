"""Shared by all tests: helper modules beside a test can be imported by their name."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in sorted(Path(__file__).parent.iterdir()):
    if folder.is_dir():
        sys.path.insert(0, str(folder))
