"""Reads problems of dsa-solver (github.com/tonibohnlein/dsa-solver, schema v1) as packing problems, and writes its solutions.

Dsa-solver is a solver of dynamic storage allocation, which stowplan calls packing (:mod:`stowplan.models.packing.problem`). A
file has several *pools*, which are separate memories. No rule that is read here crosses pools. Therefore all pools become one
packing problem, in which the buffers of one pool are live before the buffers of the next. Rules of dsa-solver that packing does
not have are expressed by rules of packing:

* A range that a pool reserves becomes a buffer at a fixed offset. If a pool is smaller than the largest one, the bytes that it
  lacks also become such a buffer.
* Two buffers that may never share bytes (``separations``) are live together at an additional moment, after all other moments.
  One moment can serve many pairs: a set of buffers may be live at it if every two of them either have this rule or are live
  together at some other moment as well.

If a file asks for the lowest cost of reuse, its costs become the *reuse penalties* of the packing problem: the cost of two
buffers that share bytes. If a file asks for low *peaks*, the highest addresses used in each pool, there are two cases. If the
pools have capacities, the packing problem only asks whether all buffers fit: every plan within the capacities is accepted, and
peaks are not minimized. If no pool has a capacity, the highest of the peaks is minimized.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

import msgspec

from stowplan import files
from stowplan.checks import expect, expect_unique
from stowplan.errors import InputError, naming
from stowplan.frontends.formats import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Penalty, Problem
from stowplan.version import VERSION

#: Largest number of buffers in a file. It is limited because all pairs of buffers that may not share bytes are enumerated.
MOST_BUFFERS = 5000

#: Two buffers, given by their positions in the file in ascending order. Half-open intervals of time have the same type.
Pair = tuple[int, int]


class _Struct(msgspec.Struct, forbid_unknown_fields=True):
    """Base of the parts of a file. Their fields have the names of schema v1 of dsa-solver, and buffers are named by ids.

    Fields that no other docstring mentions, such as ``bank_geometry`` and ``reasons``, are accepted and not used.
    """


class _Range(_Struct):
    """The bytes ``[begin, end)``."""

    begin: int
    end: int


class _Pool(_Struct):
    """A memory with its size and the ranges that no buffer may use, in bytes. ``capacity`` is None if there is no limit."""

    id: int
    name: str
    capacity: int | None
    reserved_ranges: list[_Range]
    bank_geometry: Any = None


class _Interval(_Struct):
    """The time ``[lower, upper)``."""

    lower: int
    upper: int


class _Buffer(_Struct):
    """A buffer with its size and alignment in bytes, the times at which it is live, and the pools in which it may be."""

    id: int
    name: str
    size: int
    alignment: int
    live_intervals: list[_Interval]
    allowed_pools: list[int]


class _Pair(_Struct):
    """Two buffers for which a rule holds."""

    first: int
    second: int
    reasons: list[str] = []


class _Pin(_Struct):
    """A buffer with a fixed offset in bytes. If it is exclusive, no other buffer may ever use its bytes."""

    buffer: int
    pool: int
    offset: int
    exclusive_for_all_time: bool


class _Constraints(_Struct):
    """Rules for pairs of buffers, and buffers with fixed offsets.

    Two buffers of a *colocation* have the same pool and offset, and those of a *separation* never share bytes. Two buffers of a
    *temporal exclusion* are never live together although their intervals overlap, for example because they belong to different
    branches of a condition. A file with colocations or temporal exclusions is refused.
    """

    colocations: list[_Pair]
    separations: list[_Pair]
    temporal_exclusions: list[_Pair]
    pinned_allocations: list[_Pin]


class _Penalty(_Struct):
    """The cost of two buffers that share bytes."""

    first: int
    second: int
    cost: int
    reason: str


class _CostModel(_Struct):
    """The costs that the term ``reuse_cost`` of the objective adds up."""

    reuse_penalties: list[_Penalty]


class _Objective(_Struct):
    """Names of the terms of the objective, which are minimized in this order, each without making an earlier one worse."""

    aggregation: Literal["lexicographic"]
    terms: list[str]


class _Problem(_Struct):
    """The problem in a file."""

    pools: list[_Pool]
    buffers: list[_Buffer]
    constraints: _Constraints
    objective: _Objective
    cost_model: _CostModel = msgspec.field(default_factory=lambda: _CostModel([]))
    pypto_structure: Any = None


class _Document(_Struct):
    """A file."""

    schema_version: Literal[1]
    profile: str
    instance: str
    problem: _Problem
    metadata: dict[str, str] = {}
    relaxed_from: str | None = None
    relaxed_features: list[str] = []


def _document(data: bytes, path: str | Path) -> _Document:
    """The contents of a file; raises InputError if a part is missing or of a wrong type."""
    return files.decode_json(data, _Document, "a problem of dsa-solver", path)


def _problem(document: _Document) -> Problem:
    """The packing problem of a file. Its buffers are those of the file in their order, and then those for reserved bytes.

    Raises
    ------
    InputError
        The file breaks a rule of its format, or has a rule or an objective that packing cannot express.
    """
    given, rules = document.problem, document.problem.constraints
    for what, found in (("colocations", rules.colocations), ("temporal_exclusions", rules.temporal_exclusions)):
        expect(not found, f"problem.constraints.{what}", f"{len(found)} pairs", "none: they are not supported")
    terms = given.objective.terms
    counts_costs = terms == ["capacity_overflow", "reuse_cost"]
    is_known = counts_costs or not {*terms} - {"capacity_overflow", "total_peak", "max_peak"}
    expect(is_known, "problem.objective.terms", terms, "capacity_overflow and reuse_cost, or no others than peaks")
    expect(0 < len(given.buffers) <= MOST_BUFFERS, "problem.buffers", f"{len(given.buffers)}", f"1 to {MOST_BUFFERS} buffers")
    expect_unique((str(pool.id) for pool in given.pools), "problem.pools")
    expect_unique((str(buffer.id) for buffer in given.buffers), "problem.buffers")
    expect_unique((_name(buffer) for buffer in given.buffers), "problem.buffers", "name")
    pools = {pool.id: number for number, pool in enumerate(given.pools)}
    lives, pool_of = [], []
    for number, buffer in enumerate(given.buffers):
        place = f"problem.buffers[{number}] ({buffer.id})"
        one = len(buffer.allowed_pools) == 1 and buffer.allowed_pools[0] in pools
        expect(one, place, f"allowed_pools {buffer.allowed_pools}", "one of the pools")
        pool_of.append(pools[buffer.allowed_pools[0]])
        is_life = bool(buffer.live_intervals) and all(each.lower < each.upper for each in buffer.live_intervals)
        expect(is_life, place, "live_intervals that are empty", "intervals whose lower is less than their upper")
        lives.append(_merged((each.lower, each.upper) for each in buffer.live_intervals))
    used = [given.pools[number] for number in sorted({*pool_of})]
    capacities = {pool.capacity for pool in used}
    expect(None not in capacities or len(capacities) == 1, "problem.pools", "some without a capacity", "a capacity for each")
    capacity = max((each for each in capacities if each is not None), default=None)
    number_of = {buffer.id: number for number, buffer in enumerate(given.buffers)}
    begin = min(life[0][0] for life in lives)
    end = max(life[-1][1] for life in lives)
    offsets: dict[int, int] = {}
    exclusive: set[int] = set()
    for at, pin in enumerate(rules.pinned_allocations):
        place = f"problem.constraints.pinned_allocations[{at}]"
        number = _number(number_of, pin.buffer, place)
        expect(pools.get(pin.pool) == pool_of[number], place, f"pool {pin.pool}", "the pool of the buffer")
        first = offsets.setdefault(number, pin.offset)
        expect(pin.offset == first, place, f"offset {pin.offset} of buffer {pin.buffer}", f"{first}, as another one states")
        if pin.exclusive_for_all_time:
            exclusive.add(number)
    # The keys of ``apart`` are pairs of buffers that may never share bytes, and ``hard`` has the pairs that are live together.
    # A pair that is only in ``apart`` becomes live together at a moment after ``end``.
    apart = _pairs(rules.separations, number_of, pool_of, "problem.constraints.separations")
    last = end
    for number, other in product(exclusive, range(len(lives))):
        if number != other and pool_of[number] == pool_of[other]:
            apart[min(number, other), max(number, other)] = 0
    hard = _live_together(lives, pool_of)
    for clique in _cover([pair for pair in apart if pair not in hard], hard | apart.keys()):
        for number in clique:
            lives[number].append((last, last + 1))
        last += 1
    # All times of a pool are moved by a multiple of this, so that pools follow each other in time.
    shift = last - begin + 1
    buffers = []
    for number, (buffer, life) in enumerate(zip(given.buffers, lives, strict=True)):
        by = pool_of[number] * shift
        gaps = [(low + by, high + by) for (_, low), (high, _) in pairwise(life) if low < high]
        buffers.append(
            Buffer(
                id=_name(buffer),
                lower=life[0][0] + by,
                upper=life[-1][1] + by,
                size=buffer.size,
                alignment=buffer.alignment,
                gaps=tuple(gaps),
                offset=offsets.get(number),
            )
        )
    for pool in used:
        by = pools[pool.id] * shift
        reserved = [(each.begin, each.end) for each in pool.reserved_ranges]
        is_range = all(0 <= low < high for low, high in reserved)
        expect(is_range, f"problem.pools ({pool.name})", "a reserved range that is empty", "0 <= begin < end")
        if capacity is not None and pool.capacity is not None and pool.capacity < capacity:
            reserved.append((pool.capacity, capacity))
        buffers += (
            Buffer(id=f"reserved {pool.name} {low}", lower=begin + by, upper=last + by, size=high - low, offset=low)
            for low, high in _merged(reserved)
        )
    penalties = _pairs(given.cost_model.reuse_penalties, number_of, pool_of, "problem.cost_model.reuse_penalties")
    costs = tuple(
        Penalty(first=buffers[one].id, second=buffers[other].id, cost=cost)
        for (one, other), cost in penalties.items()
        if (one, other) not in hard and (one, other) not in apart
    )
    return Problem(
        name=document.instance,
        buffers=tuple(buffers),
        capacity=capacity,
        penalties=costs if costs and counts_costs else msgspec.UNSET,
    )


def _name(buffer: _Buffer) -> str:
    """The id that a buffer has in the packing problem."""
    return buffer.name or f"buffer {buffer.id}"


def _merged(intervals: Iterable[Pair]) -> list[Pair]:
    """The union of intervals as ascending intervals that do not touch."""
    merged: list[Pair] = []
    for lower, upper in sorted(intervals):
        if merged and lower <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(upper, merged[-1][1])
        else:
            merged.append((lower, upper))
    return merged


def _number(number_of: dict[int, int], buffer: int, place: str) -> int:
    """The position of a buffer in the file; raises InputError if there is no such buffer."""
    expect(buffer in number_of, place, f"buffer {buffer}", "the id of a buffer")
    return number_of[buffer]


def _pairs(rules: Iterable[Any], number_of: dict[int, int], pool_of: list[int], place: str) -> dict[Pair, int]:
    """Returns the pairs of buffers that ``rules`` contain, each with the sum of the costs of all rules for this pair.

    The sum is 0 if the rules have no costs. A rule for a buffer and itself, or for buffers of different pools, is ignored.

    Raises
    ------
    InputError
        A rule names a buffer that is not in the file.
    """
    costs: dict[Pair, int] = defaultdict(int)
    for at, rule in enumerate(rules):
        one, other = (_number(number_of, each, f"{place}[{at}]") for each in (rule.first, rule.second))
        if one != other and pool_of[one] == pool_of[other]:
            costs[min(one, other), max(one, other)] += getattr(rule, "cost", 0)
    return costs


def _live_together(lives: list[list[Pair]], pool_of: list[int]) -> set[Pair]:
    """The pairs of buffers of one pool that are live together at some moment."""
    # Life spans are half-open. If one ends at the moment at which another starts, its end (0) must therefore come first.
    ends = [(end, 0, number) for number, life in enumerate(lives) for _, end in life]
    events = sorted([*ends, *((start, 1, number) for number, life in enumerate(lives) for start, _ in life)])
    live: dict[int, set[int]] = defaultdict(set)
    pairs: set[Pair] = set()
    for _, begins, number in events:
        others = live[pool_of[number]]
        if begins:
            pairs.update((min(number, other), max(number, other)) for other in others if other != number)
            others.add(number)
        else:
            others.discard(number)
    return pairs


def _cover(pairs: list[Pair], allowed: set[Pair]) -> list[list[int]]:
    """Sets of buffers that together contain all ``pairs``, such that any two buffers of a set are a pair of ``allowed``.

    They are cliques of the graph whose edges are ``allowed``. Each is grown greedily by the buffer that completes most of the
    pairs that are not covered yet.
    """
    near: dict[int, set[int]] = defaultdict(set)
    for one, other in allowed:
        near[one].add(other)
        near[other].add(one)
    uncovered: dict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        uncovered[one].add(other)
        uncovered[other].add(one)
    cliques = []
    for one, other in sorted(pairs):
        if other not in uncovered[one]:
            continue
        clique, common = [one, other], near[one] & near[other]
        while common:
            best = max(sorted(common), key=lambda number: len(uncovered[number].intersection(clique)))
            if not uncovered[best].intersection(clique):
                break
            clique.append(best)
            common = common & near[best]
        for number in clique:
            uncovered[number].difference_update(clique)
        cliques.append(clique)
    return cliques


def solution(path: str | Path, plan: Plan) -> bytes:
    """Returns a plan as the contents of a solution file of dsa-solver, in JSON.

    Parameters
    ----------
    path
        The file of the problem.
    plan
        The plan of the packing problem that was read from this file.

    Raises
    ------
    InputError
        The file cannot be read or is not a problem of dsa-solver, or the plan is for another problem.
    """
    data = files.read_bytes(path)
    with naming(path):
        document = _document(data, path)
        if _problem(document).digest != plan.problem:
            raise InputError("found a plan for another problem, expected one for this file")
    placed = zip(document.problem.buffers, plan.offsets, strict=False)
    places = sorted((buffer.id, buffer.allowed_pools[0], offset) for buffer, offset in placed)
    return files.encode(
        {
            "schema_version": 1,
            "profile": document.profile,
            "instance": document.instance,
            "problem_fingerprint": _fingerprint(data),
            "metadata": {"solver": f"stowplan {VERSION}"},
            "placements": [{"buffer": buffer, "pool": pool, "offset": offset} for buffer, pool, offset in places],
        }
    )


def write_solution(source: Path, plan: Plan, path: Path) -> None:
    """Writes the document that :func:`solution` returns to the file ``path``; ``source`` is the file of the problem.

    Raises InputError as :func:`solution` does, and if the document cannot be written.
    """
    files.write_atomic(path, solution(source, plan))


def _fingerprint(data: bytes) -> str:
    """The 64-bit FNV-1a hash of a problem in the canonical form of dsa-solver.

    The form has sorted keys and an indentation of two blanks. It always contains ``metadata``, and it omits
    ``relaxed_features`` and the ``reasons`` of separations if they are empty.
    """
    value = json.loads(data)
    value.setdefault("metadata", {})
    if not value.get("relaxed_features", True):
        del value["relaxed_features"]
    for rule in value["problem"]["constraints"]["separations"]:
        if not rule.get("reasons", True):
            del rule["reasons"]
    fingerprint = 14695981039346656037
    for byte in (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode():
        fingerprint = (fingerprint ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return f"{fingerprint:016x}"


def is_dsa(source: Source) -> bool:
    """Whether a file looks like a problem of dsa-solver, judging by two of its keys."""
    return source.data is not None and b'"schema_version"' in source.data and b'"live_intervals"' in source.data


def _open(source: Source, options: ReadOptions) -> Opened:
    """Reads the problem of a file; raises InputError as :func:`_document` and :func:`_problem` do."""
    with naming(source.path):
        return Opened(_problem(_document(source.data or b"", source.path)))


FORMAT = InputFormat(
    what="a problem of dsa-solver",
    suffixes=(".json",),
    accepts=lambda source: frozenset(),
    matches=is_dsa,
    open=_open,
)
