"""MMapGame: memory mapping played move by move (Wang et al. 2023, section 4.2 and appendix A).

Its exact rules, and how they settle what the paper leaves open, are in ``docs/reference/mmap-game.md``. Here is what no move
changes (moves: what is decided, and in which order), and what a finished game is; ``kernel/`` plays.
``benchmarks/lib/memory_mapping/plain_game.py`` says the rules as clearly as it can: the compiled ones are held against it.

The paper's *buffer* is one use of a tensor by an instruction, and each is one move (Wang et al. 2023, section 4.2). Here a move
belongs to a *visit*: one step's use of a tensor, or all uses of a tensor in a loop that it enters or leaves, because there it
is fast for the whole loop or not at all. A visit that overwrites the tensor afresh is one output move. Any other visit is an
input move for its reads, and where it writes also an output move for its writes.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stowplan.models.memory_mapping.accesses import Boundaries, TensorAccesses, access_sequences
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem


@dataclass(frozen=True, slots=True)
class Move:
    """One decision: how some uses of one tensor are served."""

    tensor: int
    start: int
    """First step of the visit: the paper's target time of an input."""
    end: int
    """Boundary after the visit's last step; ``start + 1`` but for loops and asynchronous operations."""
    is_output: bool
    uses: tuple[int, ...]
    """Numbers of the uses it decides, ascending; may be empty."""
    defines: bool = False
    """Output move that overwrites the tensor afresh: fast memory needs nothing of what was there before."""
    needs_content: bool = False
    """Input move whose visit reads before it writes, so that Drop needs a valid slow copy."""
    has_output: bool = False
    """Input move with an output move of the same visit to come; both are fast or both slow."""
    released: int = 0
    """Input move: boundary from which a copy-in may start."""
    live_end: int = 0
    """Output move: end of the last visit that needs what is written here (of this visit, where none does)."""
    copy_out_limit: int = 0
    """Output move: last boundary at which a copy-out may end; the next write of the tensor comes no earlier."""
    is_final_output: bool = False
    """Output move: makes the program's output, so that it may not stay in fast memory alone."""
    is_updated: bool = False
    """Output move: the next visit that writes the tensor first reads what is written here (an update in place)."""
    is_last: bool = False
    """No later move is of this tensor."""
    alias_group: int = -1
    """Number of the alias group, -1 for none. Infeasible states arise in alias groups only."""


@dataclass(frozen=True, slots=True)
class _Visit:
    start: int
    end: int
    first_write: int
    """Step of the first write; the program's end where there is none."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    defines: bool
    needs_content: bool


def moves_of(problem: Problem) -> tuple[Move, ...]:
    """All moves in the order of play: by first step of the visit, inputs before outputs, then by number of the first use."""
    played: list[tuple[tuple[int, bool, int], Move]] = []
    groups = 0
    for sequence in access_sequences(problem):
        visits = _visits(sequence)
        last = len(played)
        for chain in _chains(visits, sequence.uniform):
            # Only where a write must follow what was decided before are there states without a legal move.
            is_group = sequence.uniform or any(visits[n].writes and not visits[n].defines for n in chain)
            for n in chain:
                visit = visits[n]
                for move in _moves(sequence, visits, n):
                    move = replace(move, alias_group=groups if is_group else -1)
                    played.append(((visit.start, move.is_output, min(visit.reads + visit.writes)), move))
            groups += is_group
        if len(played) > last:
            key, move = played[-1]
            played[-1] = (key, replace(move, is_last=True))
    return tuple(move for _, move in sorted(played, key=lambda item: item[0]))


def _visits(sequence: TensorAccesses) -> list[_Visit]:
    """Accesses joined where no residency may begin or end between them."""
    result = []
    first = 0
    for number in range(1, len(sequence) + 1):
        if number < len(sequence) and sequence.is_glued(number):
            continue
        accesses = sequence.accesses[first:number]
        result.append(
            _Visit(
                start=int(sequence.residency.prev[accesses[0].step]),
                end=int(sequence.residency.next[accesses[-1].step + 1]),
                first_write=next((access.step for access in accesses if access.write is not None), sequence.horizon),
                reads=tuple(access.read for access in accesses if access.read is not None),
                writes=tuple(access.write for access in accesses if access.write is not None),
                defines=sequence.may_begin_by_write(first),
                needs_content=not accesses[0].is_pure_write,
            )
        )
        first = number
    return result


def _chains(visits: Sequence[_Visit], uniform: bool) -> list[list[int]]:
    """Visits of one tensor by storage life: from one that overwrites it afresh up to the next; all as one where uniform."""
    chains: list[list[int]] = []
    for number, visit in enumerate(visits):
        if not chains or (visit.defines and not uniform):
            chains.append([])
        chains[-1].append(number)
    return chains


def _moves(sequence: TensorAccesses, visits: Sequence[_Visit], n: int) -> list[Move]:
    """The one or two moves of the n-th visit."""
    visit = visits[n]
    result = []
    if not visit.defines:
        result.append(
            Move(
                tensor=sequence.tensor,
                start=visit.start,
                end=visit.end,
                is_output=False,
                uses=visit.reads,
                needs_content=visit.needs_content,
                has_output=bool(visit.writes),
            )
        )
    if visit.writes:
        next_write = next((m for m in range(n + 1, len(visits)) if visits[m].writes), None)
        last_reader = len(visits) if next_write is None else next_write + visits[next_write].needs_content
        limit = sequence.horizon if next_write is None else visits[next_write].first_write
        result.append(
            Move(
                tensor=sequence.tensor,
                start=visit.start,
                end=visit.end,
                is_output=True,
                # A visit that defines the tensor may read it later on, in a loop: one decision for all.
                uses=tuple(sorted(visit.reads + visit.writes)) if visit.defines else visit.writes,
                defines=visit.defines,
                live_end=visits[last_reader - 1].end,
                copy_out_limit=int(sequence.copy.prev[limit]),
                is_final_output=sequence.is_output and next_write is None,
                is_updated=next_write is not None and visits[next_write].needs_content,
            )
        )
    return result


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


@dataclass(frozen=True, slots=True)
class Point:
    """The best return at a moment."""

    seconds: float
    """Since the method began."""
    games: int
    """Finished games until then."""
    return_ps: int
    """Best return of these games, in picoseconds."""


class Best:
    """Keeps the best game that is offered and the curve of best returns.

    Parameters
    ----------
    seconds_before, games_before
        What an earlier part of the same run took, where it is resumed from a checkpoint.
    clock
        Monotonic clock in seconds.
    """

    def __init__(self, *, seconds_before: float = 0.0, games_before: int = 0, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock() - seconds_before
        self.games = games_before
        """Games offered so far."""
        self.return_ps: int | None = None
        """Best return; None before the first game."""
        self.actions: NDArray[np.int8] | None = None
        """Actions of the best game, in order; None before the first game."""
        self.points: list[Point] = []
        """One for each improvement, ascending in time and strictly ascending in return."""

    @property
    def seconds(self) -> float:
        """Since the method began."""
        return self._clock() - self._began

    def offer(self, return_ps: int, actions: Sequence[int] | NDArray[np.integer], *, games: int = 1) -> bool:
        """Count ``games`` finished games, of which this is the best; True where it is the best of all so far.

        The actions are copied.
        """
        self.games += games
        if self.return_ps is not None and return_ps <= self.return_ps:
            return False
        self.return_ps = int(return_ps)
        self.actions = np.array(actions, np.int8)
        self.points.append(Point(self.seconds, self.games, self.return_ps))
        return True
