"""The learned guide: what a trained network says of each access of a problem, as a hint; and one that learns nothing.

Weights are in a file of plain arrays, read without torch, and without running anything in it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.guide.features import NAMES, features, gains
from stowplan.learned_guidance.memory_mapping.guide.network import Numpy, graph, shapes, values
from stowplan.learned_guidance.memory_mapping.guide.program import program
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.hint import hint
from stowplan.models.memory_mapping.problem import Problem

FORMAT = "stowplan.memory_mapping.guide"
VERSION = 1

#: The guide that comes with the package.
SHIPPED = Path(str(resources.files("stowplan.learned_guidance") / "checkpoints" / "mmap_guide.npz"))

Weights = dict[str, NDArray[np.float32]]


def load(path: Path = SHIPPED) -> Weights:
    """The weights in a file; read again only where the file has changed.

    Raises
    ------
    InputError
        It is no such file, of another version, or damaged; one line that names file and place.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    return _load(path, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=4)
def _load(path: Path, state: tuple[int, int, int]) -> Weights:
    given = files.read_arrays(path, "a learned guide")
    for name, expected in (("format", FORMAT), ("version", VERSION)):
        value = given.get(name)
        if value is None or value.shape or value.item() != expected:
            found_ = "nothing" if value is None else str(value)[:40]
            raise InputError(f"found {found_}, expected {expected}", source=path, place=name)
    weights: Weights = {}
    for name, shape in shapes().items():
        value = given.get(name)
        if value is not None and value.dtype.kind == "f":
            # What is too large for single precision is infinite there.
            with np.errstate(over="ignore", invalid="ignore"):
                weights[name] = value.astype(np.float32)
        if value is None or name not in weights or value.shape != shape or not np.isfinite(weights[name]).all():
            found_ = "nothing" if value is None else f"{value.dtype} of shape {value.shape}"
            raise InputError(f"found {found_}, expected finite floats of shape {shape}", source=path, place=name)
    return weights


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
    return hint(problem, fast.astype(float).tolist(), keep.astype(float).tolist(), source="filled")


def learned_hint(problem: Problem, path: Path = SHIPPED) -> Hint:
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
    fast, keep = guided_values(problem, load(path))
    return hint(problem, fast.tolist(), keep.tolist(), source="learned")


def guided_values(problem: Problem, weights: Weights) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probabilities that each access is fast, and that its gap is kept; each of shape ``[accesses]``."""
    fast, keep = values(weights, graph(program(problem)), Numpy())
    return np.clip(fast, 0.0, 1.0), np.clip(keep, 0.0, 1.0)
