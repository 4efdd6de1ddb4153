"""What stands where in an observation of MMapGame: names of the features, the arrays they are in, and how large those are.

Wang et al. 2023, section 4.3.1 and table 1. Everything is dimensionless and comparable between programs.
``docs/reference/mmap-muzero.md`` explains each feature; here are their places. *near* is a signed logarithm of a number of
steps, *ratio* a logarithm of a ratio (see ``kernel.py``).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Bytes2D, Bytes3D, Singles2D, Singles3D
from stowplan.learned_guidance.training.settings import Hyperparameters, Range, Size


class ObservationConfig(Hyperparameters, frozen=True, kw_only=True):
    """What of a state is shown to the network."""

    future_buffers: Annotated[int, Range(0)] = 5
    """Buffers to be decided after the present one that are described as it is (k)."""
    same_tensor_buffers: Annotated[int, Range(0)] = 5
    """Later buffers of the present one's tensor that are described (l)."""
    id_buckets: Annotated[int, Range(2)] = 128
    """Tensor and alias ids are told apart modulo this less one; 0 stands for none."""
    map_rows: Size = 128
    """Rows of the memory map: each an equal part of fast memory."""
    map_columns: Size = 128
    """Columns of the memory map: logical time, the target time at the first step of column ``map_columns // 2``."""
    steps_per_column: Size = 1
    binary_map: bool = False
    """A cell tells only whether any of it is occupied (the paper's image), not which part of it."""
    profile_bins: Size = 1024
    """Parts of fast memory whose occupancy at the target time is shown."""
    supply_slots: Size = 64
    """Slots of the supply profile; the target time's is number ``supply_slots // 2``."""

    @property
    def buffers(self) -> int:
        """Buffers described: the present one, ``future_buffers``, ``same_tensor_buffers``."""
        return 1 + self.future_buffers + self.same_tensor_buffers


Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class BufferFeature(IntEnum):
    """Of one buffer: table 1 of the paper, what follows from it, and what the game has made of its tensor."""

    IS_PRESENT = 0  # 0 in all features where there is no such buffer
    SIZE = 1  # of capacity
    LOG_SIZE = 2  # 1 at capacity
    IS_OUTPUT = 3
    DEFINES = 4
    NEEDS_CONTENT = 5
    HAS_OUTPUT = 6
    IS_FINAL_OUTPUT = 7
    IS_UPDATED = 8
    IS_PROGRAM_INPUT = 9
    MAY_COPY = 10
    IS_UNIFORM = 11
    DURATION = 12  # ratio: steps of the visit, more than 1 in loops
    LIVE_BEFORE = 13  # near: steps since its content came to be
    LIVE_AFTER = 14  # near: steps until its content is needed no more
    HAS_PREVIOUS = 15
    PREVIOUS = 16  # near: steps since the tensor's previous visit
    HAS_NEXT = 17
    NEXT = 18  # near: steps until the tensor's next visit
    VISITS_LEFT = 19  # ratio: moves of the tensor after this one
    DEMAND = 20  # ratio: to the mean supply of a slot
    SLACK = 21  # log of the supply between this and the neighbouring visit over the demand, within -1 and 1
    FIRST_BENEFIT = 22  # with all slow; as BENEFIT
    BENEFIT_RANK = 23  # of FIRST_BENEFIT among all moves, 0 to 1
    DENSITY_RANK = 24  # of FIRST_BENEFIT per byte and step among all moves, 0 to 1
    ALIAS_INDEX = 25  # ratio: place in its alias group
    ALIAS_LEFT = 26  # ratio: moves of its alias group after this one
    # From here on, as the state has it.
    TARGET_TIME = 27  # near: steps from the present buffer's target time
    BENEFIT = 28  # log of benefit over the mean benefit, with what is fast now
    BENEFIT_SHARE = 29  # of the game's unit
    BYTE_BENEFIT = 30  # log of benefit per byte over the program's mean
    DENSITY = 31  # log of benefit per byte and step over the program's mean, within -2 and 2
    SAME_TENSOR = 32
    SAME_ALIAS = 33
    IS_HELD = 34  # its tensor's content is in fast memory
    HOME_OFFSET = 35  # of capacity; where the content is (the paper's O_t)
    HOME_END = 36  # near: how far beyond this target time it stays there
    IS_COVERED = 37  # it stays there until the visit's end
    HAS_SLOW = 38  # slow memory has the content, or will have it
    IS_SLOW_VALID = 39  # by its target time
    IS_GROUP_FAST = 40
    IS_GROUP_SLOW = 41
    IS_DROPPED = 42  # its alias group was given up
    TENSOR_ID = 43  # whole numbers, for embeddings
    ALIAS_ID = 44


