"""Initiation intervals (II) that limits on delays allow, and cycles of values that refute the other IIs.

The *delay* of a value is the time that it waits for its consumer. The times of a producer and a consumer differ by the latency,
the clocks of the links and the delay. The *distance* of a value is the number of iterations from its producer to its consumer.
With a limit on delays, the difference is therefore bounded from both sides:

    low <= time(consumer) + II · distance - time(producer) <= high

Consider a cycle of values, each of which may be followed from producer to consumer or from consumer to producer. Around such a
cycle, these bounds can contradict each other. The contradiction is a proof that holds for all tiles and slots, and the
algorithm of Bellman and Ford finds one. If the distances of the cycle cancel, it refutes every II; otherwise it refutes all IIs
below some number or all IIs above some number.

If no delays are allowed at all, there is a second proof, by parity. On many machines the tiles have two colours such that links
take an even number of clocks between tiles of the same colour and an odd number between different colours. An example is a row
whose links take one clock for each tile. Modulo 2, time plus colour of a consumer is then time plus colour of the producer plus
the latency, on whatever tiles they are. This must be consistent around every cycle.

The argument ``structure`` is the :class:`~stowplan.models.modulo_scheduling.structure.Structure` of a problem. A *group* in it
is a set of instructions that must share a tile. A *pin* fixes the tile, time or slot of an instruction. Nothing here raises an
error for a valid problem.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Precedence, Structure

#: A lower bound on the difference of two times: (number, source, target, least clocks from source to target).
Way = tuple[int, int, int, int]

#: Largest number of values that are named in a reason.
_NAMED = 12


class OpenIIs(NamedTuple):
    """The IIs that are not refuted, and the reasons why all other IIs are refuted."""

    iis: tuple[int, ...]
    """The IIs that are not refuted, ascending."""
    reasons: tuple[str, ...]
    """The reasons, each as text for people; empty if limits on delays refute no II."""


class _Bound(NamedTuple):
    """A bound on the difference of two times: time(target) - time(source) >= clocks - II · distance.

    Source and target are numbers of instructions; the number of all instructions represents clock 0.
    """

    source: int
    target: int
    clocks: int
    distance: int
    value: Precedence | None
    """The value that the bound comes from; None for pins."""
    is_upper: bool = False
    """Whether the bound comes from the limit on the delay, and not from the arrival of the value."""


def positive_cycle(count: int, ways: Sequence[Way]) -> list[int]:
    """Find a cycle whose weights have a positive sum (Bellman and Ford).

    Parameters
    ----------
    count
        Number of nodes, which are numbered from 0.
    ways
        Edges (number, source, target, weight).

    Returns
    -------
    list of int
        Numbers of the edges of the cycle, the last edge first; empty if there is no such cycle.
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
    """Returns the IIs from ``least`` up to the depth of the spoke RAM that limits on delays do not refute.

    The *spoke RAM* of a tile has one entry for each clock of an interval. If delays are unlimited, the result has all IIs of
    this range. It is empty if ``least`` is larger than the depth.
    """
    low, high = least, problem.machine.spoke_depth
    limit = problem.rules.max_delay
    if not problem.limits_waits or low > high:
        return OpenIIs(tuple(range(low, high + 1)), ())
    bounds = _bounds(structure, limit)
    reasons: dict[bool, str] = {}
    for from_below in (False, True):
        while low <= high:
            cycle = _contradiction(structure.count, bounds, low if from_below else high)
            if not cycle:
                break
            clocks, distance = sum(bound.clocks for bound in cycle), sum(bound.distance for bound in cycle)
            reason = _describe(structure, cycle)
            # The cycle refutes every II with clocks > II * distance: all IIs, all below some number, or all above some number.
            if distance == 0:
                return OpenIIs((), (reason,))
            if distance > 0:
                low = -(-clocks // distance)
                reasons[True] = f"initiation intervals below {low} are too short ({reason})"
            else:
                high = -clocks // -distance
                too_long = f"initiation intervals above {high} are" if high > 0 else "all initiation intervals are"
                reasons[False] = f"{too_long} too long ({reason})"
    if low > high and least > 1 and True not in reasons:
        reasons[True] = f"initiation intervals below {least} have too few slots"
    iis = tuple(range(low, high + 1))
    odd_reasons = {parity: _odd_cycle(structure, parity) for parity in (0, 1)} if limit == 0 else {}
    open_ones = tuple(ii for ii in iis if odd_reasons.get(ii % 2) is None)
    if iis and not open_ones:
        both = [odd_reasons[parity] for parity in sorted({ii % 2 for ii in iis})]
        return OpenIIs((), (*reasons.values(), *dict.fromkeys(reason for reason in both if reason is not None)))
    return OpenIIs(open_ones, tuple(reasons[side] for side in sorted(reasons, reverse=True)))


def _bounds(structure: Structure, limit: int | None) -> list[_Bound]:
    """All bounds on differences of times. The node ``structure.count`` represents clock 0."""
    problem, latency = structure.problem, structure.problem.latencies
    spans: dict[tuple[int, int], tuple[int, int] | None] = {}
    bounds = []
    for precedence in structure.precedences:
        one, two = structure.group[precedence.source], structure.group[precedence.target]
        if precedence.clocks is None:
            if (one, two) not in spans:
                spans[one, two] = hop_span(structure, one, two)
            span = spans[one, two]
            if span is None:
                # There are no links between their tiles, which other constraints report.
                continue
            least, most = span
            high, distance = latency[precedence.source] + most, precedence.distance
            ends = precedence.target, precedence.source
            if limit is not None:
                bounds.append(_Bound(*ends, -high - limit, -distance, precedence, is_upper=True))
            if problem.machine.registers:
                # In a register, a value waits for less than an interval.
                bounds.append(_Bound(*ends, 1 - high, 1 - distance, precedence, is_upper=True))
        else:
            least = precedence.clocks
        bounds.append(
            _Bound(precedence.source, precedence.target, latency[precedence.source] + least, precedence.distance, precedence)
        )
    origin = structure.count
    pinned = {problem.number[pin.instruction]: pin.time for pin in problem.pins if pin.time is not None}
    for number, time in pinned.items():
        bounds.append(_Bound(number, origin, -time, 0, None))
        bounds.append(_Bound(origin, number, time, 0, None))
    if pinned:
        bounds += [_Bound(origin, number, 0, 0, None) for number in range(structure.count)]
    return bounds


def hop_span(structure: Structure, one: int, two: int) -> tuple[int, int] | None:
    """Returns the smallest and the largest number of clocks from an allowed tile of group ``one`` to an allowed tile of group
    ``two``. Both are 0 if the groups are the same. The result is None if no links lead there."""
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
    """Bounds around a cycle that contradict each other at an II; empty if all bounds can hold."""
    arcs = [(at, bound.source, bound.target, bound.clocks - ii * bound.distance) for at, bound in enumerate(bounds)]
    # The function returns the edges against the direction of the cycle, so they are reversed.
    return [bounds[at] for at in reversed(positive_cycle(count + 1, arcs))]


def farthest(problem: Problem) -> int:
    """The largest number of clocks that a value needs over links from one tile to another; 0 without links."""
    return max((clocks for row in problem.hops for clocks in row if clocks is not None), default=0)


def _describe(structure: Structure, cycle: Sequence[_Bound]) -> str:
    """A sentence that says which bounds contradict each other, and by how many clocks."""
    ids = [instruction.id for instruction in structure.problem.instructions]
    arrivals = [bound for bound in cycle if bound.value is not None and not bound.is_upper]
    limits = [bound for bound in cycle if bound.value is not None and bound.is_upper]
    clocks, distance = sum(bound.clocks for bound in cycle), sum(bound.distance for bound in cycle)
    parts = []
    if arrivals:
        parts.append(f"{_paths_text(ids, arrivals)}: {sum(arrival.clocks for arrival in arrivals)} clocks or more")
    if limits:
        most, delay = -sum(bound.clocks for bound in limits), structure.problem.rules.max_delay
        waits = sum(bound.distance + bound.value.distance for bound in limits if bound.value is not None)
        text = f"{most} clocks at most" if not waits else f"{most} clocks and {waits} interval(s) at most"
        names = [f"max_delay {delay}"] if delay is not None else []
        names += ["registers"] if waits else []
        parts.append(f"{_paths_text(ids, reversed(limits))}: {text} with {' and '.join(names)}")
    if any(bound.value is None for bound in cycle):
        parts.append("between fixed times")
    reason = "; ".join(parts)
    problem = structure.problem
    if distance == 0 and limits and problem.machine.registers:
        reason += "; put instructions into the short way that pass the value on"
    elif distance == 0 and limits:
        # The largest number of clocks that one more instruction on the way can add.
        more = problem.machine.latency + farthest(problem) + (problem.rules.max_delay or 0)
        reason += f"; a value would wait {clocks} clocks too long: put "
        reason += f"at least {-(-clocks // more)} instruction(s) into the short way that pass the value on "
        reason += "(with balance=yes that is done for you)"
    return reason


def _paths_text(ids: Sequence[str], bounds: Iterable[_Bound]) -> str:
    """Values as text; those that follow each other are joined: ``a -> b -> c and d -> e``.

    ``(+1)`` after an instruction means that it consumes the value in the next iteration.
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
    return " and ".join(" -> ".join(_shortened(chain)) for chain in chains)


def _shortened(chain: list[str]) -> list[str]:
    """The chain, without its middle part if it is long."""
    return chain if len(chain) <= _NAMED else [*chain[: _NAMED // 2], "...", *chain[-_NAMED // 2 :]]


def two_colours(structure: Structure) -> list[int] | None:
    """Returns a colour, 0 or 1, for each tile. Links take an odd number of clocks between tiles of different colours, and an
    even number between tiles of the same colour. The result is None if there are no such colours."""
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
    """The reason why no II with this parity (0: even, 1: odd) is possible without delays; None if there is no such reason."""
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
                    return _odd_cycle_reason(structure, _closed_cycle(by, precedence), parity)
    return None


def _closed_cycle(by: dict[int, Precedence], last: Precedence) -> list[Precedence]:
    """The cycle that the value ``last`` closes in a tree, in which ``by`` has the edge to the parent of each node."""

    def to_root(number: int) -> list[Precedence]:
        """The edges from a node to the root of its tree."""
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


def _odd_cycle_reason(structure: Structure, cycle: Sequence[Precedence], parity: int) -> str:
    """The sentence that says why a cycle refutes all IIs with this parity."""
    ids = [instruction.id for instruction in structure.problem.instructions]
    named = ", ".join(f"{ids[value.source]} -> {ids[value.target]}" for value in cycle[:_NAMED])
    named += ", ..." if len(cycle) > _NAMED else ""
    which = "" if not any(value.distance for value in cycle) else f" at {'odd' if parity else 'even'} initiation intervals"
    return (
        f"the values {named} make a cycle whose clocks add up to an odd number{which}, and no places of its instructions do "
        "without a delay: pass one of them on by another instruction, or allow delays"
    )
