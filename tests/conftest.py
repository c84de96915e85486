"""Shared by all tests: helper modules beside a test can be imported by their name."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis

for folder in sorted(Path(__file__).parent.iterdir()):
    if folder.is_dir():
        sys.path.insert(0, str(folder))

# The two cores are shared by several servers in some tests: how long an example takes says nothing about the code.
hypothesis.settings.register_profile("agentrl", deadline=None)
hypothesis.settings.load_profile("agentrl")
