"""The trainer's benchmark at tiny scale: it measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.trainer.__main__ import SUBJECTS, _summary
from bench.trainer.child import figures_of
from bench.trainer.workload import TINY, long_tailed_batch, model_path

SIZES = ("--rows", "4", "--longest", "64", "--budget", "128", "--steps", "1", "--threads", "1")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_trains_the_batch_and_gives_its_speed_and_memory(subject: str, tmp_path: Path) -> None:
    found = figures_of("bench.trainer.subject", subject, str(model_path(TINY, tmp_path)), *SIZES)
    assert found["tokens_per_s"] > 0
    assert found["peak_mib"] > 100  # torch alone is more


def test_the_batch_has_a_long_tail_within_its_bound() -> None:
    lengths = sorted(len(row.token_ids) for row in long_tailed_batch(200, vocab=100, longest=512).rows)
    assert lengths[-1] == 512
    assert 60 < lengths[100] < 110  # exp(4.4) is 81
    assert lengths[0] >= 8


def test_ratios_are_medians_of_the_rounds_own_ratios() -> None:
    """Rounds of 100, 80, 40 and 50, 45, 15: the ratios are 0.8 and 0.9, the gains 2 and 3."""
    speeds = {"bare": (100.0, 50.0), "packed": (80.0, 45.0), "padded": (40.0, 15.0)}
    played = {name: [{"tokens_per_s": speed, "peak_mib": 1.0} for speed in of] for name, of in speeds.items()}
    found = _summary(played)
    assert found["tokens_ratio"] == pytest.approx(0.85)
    assert found["packed_gain"] == pytest.approx(2.5)
