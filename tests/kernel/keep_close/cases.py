"""Random small problems of every kind, with some valid plans of each, good and bad, made without any search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from stowplan.kernel.kind import check, kind_of
from stowplan.models.bank_mapping.structure import assemble
from stowplan.models.banked_packing.plan import Plan as BankedPlan
from stowplan.models.modulo_scheduling.assemble import make_plan
from stowplan.models.modulo_scheduling.structure import Structure as Loop
from stowplan.models.operator_order.structure import build, needed_first
from stowplan.models.packing.plan import Plan as Packing
from stowplan.models.rematerialization.structure import build as build_runs
from stowplan.models.tier_placement.structure import Offsets, plan_of
from stowplan.models.tier_placement.structure import Structure as Network
from stowplan.portfolio.modulo_scheduling.candidates import list_plan
from stowplan.portfolio.operator_order.arena import Lives
from tests.models.bank_mapping import cases as bank_mapping
from tests.models.banked_packing import cases as banked_packing
from tests.models.llm_placement import cases as llm_placement
from tests.models.memory_mapping import cases as memory_mapping
from tests.models.modulo_scheduling import cases as modulo_scheduling
from tests.models.operator_order import cases as operator_order
from tests.models.packing import cases as packing
from tests.models.rematerialization import cases as rematerialization
from tests.models.tier_placement import cases as tier_placement


def valid_plans(kind: str, seed: int, count: int = 4) -> tuple[Any, list[Any]]:
    """A problem, and up to so many unlike valid plans for it; none where the random ones are not valid."""
    chance = random.Random(seed)
    problem, plans = _KINDS[kind](seed, chance)
    found: list[Any] = []
    for plan in itertools.islice(plans, 5 * count):
        if plan is not None and plan not in found and check(kind_of(problem), problem, plan).ok:
            found.append(plan)
        if len(found) == count:
            break
    return problem, found


def first_fit(problem: Any, chance: random.Random) -> Packing:
    """Buffers in a random order, each at the lowest offset that is free."""
    taken: set[tuple[int, int]] = set()
    offsets = [0] * len(problem.buffers)
    order = sorted(range(len(offsets)), key=lambda at: (problem.buffers[at].offset is None, chance.random()))
    for at in order:
        each = problem.buffers[at]
        places = itertools.count(0, each.alignment) if each.offset is None else [each.offset]
        for offset in places:
            cells = {(time, byte) for time in packing.moments(each) for byte in range(offset, offset + each.size)}
            if each.offset is not None or not cells & taken:
                taken |= cells
                offsets[at] = offset
                break
    height = max((at + each.size for at, each in zip(offsets, problem.buffers, strict=True)), default=0)
    return Packing(problem=problem.digest, objective=height, offsets=tuple(offsets))


def _packing(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = packing.random_problem(seed, most=8)
    return problem, (first_fit(problem, chance) for _ in itertools.count())


def _banked_packing(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = banked_packing.random_problem(seed, most=6)

    def plan() -> BankedPlan | None:
        placed: list[tuple[int, int]] = []
        cost = 0
        for number, buffer in enumerate(problem.buffers):
            banks = list(problem.allowed[number])
            chance.shuffle(banks)
            for bank in banks:
                step, size = problem.step(number, bank), problem.size_in(number, bank)
                free = (
                    offset
                    for offset in range(problem.lowest_offset_in(number, bank), problem.banks[bank].capacity - size + 1, step)
                    if all(
                        at[0] != bank
                        or at[1] >= offset + size
                        or offset >= at[1] + problem.size_in(other, bank)
                        or problem.buffers[other].upper <= buffer.lower
                        or buffer.upper <= problem.buffers[other].lower
                        for other, at in enumerate(placed)
                    )
                )
                offset = next(free, None)
                if offset is not None:
                    placed.append((bank, offset))
                    cost += problem.traffic(number) * problem.banks[bank].cost
                    break
            else:
                return None
        banks_of, offsets = tuple(bank for bank, _ in placed), tuple(offset for _, offset in placed)
        return BankedPlan(problem=problem.digest, objective=cost, banks=banks_of, offsets=offsets)

    return problem, (plan() for _ in itertools.count())


def _tier_placement(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = tier_placement.random_problem(seed, layers=6, address_spaces=seed % 2 == 1)
    structure = Network(problem)
    offsets = Offsets(structure, packing_limit=0.0, end=0.0)

    def plan(first: bool) -> Any:
        if not all(tensor.tiers for tensor in structure.tensors):
            return None
        tiers = [tensor.tiers[0] if first else chance.choice(tensor.tiers) for tensor in structure.tensors]
        return offsets.place(tiers) if problem.address_spaces else plan_of(structure, tiers)

    return problem, (plan(number == 0) for number in itertools.count())


def _bank_mapping(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = bank_mapping.random_problem(seed, operators=6)

    def plan(share: float) -> Any:
        options = [chance.randrange(len(operator.options)) for operator in problem.operators]
        stays = [problem.life(at) is not None and chance.random() < share for at in range(len(problem.tensors))]
        return assemble(problem, options, stays)

    return problem, (plan(chance.choice([0.0, 0.3, 0.6])) for _ in itertools.count())


def _operator_order(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = operator_order.random_problem(seed, most=9)
    structure = build(problem)

    def plan() -> Any:
        order = list(range(len(problem.ops)))
        chance.shuffle(order)
        return Lives(problem, structure, needed_first(structure, order)).quick()

    return problem, (plan() for _ in itertools.count())


def _rematerialization(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = rematerialization.training(seed)
    structure = build_runs(problem)

    def plan() -> Any:
        runs = list(structure.order)
        for _ in range(chance.randint(1, 4)):
            runs.insert(chance.randint(0, len(runs)), chance.randrange(structure.ops))
        return structure.made(runs)

    return problem, (plan() for _ in itertools.count())


def _modulo_scheduling(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = modulo_scheduling.random_problem(seed, most=5)
    structure = Loop(problem)

    def plan(number: int) -> Any:
        found = list_plan(problem, number, lambda: False)
        if found is None or number % 2 == 0:
            return found
        # A round later, with the same ways.
        return make_plan(structure, found.ii, found.tiles, [time + found.ii for time in found.times], found.routes)

    return problem, (plan(number) for number in itertools.count())


def _memory_mapping(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = memory_mapping.random_problem(chance, steps=8, tensors=5)
    return problem, (memory_mapping.random_plan(problem, chance) for _ in itertools.count())


def _llm_placement(seed: int, chance: random.Random) -> tuple[Any, Iterator[Any]]:
    problem = llm_placement.random_problem(seed, most=4)
    plans = llm_placement.every_plan(problem)
    return problem, (chance.choice(plans) for _ in itertools.count())


_KINDS = {
    "llm_placement": _llm_placement,
    "memory_mapping": _memory_mapping,
    "packing": _packing,
    "tier_placement": _tier_placement,
    "bank_mapping": _bank_mapping,
    "operator_order": _operator_order,
    "banked_packing": _banked_packing,
    "rematerialization": _rematerialization,
    "modulo_scheduling": _modulo_scheduling,
}
