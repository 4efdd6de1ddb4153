"""Writing the weights of the learned guide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.learned_guidance.memory_mapping.guide.guide import FORMAT, VERSION, shapes


def save(path: Path, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Write the weights, in half precision where they are not statistics of features.

    They are read by :func:`stowplan.learned_guidance.memory_mapping.guide.guide.load`.
    """
    kept: dict[str, Any] = {
        name: weights[name].astype(np.float32 if name in ("mean", "scale") else np.float16) for name in shapes()
    }
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, format=np.array(FORMAT), version=np.array(VERSION), **kept)
    temporary.replace(path)
