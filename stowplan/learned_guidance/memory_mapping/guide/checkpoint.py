"""Weights of the learned guide in a file of plain arrays: read without torch, and without running anything in it."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.guide.network import shapes

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
