"""`test_package_*.py` run in environments of their own (`adapter_venvs.py`): `test_adapter_packages.py` starts them."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "AGENTRL_ADAPTER_VENV" in os.environ else ["test_package_*.py"]
