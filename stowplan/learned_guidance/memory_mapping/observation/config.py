"""Sizes of what MMap-MuZero sees (Wang et al. 2023, section 4.3.1 and table 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from stowplan.errors import InputError


def require(holds: bool, place: str, message: str) -> None:
    """InputError at a field where something does not hold."""
    if not holds:
        raise InputError(message, place=place)


def require_positive(config: Any, zero_allowed: frozenset[str] = frozenset()) -> None:
    """InputError where a number of a configuration is not positive, or not 0 where that is allowed."""
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(value, float):
            require(0 < value < math.inf, each.name, f"found {value}, expected a positive number")
        elif isinstance(value, int) and not isinstance(value, bool):
            least = 0 if each.name in zero_allowed else 1
            require(value >= least, each.name, f"found {value}, expected at least {least}")


@dataclass(frozen=True, slots=True)
class ObservationConfig:
    """What of a state is shown to the network."""

    future_buffers: int = 5
    """Buffers to be decided after the present one that are described as it is (k)."""
    same_tensor_buffers: int = 5
    """Later buffers of the present one's tensor that are described (l)."""
    id_buckets: int = 128
    """Tensor and alias ids are told apart modulo this less one; 0 stands for none."""
    map_rows: int = 128
    """Rows of the memory map: each an equal part of fast memory."""
    map_columns: int = 128
    """Columns of the memory map: logical time, the target time at the first step of column ``map_columns // 2``."""
    steps_per_column: int = 1
    binary_map: bool = False
    """A cell tells only whether any of it is occupied (the paper's image), not which part of it."""
    profile_bins: int = 1024
    """Parts of fast memory whose occupancy at the target time is shown."""
    supply_slots: int = 64
    """Slots of the supply profile; the target time's is number ``supply_slots // 2``."""

    def __post_init__(self) -> None:
        require_positive(self, frozenset({"future_buffers", "same_tensor_buffers"}))
        require(self.id_buckets >= 2, "id_buckets", f"found {self.id_buckets}, expected at least 2")

    @property
    def buffers(self) -> int:
        """Buffers described: the present one, ``future_buffers``, ``same_tensor_buffers``."""
        return 1 + self.future_buffers + self.same_tensor_buffers

    @classmethod
    def cpu(cls) -> ObservationConfig:
        """What a processor encodes fast: a profile in 1024 parts, and supplies of 64 slots."""
        return cls()

    @classmethod
    def paper(cls) -> ObservationConfig:
        """The paper's: a binary map, and a profile of 32768 parts, the largest memory it names."""
        return cls(id_buckets=1024, binary_map=True, profile_bins=32768, supply_slots=256)
