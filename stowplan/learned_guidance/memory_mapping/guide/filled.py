"""A hint without learning: fast memory filled by density, as the features of the learned guide have it."""

from __future__ import annotations

import numpy as np

from stowplan.learned_guidance.memory_mapping.guide.features import NAMES, features, gains
from stowplan.learned_guidance.memory_mapping.guide.program import program
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.hint import hint
from stowplan.models.memory_mapping.problem import Problem

SOURCE = "filled"


def filled_hint(problem: Problem) -> Hint:
    """Kept over gaps where those that save as much or more for their room and time leave room; fast at both ends of these.

    And fast where a copy that is as dense finds room on the channel. Values are 0 or 1; some 10 us a use, in one thread.
    """
    arrays = program(problem)
    rows = dict(zip(NAMES, features(arrays).T, strict=True))
    may = (rows["too large"] == 0) & (gains(arrays) > 0)
    # Features are logarithms of one more than the part of the capacity, or of the channel, that is taken.
    keep = (rows["gap denser twice mean"] <= 1) & (rows["dead"] == 0) & (rows["too large"] == 0)
    after = np.append(False, keep[:-1]) & (rows["first"] == 0)
    copied = (rows["gap channel denser, before"] <= 1) & (rows["reads"] > 0) & (rows["gap time to copy, before"] > 0)
    fast = keep | after | (may & copied)
    return hint(problem, fast.astype(float).tolist(), keep.astype(float).tolist(), source=SOURCE)
