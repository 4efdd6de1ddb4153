"""Packings that differ as little as possible from an earlier plan: within a limit on the height, few buffers are moved.

The option ``--keep-close`` names the earlier plan, which may be for an earlier version of the problem. Buffers are matched with
those of the earlier plan by their ids. A *decision* is one choice that the plans are compared by, here the place of one buffer.
Offsets with few changes are found by an *ejection heuristic*, which moves buffers out of the way of others, and by an exact
model. Other kinds whose plans have offsets use these functions as well; there a *space* is one of several memories, such as a
bank or a tier. The functions raise no errors, except as stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.kernel.keep_close.earlier_plan import ByValues, needs_program
from stowplan.kernel.plan_changes import Budget, KeepClose
from stowplan.models.packing.overlaps import allows, separations
from stowplan.models.packing.plan import Plan, make_plan
from stowplan.models.packing.problem import Problem
from stowplan.parameters import Parameters, parameters


class Changes(ByValues):
    """Implements :class:`~stowplan.kernel.plan_changes.PlanChanges` for packing.

    There is one decision for each buffer: its offset. The decision's number is the buffer's position in the problem. The
    constructor raises UsageError as :meth:`match_values` does.
    """

    what = "buffer"

    def match_values(self, given: KeepClose) -> Sequence[int | None]:
        """The offset in bytes of each buffer in a plan of an earlier version of the problem, found by the buffer's id.

        It is None for a buffer that the earlier plan does not have.

        Raises
        ------
        UsageError
            The earlier plan does not name its buffers, and the earlier version of the problem is not given.
        """
        earlier: Plan = given.plan
        buffers = earlier.buffers or (given.problem.buffers if given.problem is not None else ())
        if len(buffers) != len(earlier.offsets):
            raise needs_program("packing")
        earlier_offsets = {buffer.id: offset for buffer, offset in zip(buffers, earlier.offsets, strict=True)}
        return [earlier_offsets.get(buffer.id) for buffer in self.problem.buffers]

    def values(self, plan: Any) -> Sequence[int]:
        """The offset in bytes of each buffer in a plan."""
        offsets: tuple[int, ...] = plan.offsets
        return offsets

    def plan(self, values: Sequence[Any], near: Any) -> Plan:
        """The plan with the offsets ``values`` in bytes, which is not checked; ``near`` is not used."""
        problem = self.problem
        return msgspec.structs.replace(make_plan(problem, values), buffers=problem.buffers, name=problem.name)

    def coupled(self, plan: Any) -> Callable[[int], Iterable[int]]:
        """Returns a function from a buffer to the other buffers that occupy bytes of its earlier place in ``plan``."""
        return colliding(buffer_boxes(self.problem, self.earlier), buffer_boxes(self.problem, plan.offsets))

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Plan]:
        """Yields plans with fewer and fewer changed offsets, whose height is at most ``ceiling`` bytes and within the capacity.

        With reuse penalties, only the capacity limits the height.
        """
        # With reuse penalties, the ceiling is a cost and says nothing about heights.
        limits = (self.problem.capacity, None if self.problem.penalties else ceiling)
        problem = with_capacity(self.problem, min(limit for limit in limits if limit is not None))
        for offsets in near_offsets(problem, self.earlier, plan.offsets, budget):
            yield self.plan(offsets, plan)


class KeepCloseParameters(Parameters, frozen=True):
    """Parameters of the search for plans close to an earlier one."""

    exact_buffers: int = 1500
    """Number of buffers below which the exact model is solved."""
    rounds: int = 8
    """Number of placements, divided by the number of buffers, after which the ejection heuristic gives up."""
    most_buffers: int = 6000
    """Number of buffers below which the ejection heuristic runs, because it has a list of the neighbours of every buffer."""


PARAMS = parameters(KeepCloseParameters, __name__)


class Boxes(NamedTuple):
    """Rectangles of bytes and time that buffers occupy, as int64 arrays of one length."""

    owner: NDArray[np.int64]
    """Number of the decision that places the box, such as the number of the buffer."""
    start: NDArray[np.int64]
    """First moment of the box."""
    end: NDArray[np.int64]
    """First moment after the box."""
    low: NDArray[np.int64]
    """First byte of the box."""
    high: NDArray[np.int64]
    """First byte after the box."""


def boxes(rows: Iterable[tuple[int, int, int, int, int]]) -> Boxes:
    """Boxes from rows (owner, start, end, low, high), which have the meaning of the fields of :class:`Boxes`."""
    table = np.array(list(rows), np.int64).reshape(-1, 5)
    return Boxes(*(table[:, column].copy() for column in range(5)))


def buffer_boxes(problem: Problem, offsets: Sequence[int | None]) -> Boxes:
    """The boxes of a problem's buffers at these offsets; buffers whose offset is None are left out."""
    rows = problem.spans
    has = np.array([offset is not None for offset in offsets], bool)[rows.owner]
    owner = rows.owner[has]
    low = np.array([offsets[number] for number in owner.tolist()], np.int64)
    return Boxes(owner, rows.start[has], rows.end[has], low, low + rows.size[owner])


