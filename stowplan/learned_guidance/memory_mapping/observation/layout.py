"""Layout of an observation of MMapGame: the arrays, their sizes, and the features in them.

It follows Wang et al. 2023, section 4.3.1 and table 1. All features are dimensionless and comparable between programs.
``docs/reference/mmap-muzero.md`` explains each feature; the enumerations below give their indices. In their comments, *near* is
a signed logarithm of a number of steps and *ratio* a logarithm of a ratio (see ``compiled.py``). "of X" means divided by X.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Bytes2D, Bytes3D, Singles2D, Singles3D
from stowplan.learned_guidance.training.settings import Hyperparameters, Range, Size


class ObservationConfig(Hyperparameters, frozen=True, kw_only=True):
    """Sizes of the observation that the network reads."""

    future_buffers: Annotated[int, Range(0)] = 5
    """Number of buffers after the current one, in order of decision, that are described (k)."""
    same_tensor_buffers: Annotated[int, Range(0)] = 5
    """Number of later buffers of the current buffer's tensor that are described (l)."""
    id_buckets: Annotated[int, Range(2)] = 128
    """An id is reduced modulo this number minus 1, and 1 is added; 0 means no tensor or no alias group."""
    map_rows: Size = 128
    """Rows of the memory map: equal parts of fast memory."""
    map_columns: Size = 128
    """Columns of the memory map: logical time. The target time is at the first step of column ``map_columns // 2``."""
    steps_per_column: Size = 1
    """Number of steps in each column of the memory map."""
    binary_map: bool = False
    """Whether a cell of the memory map says only if it is at least partly occupied (the paper's image), and not the occupied
    fraction."""
    profile_bins: Size = 1024
    """Number of equal parts of fast memory in the profile of occupancy at the target time."""
    supply_slots: Size = 64
    """Number of slots in the supply profile. The slot of the target time has index ``supply_slots // 2``."""

    @property
    def buffers(self) -> int:
        """Number of buffers described: the current one, ``future_buffers`` and ``same_tensor_buffers``."""
        return 1 + self.future_buffers + self.same_tensor_buffers


Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class BufferFeature(IntEnum):
    """Features of one buffer: table 1 of the paper, derived features, and the state of its tensor in the game. Features whose
    names begin with IS, HAS, MAY or NEEDS are 0 or 1."""

    IS_PRESENT = 0  # all features are 0 if there is no such buffer
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
    LIVE_BEFORE = 13  # near: steps since its content was written
    LIVE_AFTER = 14  # near: steps until its content is last needed
    HAS_PREVIOUS = 15
    PREVIOUS = 16  # near: steps since the tensor's previous visit
    HAS_NEXT = 17
    NEXT = 18  # near: steps until the tensor's next visit
    VISITS_LEFT = 19  # ratio: moves of the tensor after this one
    DEMAND = 20  # ratio: to the mean supply of a slot
    SLACK = 21  # log of the supply between this and the neighbouring visit over the demand, within -1 and 1
    FIRST_BENEFIT = 22  # BENEFIT if all buffers are slow
    BENEFIT_RANK = 23  # of FIRST_BENEFIT among all moves, 0 to 1
    DENSITY_RANK = 24  # of FIRST_BENEFIT per byte and step among all moves, 0 to 1
    ALIAS_INDEX = 25  # ratio: position in its alias group
    ALIAS_LEFT = 26  # ratio: moves of its alias group after this one
    # The features from here on depend on the state.
    TARGET_TIME = 27  # near: steps from the current buffer's target time
    BENEFIT = 28  # log of the present benefit over the mean benefit
    BENEFIT_SHARE = 29  # of the game's unit
    BYTE_BENEFIT = 30  # log of benefit per byte over the program's mean
    DENSITY = 31  # log of benefit per byte and step over the program's mean, within -2 and 2
    SAME_TENSOR = 32
    SAME_ALIAS = 33
    IS_HELD = 34  # its tensor's content is in fast memory
    HOME_OFFSET = 35  # of capacity; offset of the content (the paper's O_t)
    HOME_END = 36  # near: steps from the target time to the end of the content's stay
    IS_COVERED = 37  # the content stays until the visit's end
    HAS_SLOW = 38  # slow memory holds the content, or will hold it
    IS_SLOW_VALID = 39  # slow memory holds the content by the target time
    IS_GROUP_FAST = 40
    IS_GROUP_SLOW = 41
    IS_DROPPED = 42  # its alias group was dropped
    TENSOR_ID = 43  # integer, for an embedding; so is the next
    ALIAS_ID = 44


