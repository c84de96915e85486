"""Version spans as one version per token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.types import VersionSpan

NO_VERSION = int(np.iinfo(np.int64).min)


def spread(spans: Sequence[VersionSpan], size: int) -> np.ndarray:
    """The version of each token, [size], NO_VERSION where no span is. Of overlapping spans the last counts."""
    versions = np.full(size, NO_VERSION, np.int64)
    for span in spans:
        versions[max(span.start, 0) : max(span.end, 0)] = span.version
    return versions
