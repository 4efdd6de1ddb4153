"""MMapGame: memory mapping played move by move (Wang et al. 2023, section 4.2 and appendix A).

Its exact rules, and how they settle what the paper leaves open, are in ``docs/reference/mmap-game.md``. Here is what no move
changes, and what a finished game is; ``kernel/`` plays. ``benchmarks/lib/memory_mapping/plain_game.py`` says the rules as
clearly as it can: the compiled ones are held against it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Literal

from stowplan.learned_guidance.memory_mapping.game.moves import Move, moves_of
from stowplan.models.memory_mapping.accesses import Boundaries, access_sequences
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem

#: Where a new residency is placed: at the lowest free offset (the paper's); or large ones there, and others at the highest.
Placing = Literal["lowest", "two_ended"]

#: Part of fast memory from which a buffer counts as large, as a divisor.
LARGE = 16


class Action(IntEnum):
    """What may be done with the uses of a move (section 4.2)."""

    COPY = 0
    """Fast, with a copy in before (input) or out after (output)."""
    NOCOPY = 1
    """Fast, without a copy."""
    DROP = 2
    """Served from slow memory."""


class Slots:
    """Logical time of the copy channel: a slot is one step, or a whole outermost loop, in which no copy may begin or end.

    Each has a supply: the time it takes at least, whatever is fast.
    """

    def __init__(self, problem: Problem):
        free = Boundaries(problem.horizon, problem.loops).free
        self.boundaries: tuple[int, ...] = tuple(t for t in range(problem.horizon + 1) if free[t])
        """Ascending; slot ``k`` is the steps ``[boundaries[k], boundaries[k + 1])``."""
        clock = [0, *accumulate(step.weight * step.floor_ps for step in problem.steps)]
        self.supply_ps: tuple[int, ...] = tuple(clock[end] - clock[start] for start, end in pairwise(self.boundaries))

    def number(self, boundary: int) -> int:
        """Number of the first slot that begins at ``boundary`` or later; the number of slots at the end."""
        return bisect_left(self.boundaries, boundary)


class Game:
    """What no move changes: the problem, its moves, and its slots.

    Parameters
    ----------
    strict_copy_windows
        A copy-in ends at its target time, and a copy-out starts at its own (equation 6 to the letter).
    drop_backup
        An infeasible state leads back to the last one that had a way out (section 4.3.2); else it loses the game.
    placing
        Which free offset a new residency gets.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        strict_copy_windows: bool = False,
        drop_backup: bool = True,
        placing: Placing = "lowest",
    ):
        self.problem = problem
        self.strict_copy_windows, self.drop_backup, self.placing = strict_copy_windows, drop_backup, placing
        #: A buffer of so many bytes or more gets the lowest free offset, a smaller one the highest: large buffers, which only
        #: fit where others left a wide gap, and small ones, which come and go, keep out of each other's way.
        self.large_bytes = -(-problem.capacity // LARGE) if placing == "two_ended" else 0
        sequences = access_sequences(problem)
        self.moves: tuple[Move, ...] = moves_of(problem)
        self.slots = Slots(problem)
        self.may_copy = tuple(sequence.may_copy for sequence in sequences)
        self.is_uniform = tuple(sequence.uniform for sequence in sequences)


def plan_of(
    problem: Problem, return_ps: int, residencies: Sequence[Residency], copies: Sequence[Copy], fast_uses: Sequence[int]
) -> Plan:
    """What a finished game made, as a plan; ``fast_uses`` ascending."""
    return Plan(
        problem=problem.digest,
        objective=problem.all_slow_ps - return_ps,
        residencies=tuple(sorted(residencies, key=lambda item: (item.start, item.offset, item.tensor))),
        # By start, then by end: the order in which the windows fit into the channel.
        copies=tuple(sorted(copies, key=lambda item: (item.start, item.end, item.tensor))),
        fast_uses=tuple(fast_uses),
        program=problem.name,
        target=problem.target,
    )