FIRST_DYNAMIC = BufferFeature.TARGET_TIME.value
"""Buffer features before this index are the same in every state."""
FIRST_ID = BufferFeature.TENSOR_ID.value
"""Buffer features from this index on are ids."""


class SupplyFeature(IntEnum):
    """Features of one slot around the target time."""

    IS_INSIDE = 0  # the program has such a slot
    LEFT = 1  # ratio: supply left, to the mean supply of a slot
    LEFT_DEMAND = 2  # ratio: supply left, to the current buffer's demand
    REACH = 3  # supply left from this slot to the target time over the current buffer's demand, at most 1
    LEFT_SHARE = 4  # of the slot's own supply
    IS_WINDOW = 5  # the window of a copy contains it
    IN_USE = 6  # of capacity, at the slot's first step
    PRESSURE = 7  # ratio: bytes of all live tensors at the slot's first step, to capacity
    BENEFIT = 8  # log of the sum of first benefits of the slot's moves over the mean benefit


class ActionFeature(IntEnum):
    """Features of one action: the memory and supply that it would take in addition, and its reward."""

    IS_LEGAL = 0
    OCCUPIES = 1  # it would occupy more memory; the features below are 0 for Drop and for an illegal action
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
    DENSITY = 12  # log of reward per byte and step over the program's mean, within -2 and 2; 2 if it occupies nothing


class GlobalFeature(IntEnum):
    """Features of the game as a whole."""

    MOVE = 0  # log of the number of moves made, 1 at 65536
    PROGRESS = 1  # of all moves
    LEFT = 2  # log of the number of remaining moves
    ALIAS_INDEX = 3  # ratio: as for the current buffer
    ALIAS_LEFT = 4
    RESETS = 5  # ratio: how often the game went back from a state without a legal action
    IN_USE = 6  # of capacity, at the target time
    PRESSURE = 7  # ratio: at the target time
    MEAN_PRESSURE = 8  # ratio: mean over all steps
    PEAK_PRESSURE = 9  # ratio: maximum over all steps
    RETURN = 10  # so far, of the game's unit
    BENEFIT_LEFT = 11  # ratio: first benefits of all remaining moves, to the game's unit
    SPAN = 12  # ratio: time with all buffers slow minus time with all fast, to the game's unit
    DEMAND = 13  # ratio: demand of all inputs that may be copied, to all supply
    MOVES = 14  # log of the number of moves, 1 at 65536
    STEPS = 15
    TENSORS = 16
    IS_STRICT = 17  # whether copy windows are strict
    HAS_BACKUP = 18  # whether Drop-backup is on


class Observations(NamedTuple):
    """Observations of B states."""

    buffers: Singles3D
    """(B, 1 + k + l, :class:`BufferFeature`) float32: the current buffer, the next ones, and later ones of its tensor."""
    memory_map: Bytes3D
    """(B, rows, columns) uint8: occupied fraction of the cell, 255 for all of it. Row 0 is at offset 0."""
    profile: Bytes2D
    """(B, bins) uint8: fraction of the bin that is occupied at the target time, 255 for all of it."""
    supply: Singles3D
    """(B, slots, :class:`SupplyFeature`) float32."""
    actions: Singles3D
    """(B, 3, :class:`ActionFeature`) float32."""
    globals: Singles2D
    """(B, :class:`GlobalFeature`) float32."""


def empty_observations(config: ObservationConfig, batch: int) -> Observations:
    """Allocate ``batch`` observations, filled with zeros."""
    return Observations(
        buffers=np.zeros((batch, config.buffers, len(BufferFeature)), np.float32),
        memory_map=np.zeros((batch, config.map_rows, config.map_columns), np.uint8),
        profile=np.zeros((batch, config.profile_bins), np.uint8),
        supply=np.zeros((batch, config.supply_slots, len(SupplyFeature)), np.float32),
        actions=np.zeros((batch, 3, len(ActionFeature)), np.float32),
        globals=np.zeros((batch, len(GlobalFeature)), np.float32),
    )
