"""MMapGame: memory mapping as a game of one move after the other (Wang et al. 2023, section 4.2 and appendix A).

``docs/reference/mmap-game.md`` has the exact rules, including those that the paper leaves open. This module defines the moves,
that is, what is decided and in which order, and the result of a finished game; the folder ``compiled`` has the code that plays.
``benchmarks/lib/memory_mapping/plain_game.py`` implements the rules as plainly as possible, and tests compare the compiled
rules with it.

In the paper, a *buffer* is one use of a tensor by an instruction, and each buffer is one move (Wang et al. 2023, section 4.2).
Here a move belongs to a *visit*: the uses of a tensor by one step. If the tensor enters or leaves a loop, all of its uses in
the loop are one visit, because it is fast for the whole loop or not at all. A visit that overwrites the tensor completely is
one output move. Any other visit is an input move for its reads and, if it writes, also an output move for its writes.
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
    """Boundary after the visit's last step: ``start + 1``, except for loops and asynchronous operations."""
    is_output: bool
    """Whether it is an output move; otherwise it is an input move."""
    uses: tuple[int, ...]
    """Numbers of the uses that it decides, ascending; may be empty."""
    defines: bool = False
    """Whether it is an output move that overwrites the tensor completely, so that fast memory does not need the old content."""
    needs_content: bool = False
    """Whether it is an input move whose visit reads before it writes, so that Drop needs valid content in slow memory."""
    has_output: bool = False
    """Whether it is an input move with a later output move of the same visit; both are fast or both are slow."""
    released: int = 0
    """Input move: boundary from which a copy-in may start."""
    live_end: int = 0
    """Output move: end of the last visit that needs the written content; if none does, end of this visit."""
    copy_out_limit: int = 0
    """Output move: last boundary at which a copy-out may end, before the next write of the tensor."""
    is_final_output: bool = False
    """Whether it is an output move that writes an output of the program, which must not stay in fast memory alone."""
    is_updated: bool = False
    """Whether it is an output move whose content is read by the next visit that writes the tensor (an update in place)."""
    is_last: bool = False
    """Whether this is the last move of the tensor."""
    alias_group: int = -1
    """Number of the alias group, -1 for none. Infeasible states arise in alias groups only."""