FIRST_DYNAMIC = BufferFeature.TARGET_TIME.value
"""Buffer features before this one are the same in every state."""
FIRST_ID = BufferFeature.TENSOR_ID.value
"""Buffer features from here on are ids."""


class SupplyFeature(IntEnum):
    """Of one slot around the target time."""

    IS_INSIDE = 0  # the program has such a slot
    LEFT = 1  # ratio: supply left, to the mean supply of a slot
    LEFT_DEMAND = 2  # ratio: supply left, to the present buffer's demand
    REACH = 3  # supply left from here to the target time over the present buffer's demand, at most 1
    LEFT_SHARE = 4  # of the slot's own supply
    IS_WINDOW = 5  # a copy's window covers it
    IN_USE = 6  # of capacity, at the slot's first step
    PRESSURE = 7  # ratio: bytes that the program's live buffers want at the slot's first step, to capacity
    BENEFIT = 8  # log of the sum of first benefits of the slot's moves over the mean benefit


class ActionFeature(IntEnum):
    """Of one action: what it would newly occupy, take and earn."""

    IS_LEGAL = 0
    OCCUPIES = 1  # it would newly occupy memory; all that follows is 0 for Drop and where it is not legal
    START = 2  # near: from the target time
    END = 3  # near: from the target time
    OFFSET = 4  # of capacity
    TOP = 5  # of capacity
    START_COLUMN = 6  # column of the memory map, from -1 to 1
    END_COLUMN = 7
    AREA = 8  # ratio: bytes times steps, to capacity
    SUPPLY = 9  # ratio: supply taken, to the mean supply of a slot
    REWARD = 10  # as a buffer's benefit
    REWARD_SHARE = 11  # of the game's unit
    DENSITY = 12  # log of reward per byte and step over the program's mean, within -2 and 2; 2 where it occupies nothing


class GlobalFeature(IntEnum):
    """Of the game as a whole."""

    MOVE = 0  # log of the number of moves made, 1 at 65536
    PROGRESS = 1  # of all moves
    LEFT = 2  # log of the number of moves to come
    ALIAS_INDEX = 3  # ratio: as the present buffer's
    ALIAS_LEFT = 4
    RESETS = 5  # ratio
    IN_USE = 6  # of capacity, at the target time
    PRESSURE = 7  # ratio: at the target time
    MEAN_PRESSURE = 8
    PEAK_PRESSURE = 9
    RETURN = 10  # so far, of the game's unit
    BENEFIT_LEFT = 11  # first benefits of all moves to come, of the game's unit, as a ratio
    SPAN = 12  # ratio: all slow less all fast, to the game's unit
    DEMAND = 13  # ratio: of all inputs that may be copied, to all supply
    MOVES = 14  # log of the number of moves, 1 at 65536
    STEPS = 15
    TENSORS = 16
    IS_STRICT = 17
    HAS_BACKUP = 18


class Observations(NamedTuple):
    """Observations of B states."""

    buffers: Singles3D
    """(B, 1 + k + l, :class:`BufferFeature`) float32: present, future, and later buffers of the present one's tensor."""
    memory_map: Bytes3D
    """(B, rows, columns) uint8: part of the cell that is occupied, 255 for all of it; row 0 is at offset 0."""
    profile: Bytes2D
    """(B, bins) uint8: part of the bin that is occupied at the target time."""
    supply: Singles3D
    """(B, slots, :class:`SupplyFeature`) float32."""
    actions: Singles3D
    """(B, 3, :class:`ActionFeature`) float32."""
    globals: Singles2D
    """(B, :class:`GlobalFeature`) float32."""


def empty_observations(config: ObservationConfig, batch: int) -> Observations:
    """Room for ``batch`` observations, all zero."""
    return Observations(
        buffers=np.zeros((batch, config.buffers, len(BufferFeature)), np.float32),
        memory_map=np.zeros((batch, config.map_rows, config.map_columns), np.uint8),
        profile=np.zeros((batch, config.profile_bins), np.uint8),
        supply=np.zeros((batch, config.supply_slots, len(SupplyFeature)), np.float32),
        actions=np.zeros((batch, 3, len(ActionFeature)), np.float32),
        globals=np.zeros((batch, len(GlobalFeature)), np.float32),
    )
