"""Invariants 1, 2, 3, 4 and 13 over random trees of calls: retries, edits, cut-offs, lost engines, odd samples."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from template_families import FAMILIES, TemplateFamily
from tree_builders import finished, finished_over_http
from tree_checks import CHECKS
from tree_plans import plans

SLOW = [HealthCheck.too_slow]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
@settings(max_examples=60, suppress_health_check=SLOW)
@given(data=st.data())
def test_random_trees_keep_the_invariants(family: TemplateFamily, data: st.DataObject) -> None:
    done = asyncio.run(finished(family, data.draw(plans(family))))
    for check in CHECKS:
        check(done)


@each_family
@settings(max_examples=5, suppress_health_check=SLOW, phases=[Phase.generate])  # connections have their own time
@given(data=st.data())
def test_random_trees_keep_the_invariants_over_http(family: TemplateFamily, data: st.DataObject) -> None:
    done = asyncio.run(finished_over_http(family, data.draw(plans(family))))
    for check in CHECKS:
        check(done)