def colliding(earlier: Boxes, later: Boxes) -> Callable[[int], list[int]]:
    """Returns a function from a decision to the other decisions whose boxes in ``later`` intersect its boxes in ``earlier``.

    The function returns their numbers in ascending order; the list is empty if the decision has no box in ``earlier``.
    """
    order = np.argsort(earlier.owner, kind="stable")
    sorted_owners = earlier.owner[order]

    def of(decision: int) -> list[int]:
        first, last = np.searchsorted(sorted_owners, [decision, decision + 1])
        numbers: set[int] = set()
        for at in order[first:last]:
            meet = (later.start < earlier.end[at]) & (earlier.start[at] < later.end)
            meet &= (later.low < earlier.high[at]) & (earlier.low[at] < later.high)
            numbers.update(later.owner[meet].tolist())
        return sorted(numbers - {decision})

    return of


def near_offsets(
    problem: Problem, earlier: Sequence[int | None], current: Sequence[int], budget: Budget, parts: int = 1
) -> Iterator[tuple[int, ...]]:
    """Yield lists of offsets in bytes. Each has fewer offsets that differ from the earlier ones than all lists before it.

    The first has fewer than ``current``. Nothing is yielded if ``current`` differs nowhere, or if no better offsets are found.

    Parameters
    ----------
    problem
        A problem whose capacity, in bytes, limits the height. Without a capacity, AssertionError is raised.
    earlier
        The earlier offset of each buffer in bytes; None for a buffer without one.
    current
        Valid offsets in bytes to start from.
    budget
        Limits of time and work.
    parts
        Number of packing problems that one plan consists of. They share the budget.
    """

    def moved(offsets: Sequence[int]) -> int:
        return sum(before is not None and before != at for before, at in zip(earlier, offsets, strict=True))

    best = tuple(current)
    if not moved(best):
        return
    if len(problem.buffers) < PARAMS.most_buffers:
        placed = offsets_by_ejection(problem, earlier, budget.is_over)
        if placed is not None and moved(placed) < moved(best):
            yield placed
            best = placed
    limits = budget.solver_limits(parts) if len(problem.buffers) < PARAMS.exact_buffers and moved(best) else None
    if limits is None:
        return
    from stowplan.models.packing.cpsat import solve_closest

    hint = Plan(problem=problem.digest, objective=0, offsets=best)
    outcome = solve_closest(problem, earlier, hint=hint, **limits)
    if outcome.plan is not None and moved(outcome.plan.offsets) < moved(best):
        yield outcome.plan.offsets


#: The number of a space (a tier or a bank), and an offset in bytes in it.
Place = tuple[int, int]


def near_places(
    places: Sequence[Place],
    earlier: Sequence[Place | None],
    spaces: int,
    packed_in: Callable[[int, list[int]], Problem],
    budget: Budget,
) -> Iterator[list[Place]]:
    """Yield lists of places. Each leaves every decision in its space, and has fewer changed offsets than the list before.

    The same list object is yielded every time and changes between yields, so a caller that keeps one must copy it. Raises
    AssertionError if a problem of ``packed_in`` has no capacity.

    Parameters
    ----------
    places
        A valid place for each decision.
    earlier
        The earlier place of each decision; None for a decision without one.
    spaces
        Number of spaces; the spaces are numbered from 0.
    packed_in
        Function of a space and the decisions in it. It returns a packing problem whose last buffers are those of the decisions;
        buffers with fixed offsets may precede them.
    budget
        Limits of time and work.
    """
    current_places = list(places)
    for space in range(spaces):
        inside = [number for number, place in enumerate(current_places) if place[0] == space]
        if not inside:
            continue
        problem = packed_in(space, inside)
        others = len(problem.buffers) - len(inside)
        earlier_offsets = [
            place[1] if (place := earlier[number]) is not None and place[0] == space else None for number in inside
        ]
        current = [
            *(buffer.offset or 0 for buffer in problem.buffers[:others]),
            *(current_places[number][1] for number in inside),
        ]
        for offsets in near_offsets(problem, [*[None] * others, *earlier_offsets], current, budget, spaces):
            for number, offset in zip(inside, offsets[others:], strict=True):
                current_places[number] = space, offset
            yield current_places


def stacked_boxes(capacities: Iterable[int], rows: Iterable[tuple[int, int, int, Place, int]]) -> Boxes:
    """Boxes from rows (owner, start, end, place, size in bytes). Spaces, with their ``capacities`` in bytes, are put one above
    the other.

    Boxes of different spaces therefore never meet, provided that they lie within the capacities.
    """
    base = [0, *accumulate(capacities)]
    return boxes(
        (owner, start, end, base[space] + offset, base[space] + offset + size)
        for owner, start, end, (space, offset), size in rows
    )


def with_capacity(problem: Problem, ceiling: int) -> Problem:
    """The problem with the capacity ``ceiling`` in bytes, or the size of its largest buffer if that is more."""
    most = max((buffer.size for buffer in problem.buffers), default=0)
    return msgspec.structs.replace(problem, capacity=max(0, most, min(ceiling, _HIGHEST)))


