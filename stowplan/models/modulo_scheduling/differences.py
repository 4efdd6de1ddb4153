"""Initiation intervals (II) that differences of time allow where delays are limited, and the values that refute the others.

Between producer and consumer lie the latency, the clocks of the links and the delay. So with a limit on delays the difference
of their times is bounded from both sides: low <= time(target) + II · distance - time(source) <= high. Around a cycle of values,
each taken along or against its direction, these bounds may contradict each other. Such a cycle is a proof that holds for all
places and slots; Bellman and Ford find one. A cycle whose distances cancel refutes every II, any other all small or all large
ones.

Without delays there is a second proof. On many machines the clocks of all links are even between tiles of one colour and odd
between the two colours, as on a row whose links take a clock a tile. Then time plus colour of producer and consumer differ by
the latency, modulo 2, wherever they stand; and that must agree around every cycle.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Precedence, Structure

#: A bound on the difference of two times: (number, source, target, least clocks from source to target).
Way = tuple[int, int, int, int]

#: Values named in a reason at most.
_NAMED = 12


class OpenIIs(NamedTuple):
    """IIs that are not refuted, ascending, and why others are."""

    iis: tuple[int, ...]
    reasons: tuple[str, ...]


class _Bound(NamedTuple):
    """time(target) - time(source) >= clocks - II · distance."""

    source: int
    target: int
    clocks: int
    distance: int
    value: Precedence | None
    """What says so; None for pins."""
    is_upper: bool = False
    """Whether the limit of delays says so, and not when the value arrives."""


def positive_cycle(count: int, ways: Sequence[Way]) -> list[int]:
    """Numbers of edges of a cycle whose weights are positive in sum, empty where there is none (Bellman and Ford).

    Edges are (number, source, target, weight) between nodes 0 to ``count`` - 1.
    """
    late, by = [0] * count, [-1] * count
    changed = -1
    for _ in range(count + 1):
        changed = -1
        for place, (_, source, target, weight) in enumerate(ways):
            if late[source] + weight > late[target]:
                late[target], by[target], changed = late[source] + weight, place, target
        if changed < 0:
            return []
    for _ in range(count):
        changed = ways[by[changed]][1]
    cycle, at = [], changed
    while True:
        cycle.append(ways[by[at]][0])
        at = ways[by[at]][1]
        if at == changed:
            return cycle


def open_iis(problem: Problem, structure: Structure, least: int = 1) -> OpenIIs:
    """IIs from ``least`` up to the depth of the spoke RAM that differences of time do not refute; all where delays are free."""
    low, high = least, problem.machine.spoke_depth
    limit = problem.rules.max_delay
    if limit is None or low > high:
        return OpenIIs(tuple(range(low, high + 1)), ())
    bounds = _bounds(structure, limit)
    reasons: dict[bool, str] = {}
    for from_below in (False, True):
        while low <= high:
            cycle = _contradiction(structure.count, bounds, low if from_below else high)
            if not cycle:
                break
            clocks, distance = sum(bound.clocks for bound in cycle), sum(bound.distance for bound in cycle)
            told = _describe(structure, cycle)
            # What is refuted is every II with clocks > II * distance: all, all below some, or all above some.
            if distance == 0:
                return OpenIIs((), (told,))
            if distance > 0:
                low = -(-clocks // distance)
                reasons[True] = f"initiation intervals below {low} are too short ({told})"
            else:
                high = -clocks // -distance
                too_long = f"initiation intervals above {high} are" if high > 0 else "all initiation intervals are"
                reasons[False] = f"{too_long} too long ({told})"
    if low > high and least > 1 and True not in reasons:
        reasons[True] = f"initiation intervals below {least} have too few slots"
    iis = tuple(range(low, high + 1))
    told_odd = {parity: _odd_cycle(structure, parity) for parity in (0, 1)} if limit == 0 else {}
    kept = tuple(ii for ii in iis if told_odd.get(ii % 2) is None)
    if iis and not kept:
        both = [told_odd[parity] for parity in sorted({ii % 2 for ii in iis})]
        return OpenIIs((), (*reasons.values(), *dict.fromkeys(reason for reason in both if reason is not None)))
    return OpenIIs(kept, tuple(reasons[side] for side in sorted(reasons, reverse=True)))


def _bounds(structure: Structure, limit: int) -> list[_Bound]:
    """All bounds on differences of times; number ``structure.count`` stands for clock 0."""
    problem, latency = structure.problem, structure.problem.latencies
    spans: dict[tuple[int, int], tuple[int, int] | None] = {}
    bounds = []
    for order in structure.precedences:
        one, two = structure.group[order.source], structure.group[order.target]
        if order.clocks is None:
            if (one, two) not in spans:
                spans[one, two] = hop_span(structure, one, two)
            span = spans[one, two]
            if span is None:
                # No links at all: reach says why.
                continue
            least, most = span
            high = latency[order.source] + most + limit
            bounds.append(_Bound(order.target, order.source, -high, -order.distance, order, is_upper=True))
        else:
            least = order.clocks
        bounds.append(_Bound(order.source, order.target, latency[order.source] + least, order.distance, order))
    origin = structure.count
    pinned = {problem.number[pin.instruction]: pin.time for pin in problem.pins if pin.time is not None}
    for number, time in pinned.items():
        bounds.append(_Bound(number, origin, -time, 0, None))
        bounds.append(_Bound(origin, number, time, 0, None))
    if pinned:
        bounds += [_Bound(origin, number, 0, 0, None) for number in range(structure.count)]
    return bounds


def hop_span(structure: Structure, one: int, two: int) -> tuple[int, int] | None:
    """Least and most clocks from where a group may stand to where another may; None where there is no link."""
    if one == two:
        return 0, 0
    hops = structure.problem.hops
    apart = tuple(sorted((one, two))) in structure.apart
    clocks = [
        way
        for tile in structure.allowed[one]
        for other in structure.allowed[two]
        if (way := hops[tile][other]) is not None and not (apart and tile == other)
    ]
    return (min(clocks), max(clocks)) if clocks else None


def _contradiction(count: int, bounds: Sequence[_Bound], ii: int) -> list[_Bound]:
    """Bounds around a cycle that contradict each other at an II; none where all can hold."""
    ways = [(at, bound.source, bound.target, bound.clocks - ii * bound.distance) for at, bound in enumerate(bounds)]
    # A cycle is found against its direction: what it returns is turned.
    return [bounds[at] for at in reversed(positive_cycle(count + 1, ways))]


def farthest(problem: Problem) -> int:
    """Most clocks of a value on its way."""
    return max((clocks for row in problem.hops for clocks in row if clocks is not None), default=0)


def _describe(structure: Structure, cycle: Sequence[_Bound]) -> str:
    """What contradicts what, and by how much."""
    ids = [instruction.id for instruction in structure.problem.instructions]
    arrivals = [bound for bound in cycle if bound.value is not None and not bound.is_upper]
    limits = [bound for bound in cycle if bound.value is not None and bound.is_upper]
    clocks, distance = sum(bound.clocks for bound in cycle), sum(bound.distance for bound in cycle)
    parts = []
    if arrivals:
        parts.append(f"{_ways(ids, arrivals)}: {sum(arrival.clocks for arrival in arrivals)} clocks or more")
    if limits:
        most = -sum(bound.clocks for bound in limits)
        parts.append(
            f"{_ways(ids, reversed(limits))}: {most} clocks at most with max_delay {structure.problem.rules.max_delay}"
        )
    if any(bound.value is None for bound in cycle):
        parts.append("between fixed times")
    told = "; ".join(parts)
    if distance == 0 and limits:
        problem = structure.problem
        # What one more instruction on the way adds at most.
        more = problem.machine.latency + farthest(problem) + (problem.rules.max_delay or 0)
        told += f"; a value would wait {clocks} clocks too long: put "
        told += f"at least {-(-clocks // more)} instruction(s) into the short way that pass the value on "
        told += "(with balance=yes that is done for you)"
    return told


def _ways(ids: Sequence[str], bounds: Iterable[_Bound]) -> str:
    """Values one after the other, those that follow each other joined: ``a -> b -> c and d -> e``.

    ``(+1)`` follows what takes a value in the next iteration.
    """
    values = [bound.value for bound in bounds if bound.value is not None]
    first = next((at for at, value in enumerate(values) if values[at - 1].target != value.source), 0)
    chains: list[list[str]] = []
    last = None
    for value in values[first:] + values[:first]:
        if value.source != last:
            chains.append([ids[value.source]])
        chains[-1].append(ids[value.target] + (f" (+{value.distance})" if value.distance else ""))
        last = value.target
    return " and ".join(" -> ".join(_short(chain)) for chain in chains)


def _short(chain: list[str]) -> list[str]:
    return chain if len(chain) <= _NAMED else [*chain[: _NAMED // 2], "...", *chain[-_NAMED // 2 :]]


def two_colours(structure: Structure) -> list[int] | None:
    """A colour, 0 or 1, for each tile: clocks of links are odd between different ones only. None where there are no such."""
    hops = structure.problem.hops
    colour: dict[int, int] = {}
    tiles = range(len(hops))
    for first in tiles:
        waiting = [] if first in colour else [first]
        colour.setdefault(first, 0)
        while waiting:
            tile = waiting.pop()
            for other in tiles:
                for clocks in (hops[tile][other], hops[other][tile]):
                    if clocks is None:
                        continue
                    expected = (colour[tile] + clocks) % 2
                    if other not in colour:
                        colour[other] = expected
                        waiting.append(other)
                    elif colour[other] != expected:
                        return None
    return [colour[tile] for tile in tiles]


def _odd_cycle(structure: Structure, parity: int) -> str | None:
    """Why no II of a parity will do without delays; None where that shows no reason."""
    problem = structure.problem
    if two_colours(structure) is None:
        return None
    near: dict[int, list[tuple[int, int, Precedence]]] = defaultdict(list)
    for precedence in structure.precedences:
        if precedence.clocks is None:
            odd = (problem.latencies[precedence.source] + parity * precedence.distance) % 2
            near[precedence.source].append((precedence.target, odd, precedence))
            near[precedence.target].append((precedence.source, odd, precedence))
    value: dict[int, int] = {}
    by: dict[int, Precedence] = {}
    for first in range(structure.count):
        if first in value:
            continue
        value[first] = 0
        waiting = deque([first])
        while waiting:
            number = waiting.popleft()
            for other, odd, precedence in near[number]:
                if other not in value:
                    value[other] = value[number] ^ odd
                    by[other] = precedence
                    waiting.append(other)
                elif value[other] != value[number] ^ odd:
                    return _tell_odd(structure, _around(by, precedence), parity)
    return None


def _around(by: dict[int, Precedence], last: Precedence) -> list[Precedence]:
    """The cycle that a value closes in a tree."""

    def to_root(number: int) -> list[Precedence]:
        around = []
        while number in by:
            precedence = by[number]
            around.append(precedence)
            number = precedence.source if precedence.target == number else precedence.target
        return around

    one, two = to_root(last.source), to_root(last.target)
    while one and two and one[-1] is two[-1]:
        one.pop()
        two.pop()
    return [last, *two, *reversed(one)]


def _tell_odd(structure: Structure, cycle: Sequence[Precedence], parity: int) -> str:
    ids = [instruction.id for instruction in structure.problem.instructions]
    named = ", ".join(f"{ids[value.source]} -> {ids[value.target]}" for value in cycle[:_NAMED])
    named += ", ..." if len(cycle) > _NAMED else ""
    which = "" if not any(value.distance for value in cycle) else f" at {'odd' if parity else 'even'} initiation intervals"
    return (
        f"the values {named} make a cycle whose clocks add up to an odd number{which}, and no places of its instructions do "
        "without a delay: pass one of them on by another instruction, or allow delays"
    )
