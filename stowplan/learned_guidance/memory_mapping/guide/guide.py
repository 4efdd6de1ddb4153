"""The learned guide: what a trained network says of each access of a problem, as a hint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stowplan.learned_guidance.memory_mapping.guide import checkpoint
from stowplan.learned_guidance.memory_mapping.guide.network import Numpy, graph, values
from stowplan.learned_guidance.memory_mapping.guide.program import program
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.hint import hint
from stowplan.models.memory_mapping.problem import Problem

SOURCE = "learned"


def learned_hint(problem: Problem, path: Path = checkpoint.SHIPPED) -> Hint:
    """The values that a trained network gives a problem; some 20 us a use, in one thread, without torch.

    Parameters
    ----------
    problem
        Any problem.
    path
        A file of weights; the one of the package where none is named.

    Raises
    ------
    InputError
        The file is not one of a learned guide.
    """
    fast, keep = guided_values(problem, checkpoint.load(path))
    return hint(problem, fast.tolist(), keep.tolist(), source=SOURCE)


def guided_values(problem: Problem, weights: checkpoint.Weights) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probabilities that each access is fast, and that its gap is kept; each of shape ``[accesses]``."""
    fast, keep = values(weights, graph(program(problem)), Numpy())
    return np.clip(fast, 0.0, 1.0), np.clip(keep, 0.0, 1.0)
