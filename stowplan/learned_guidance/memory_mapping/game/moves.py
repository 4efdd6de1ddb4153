"""The moves of MMapGame: what is decided, in which order, and what about each move no state changes.

The paper's *buffer* is one use of a tensor by an instruction, and each is one move (Wang et al. 2023, section 4.2). Here a
move belongs to a *visit*: one step's use of a tensor, or all uses of a tensor in a loop that it enters or leaves, because there
it is fast for the whole loop or not at all. A visit that overwrites the tensor afresh is one output move. Any other visit is an
input move for its reads, and where it writes also an output move for its writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences
from stowplan.models.memory_mapping.problem import Problem


@dataclass(frozen=True, slots=True)
class Move:
    """One decision: how some uses of one tensor are served."""

    tensor: int
    start: int
    """First step of the visit: the paper's target time of an input."""
    end: int
    """Boundary after the visit's last step; ``start + 1`` but for loops."""
    is_output: bool
    uses: tuple[int, ...]
    """Numbers of the uses it decides, ascending; may be empty."""
    defines: bool = False
    """Output move that overwrites the tensor afresh: fast memory needs nothing of what was there before."""
    needs_content: bool = False
    """Input move whose visit reads before it writes, so that Drop needs a valid slow copy."""
    has_output: bool = False
    """Input move with an output move of the same visit to come; both are fast or both slow."""
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