@dataclass(frozen=True, slots=True)
class _Visit:
    """A visit: uses of one tensor that are decided together, in the steps from ``start`` to the boundary ``end``."""

    start: int
    end: int
    first_write: int
    """Step of the first write; the program's end if there is none."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    defines: bool
    needs_content: bool


def moves_of(problem: Problem) -> tuple[Move, ...]:
    """All moves in the order of play: by first step of the visit, then inputs before outputs, then by the least number of a use
    of the visit."""
    keyed_moves: list[tuple[tuple[int, bool, int], Move]] = []
    groups = 0
    for sequence in access_sequences(problem):
        visits = _visits(sequence)
        last = len(keyed_moves)
        for chain in _chains(visits, sequence.uniform):
            # States without a legal move arise only if a write must follow earlier decisions.
            is_group = sequence.uniform or any(visits[n].writes and not visits[n].defines for n in chain)
            for n in chain:
                visit = visits[n]
                for move in _moves(sequence, visits, n):
                    move = replace(move, alias_group=groups if is_group else -1)
                    keyed_moves.append(((visit.start, move.is_output, min(visit.reads + visit.writes)), move))
            groups += is_group
        if len(keyed_moves) > last:
            key, move = keyed_moves[-1]
            keyed_moves[-1] = (key, replace(move, is_last=True))
    return tuple(move for _, move in sorted(keyed_moves, key=lambda item: item[0]))


def _visits(sequence: TensorAccesses) -> list[_Visit]:
    """The visits of a tensor: accesses, joined if no residency may begin or end between them."""
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
    """The visits of one tensor in groups. A group begins with each visit that overwrites the tensor completely; if all uses
    must be fast or all slow (``uniform``), there is one group."""
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
                # A visit that defines the tensor may also read it later in a loop; a single move decides about both.
                uses=tuple(sorted(visit.reads + visit.writes)) if visit.defines else visit.writes,
                defines=visit.defines,
                live_end=visits[last_reader - 1].end,
                copy_out_limit=int(sequence.copy.prev[limit]),
                is_final_output=sequence.is_output and next_write is None,
                is_updated=next_write is not None and visits[next_write].needs_content,
            )
        )
    return result


#: Where new residencies are placed: at the lowest free offset (as in the paper); or large ones there, and others at the
#: highest.
Placing = Literal["lowest", "two_ended"]

#: A buffer is large if it takes at least one part in this many of fast memory.
LARGE = 16


class Action(IntEnum):
    """The ways to serve the uses of a move (section 4.2)."""

    COPY = 0
    """From fast memory, with a copy-in before them (input) or a copy-out after them (output)."""
    NOCOPY = 1
    """From fast memory, without a copy."""
    DROP = 2
    """From slow memory."""


class Slots:
    """Logical time of the copy channel, in slots: a slot is a step, or an outermost loop, in which no copy may begin or end.

    The supply of a slot is the least time in ps that it takes, whichever tensors are in fast memory.
    """

    def __init__(self, problem: Problem):
        free = Boundaries(problem.horizon, problem.loops).free
        self.boundaries: tuple[int, ...] = tuple(t for t in range(problem.horizon + 1) if free[t])
        """Boundaries of the slots, ascending; slot ``k`` is the steps ``[boundaries[k], boundaries[k + 1])``."""
        clock = [0, *accumulate(step.weight * step.floor_ps for step in problem.steps)]
        self.supply_ps: tuple[int, ...] = tuple(clock[end] - clock[start] for start, end in pairwise(self.boundaries))

    def number(self, boundary: int) -> int:
        """Number of the first slot that begins at ``boundary`` or later; the number of slots at the end."""
        return bisect_left(self.boundaries, boundary)


class Game:
    """The data of a game that no move changes: the problem, its moves, and its slots.

    Parameters
    ----------
    problem
        The problem. The game itself never stalls, has no preloads, and uses one copy channel.
    strict_copy_windows
        Whether a copy-in must end, and a copy-out must start, at the target time of its move (equation 6, taken literally).
    drop_backup
        Whether the game returns from an infeasible state to an earlier one, from which it can be finished (section 4.3.2);
        otherwise it is lost.
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
        #: Buffers of at least this number of bytes get the lowest free offset, smaller ones the highest. In this way small
        #: buffers, which come and go, do not break up the wide gaps that large ones need.
        self.large_bytes = -(-problem.capacity // LARGE) if placing == "two_ended" else 0
        sequences = access_sequences(problem)
        self.moves: tuple[Move, ...] = moves_of(problem)
        self.slots = Slots(problem)
        self.may_copy = tuple(sequence.may_copy for sequence in sequences)
        self.is_uniform = tuple(sequence.uniform for sequence in sequences)


def plan_of(
    problem: Problem, return_ps: int, residencies: Sequence[Residency], copies: Sequence[Copy], fast_uses: Sequence[int]
) -> Plan:
    """The plan of a finished game with this return in picoseconds; ``fast_uses``, the numbers of the uses that are fast, must
    be ascending."""
    return Plan(
        problem=problem.digest,
        objective=problem.all_slow_ps - return_ps,
        residencies=tuple(sorted(residencies, key=lambda item: (item.start, item.offset, item.tensor))),
        # Sorted by start, then by end: in this order the channel can make the copies.
        copies=tuple(sorted(copies, key=lambda item: (item.start, item.end, item.tensor))),
        fast_uses=tuple(fast_uses),
        program=problem.name,
        target=problem.target,
    )


@dataclass(frozen=True, slots=True)
class Point:
    """A point on the curve of best returns."""

    seconds: float
    """Seconds since the method began."""
    games: int
    """Number of finished games until then."""
    return_ps: int
    """Best return of these games, in picoseconds."""


class Best:
    """Keeps the best of the offered games, and the curve of best returns.

    Parameters
    ----------
    seconds_before, games_before
        Seconds and games of an earlier part of the same run, if it is resumed from a checkpoint.
    clock
        A monotonic clock in seconds.
    """

    def __init__(self, *, seconds_before: float = 0.0, games_before: int = 0, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock() - seconds_before
        self.games = games_before
        """Number of games offered so far."""
        self.return_ps: int | None = None
        """Best return (ps); None before the first game."""
        self.actions: NDArray[np.int8] | None = None
        """Actions of the best game, in order; None before the first game."""
        self.points: list[Point] = []
        """A point for each improvement, ascending in time and strictly ascending in return."""

    @property
    def seconds(self) -> float:
        """Seconds since the method began."""
        return self._clock() - self._began

    def offer(self, return_ps: int, actions: Sequence[int] | NDArray[np.integer], *, games: int = 1) -> bool:
        """Count ``games`` finished games, of which this is the best; returns whether it is the best of all so far.

        The actions are copied.
        """
        self.games += games
        if self.return_ps is not None and return_ps <= self.return_ps:
            return False
        self.return_ps = int(return_ps)
        self.actions = np.array(actions, np.int8)
        self.points.append(Point(self.seconds, self.games, self.return_ps))
        return True
