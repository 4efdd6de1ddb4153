"""Reference implementations of verifiers, one a kind: slow, from the rules in the documents, for small problems only.

Those of memory mapping, banked packing, operator order, rematerialization and modulo scheduling build on those of the
kinds' own tests. Each is called with a problem and a plan of the right lengths and digest, and says whether the plan keeps
every rule and states the objective that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

from stowplan.models.modulo_scheduling.plan import encode_objective
from tests.models.bank_mapping import reference as bank_reference
from tests.models.banked_packing import cases as banked
from tests.models.llm_placement import reference as llm
from tests.models.memory_mapping import reference
from tests.models.modulo_scheduling.brute_force import Reference, ways
from tests.models.operator_order import test_verify as operator_order
from tests.models.packing.cases import moments
from tests.models.rematerialization import test_verify as rematerialization
from tests.models.tier_placement import brute_force as tiers

Span = tuple[int, int]


def _share(one: Span, two: Span) -> bool:
    return max(one[0], two[0]) < min(one[1], two[1])


def packing(problem: Any, plan: Any) -> bool:
    spans = [(offset, offset + each.size) for each, offset in zip(problem.buffers, plan.offsets, strict=True)]
    for each, (start, end) in zip(problem.buffers, spans, strict=True):
        if start < 0 or start % each.alignment or each.offset not in (None, start):
            return False
        if problem.capacity is not None and end > problem.capacity:
            return False
    lives = [moments(each) for each in problem.buffers]
    if any(_share(spans[one], spans[two]) and lives[one] & lives[two] for one, two in combinations(range(len(spans)), 2)):
        return False
    return bool(plan.objective == max((end for _, end in spans), default=0))


def banked_packing(problem: Any, plan: Any) -> bool:
    if any(bank not in range(len(problem.banks)) for bank in plan.banks):
        return False
    pairs = zip(problem.buffers, plan.banks, strict=True)
    cost = sum(each.size * each.uses * problem.banks[bank].cost for each, bank in pairs)
    room = max(bank.capacity for bank in problem.banks)
    return cost == plan.objective and all(0 <= each <= room for each in plan.offsets) and banked.is_valid(problem, plan)


def operator_order_(problem: Any, plan: Any) -> bool:
    whole = sorted(plan.order) == list(range(len(problem.ops)))
    return whole and all(each >= 0 for each in plan.offsets) and operator_order._is_valid(problem, plan)


def rematerialization_(problem: Any, plan: Any) -> bool:
    if any(op not in range(len(problem.ops)) for op in plan.sequence):
        return False
    cost = sum(problem.ops[op].cost * (plan.sequence.count(op) - 1) for op in range(len(problem.ops)))
    peak = rematerialization._peak(problem, plan.sequence)
    fits = peak is not None and (problem.limit is None or peak <= problem.limit)
    return fits and (plan.objective, plan.peak) == (cost, peak)


def tier_placement(problem: Any, plan: Any) -> bool:
    both = (plan.weight_tiers, plan.output_tiers)
    if any(tier not in range(len(problem.tiers)) for each in both for tier in each):
        return False
    stays = tiers.stays(problem, both)
    for number, tier in enumerate(problem.tiers):
        for step in range(len(problem.layers)):
            if sum(size for at, size, steps in stays if at == number and step in steps) > tier.capacity:
                return False
    if problem.address_spaces or plan.weight_offsets or plan.output_offsets:
        if not len(plan.weight_offsets) == len(plan.output_offsets) == len(problem.layers):
            return False
        offsets = [each for pair in zip(plan.weight_offsets, plan.output_offsets, strict=True) for each in pair]
        placed = [
            (at, (offset, offset + size), steps) for (at, size, steps), offset in zip(stays, offsets, strict=True) if size
        ]
        for at, (start, end), _ in placed:
            if start < 0 or start % problem.tiers[at].alignment or end > problem.tiers[at].capacity:
                return False
        if any(one[0] == two[0] and _share(one[1], two[1]) and one[2] & two[2] for one, two in combinations(placed, 2)):
            return False
    return bool(plan.objective == tiers.latency(problem, both))


def bank_mapping(problem: Any, plan: Any) -> bool:
    wanted: list[dict[int, int]] = [{} for _ in problem.tensors]
    written: dict[int, int] = {}
    for number, (operator, option) in enumerate(zip(problem.operators, plan.options, strict=True)):
        if option not in range(len(operator.options)):
            return False
        chosen = operator.options[option]
        for tensor, layout in zip(operator.reads, chosen, strict=False):
            wanted[tensor].setdefault(layout, number)
        for tensor, layout in zip(operator.writes, chosen[len(operator.reads) :], strict=True):
            written[tensor] = number
            if plan.layouts[tensor] != layout:
                return False
    if any(layout not in range(-1, len(each.shape)) for each, layout in zip(problem.tensors, plan.layouts, strict=True)):
        return False
    needed = {
        (tensor, layout): first
        for tensor, layouts in enumerate(wanted)
        for layout, first in layouts.items()
        if plan.on_chip[tensor] and layout != plan.layouts[tensor]
    }
    if sorted((each.tensor, each.layout) for each in plan.copies) != sorted(needed):
        return False
    for each in plan.copies:
        if not written.get(each.tensor, -1) < each.before <= needed[each.tensor, each.layout]:
            return False
    return bool(bank_reference.cost(problem, plan) == plan.objective)


def modulo_scheduling(problem: Any, plan: Any) -> bool:
    rules, count, ii = Reference(problem), len(problem.instructions), plan.ii
    if not 1 <= ii <= problem.machine.spoke_depth or any(tile not in rules.tiles for tile in plan.tiles):
        return False
    times = list(plan.times)
    if min(times, default=0) < 0 or list(plan.slots) != [each % ii for each in times] or not rules.tiles_ok(plan.tiles):
        return False
    if not all(rules.times_ok(plan.tiles[: at + 1], times[: at + 1], ii) for at in range(count)):
        return False
    if not rules.messages_ok(plan.tiles, times, ii):
        return False
    ends = [time + latency for time, latency in zip(times, rules.latency, strict=True)]
    if plan.makespan != max(ends, default=0) or plan.objective != encode_objective(ii, plan.makespan):
        return False
    return _starts(rules, plan) and _interfaces(rules, plan, ends) and _edges(problem, rules, plan, ends)


def _starts(rules: Any, plan: Any) -> bool:
    woken = {target for _, target, distance in rules.edges if distance == 0}
    sources = [number for number in range(len(plan.tiles)) if number not in woken]
    if len({plan.tiles[each] for each in plan.starts if each in sources}) < len(plan.starts):
        return False
    if rules.problem.rules.starts == "source":
        return list(plan.starts) == sources
    flows = [rules.flow[each] for each in plan.starts]
    return list(plan.starts) == sorted(plan.starts) and len(flows) == len(set(flows)) == len(set(rules.flow.values()))


def _interfaces(rules: Any, plan: Any, ends: list[int]) -> bool:
    if not rules.accesses:
        return all(each is None for each in plan.interfaces)
    asked: list[tuple[int, int]] = []
    for number, which in enumerate(plan.interfaces):
        if number not in rules.accesses:
            if which is not None:
                return False
            continue
        if which not in range(len(rules.interfaces)):
            return False
        serves = rules.interfaces[which].tiles
        if serves is not None and plan.tiles[number] not in serves:
            return False
        asked.append((which, ends[number] % plan.ii))
    return all(asked.count(each) <= rules.interfaces[each[0]].ports for each in asked)


def _edges(problem: Any, rules: Any, plan: Any, ends: list[int]) -> bool:
    """Routes that are quickest ways without two values on a link, and delays as the rules have them."""
    carried: dict[tuple[int, int, int], tuple[int, int]] = {}
    for number, (edge, is_sent) in enumerate(zip(problem.edges, rules.is_sent, strict=True)):
        route = plan.routes[number]
        left = plan.times[edge.target] + plan.ii * edge.distance - ends[edge.source]
        if is_sent:
            if route or plan.delays[number] != left - rules.nominal[edge.source]:
                return False
            continue
        taken = [each for each in ways(problem, plan.tiles[edge.source], plan.tiles[edge.target]) if _links(each) == [*route]]
        if not taken:
            return False
        clock = ends[edge.source]
        for tile, link in taken[0]:
            if carried.setdefault((tile, link, clock % plan.ii), (edge.source, clock)) != (edge.source, clock):
                return False
            clock += problem.machine.links[link].clocks
        if plan.delays[number] != left - (clock - ends[edge.source]):
            return False
    return True


def _links(way: list[tuple[int, int]]) -> list[int]:
    return [link for _, link in way]


ORACLES: dict[str, Callable[[Any, Any], bool]] = {
    "memory_mapping": reference.is_valid,
    "packing": packing,
    "banked_packing": banked_packing,
    "llm_placement": llm.is_valid,
    "operator_order": operator_order_,
    "tier_placement": tier_placement,
    "bank_mapping": bank_mapping,
    "modulo_scheduling": modulo_scheduling,
    "rematerialization": rematerialization_,
}