#: Largest capacity that :func:`with_capacity` sets, in bytes.
_HIGHEST = (1 << 61) - 1


def offsets_by_ejection(
    problem: Problem, earlier: Sequence[int | None], should_stop: Callable[[], bool]
) -> tuple[int, ...] | None:
    """Offsets in bytes within the capacity, found by an ejection heuristic; None if it finds no place for some buffer.

    At first, buffers get their fixed or earlier offsets, unless they collide with a buffer that has its offset already. Fixed
    buffers come first, then those with the largest size times life. Each remaining buffer then goes where it costs least to
    eject the buffers in its way, which are placed anew in turn. The cost of ejecting a buffer is 2 at first, or 1 if it has no
    earlier offset, and grows by half each time that the buffer is ejected.

    Parameters
    ----------
    problem
        A problem with a capacity. Without one, AssertionError is raised.
    earlier
        The earlier offset of each buffer in bytes; None for a buffer without one.
    should_stop
        Function that says whether to give up; the result is then None.
    """
    assert problem.capacity is not None
    ceiling, buffers = problem.capacity, problem.buffers
    neighbours = _neighbours(problem, should_stop)
    if neighbours is None:
        return None
    distances = separations(problem)
    placed_at: list[int | None] = [None] * len(buffers)
    cost = [1.0 + (before is not None) for before in earlier]

    def obstacles(number: int, offset: int) -> list[int]:
        """The placed buffers that would collide with a buffer at an offset."""
        end = offset + buffers[number].size
        return [
            other
            for other in neighbours[number]
            if (place := placed_at[other]) is not None
            and place < end
            and offset < place + buffers[other].size
            and not allows(distances, number, other, offset, place)
        ]

    order = sorted(
        range(len(buffers)),
        key=lambda number: (
            buffers[number].offset is None,
            -buffers[number].size * (buffers[number].upper - buffers[number].lower),
            number,
        ),
    )
    unplaced = []
    for number in order:
        buffer, before = buffers[number], earlier[number]
        preferred = buffer.offset if buffer.offset is not None else before
        fits = preferred is not None and 0 <= preferred <= ceiling - buffer.size and preferred % buffer.alignment == 0
        if fits and preferred is not None and not obstacles(number, preferred):
            placed_at[number] = preferred
        else:
            unplaced.append(number)
    unplaced.reverse()
    for _ in range(PARAMS.rounds * len(buffers)):
        if not unplaced:
            return tuple(place or 0 for place in placed_at)
        if should_stop():
            return None
        number = unplaced.pop()
        best: tuple[float, int, list[int]] | None = None
        for offset in _places(problem, number, neighbours[number], placed_at, ceiling):
            in_the_way = obstacles(number, offset)
            if any(buffers[other].offset is not None for other in in_the_way):
                continue
            ejection_cost = sum(cost[other] for other in in_the_way)
            if best is None or ejection_cost < best[0]:
                best = ejection_cost, offset, in_the_way
            if not ejection_cost:
                break
        if best is None:
            return None
        placed_at[number] = best[1]
        # The cost of ejecting a buffer grows each time, so that the same buffers do not eject each other for ever.
        for ejected in best[2]:
            placed_at[ejected] = None
            cost[ejected] *= 1.5
        unplaced += sorted(best[2], key=lambda other: buffers[other].size)
    return None


def _places(problem: Problem, number: int, neighbours: list[int], placed_at: list[int | None], ceiling: int) -> list[int]:
    """The offsets in bytes to try for a buffer, ascending; empty if it does not fit into ``ceiling`` bytes.

    They are the lowest and the highest possible offset, and the offsets right above and right below each placed neighbour. A
    buffer with a fixed offset has only this one.
    """
    buffer = problem.buffers[number]
    if buffer.offset is not None:
        return [buffer.offset] if buffer.offset + buffer.size <= ceiling else []
    offsets = {0, (ceiling - buffer.size) // buffer.alignment * buffer.alignment}
    for other in neighbours:
        place = placed_at[other]
        if place is not None:
            top, below = place + problem.buffers[other].size, place - buffer.size
            offsets.add(top + -top % buffer.alignment)
            offsets.add(below - below % buffer.alignment)
    return sorted(offset for offset in offsets if 0 <= offset <= ceiling - buffer.size)


def _neighbours(problem: Problem, should_stop: Callable[[], bool]) -> list[list[int]] | None:
    """For each buffer with bytes, the other buffers with bytes that are live at some moment of its life; None if stopped."""
    spans = problem.spans
    neighbours: list[set[int]] = [set() for _ in problem.buffers]
    for at, owner in enumerate(spans.owner.tolist()):
        if at % 256 == 0 and should_stop():
            return None
        if spans.size[owner]:
            meet = (spans.start < spans.end[at]) & (spans.start[at] < spans.end) & (spans.size[spans.owner] > 0)
            neighbours[owner].update(spans.owner[meet].tolist())
    return [sorted(near - {number}) for number, near in enumerate(neighbours)]
