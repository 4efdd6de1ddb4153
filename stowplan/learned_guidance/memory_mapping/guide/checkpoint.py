"""Weights of the learned guide in a file of plain arrays: read without torch, and without running anything in it."""

from __future__ import annotations

import zipfile
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.guide.network import shapes

FORMAT = "stowplan.memory_mapping.guide"
VERSION = 1

#: The guide that comes with the package.
SHIPPED = Path(str(resources.files("stowplan.learned_guidance") / "checkpoints" / "mmap_guide.npz"))

Weights = dict[str, NDArray[np.float32]]


@cache
def load(path: Path = SHIPPED) -> Weights:
    """The weights in a file.

    Raises
    ------
    InputError
        It is no such file, of another version, or damaged; one line that names file and place.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            given = {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise InputError("found no such file, expected a learned guide", source=path) from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(
            f"found no readable archive of arrays ({type(error).__name__}), expected a learned guide", source=path
        ) from None
    for name, expected in (("format", FORMAT), ("version", VERSION)):
        value = given.get(name)
        if value is None or value.shape or value.item() != expected:
            found_ = "nothing" if value is None else str(value)[:40]
            raise InputError(f"found {found_}, expected {expected}", source=path, place=name)
    weights: Weights = {}
    for name, shape in shapes().items():
        value = given.get(name)
        if value is None or value.shape != shape or value.dtype.kind != "f" or not np.isfinite(value).all():
            found_ = "nothing" if value is None else f"{value.dtype} of shape {value.shape}"
            raise InputError(f"found {found_}, expected finite floats of shape {shape}", source=path, place=name)
        weights[name] = value.astype(np.float32)
    return weights
