"""Random small problems of every kind that has certificates, each with the objective of its best plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from stowplan.models.bank_mapping.verify import verify
from stowplan.models.modulo_scheduling.plan import encode_objective
from tests.models.bank_mapping import cases as bank_mapping
from tests.models.banked_packing import cases as banked_packing
from tests.models.llm_placement import cases as llm_placement
from tests.models.memory_mapping import brute_force as memory_mapping_force
from tests.models.memory_mapping import cases as memory_mapping
from tests.models.modulo_scheduling import brute_force as modulo_scheduling_force
from tests.models.modulo_scheduling import cases as modulo_scheduling
from tests.models.operator_order import cases as operator_order
from tests.models.packing import cases as packing
from tests.models.rematerialization import cases as rematerialization
from tests.models.tier_placement import brute_force as tier_placement_force
from tests.models.tier_placement import cases as tier_placement

#: A problem, and the least objective; None where it has no plan.
Case = tuple[Any, int | None]


def mapping_problem(seed: int) -> Any:
    """One of memory mapping, by any of its rules."""
    rng = random.Random(seed)
    rules: list[dict[str, Any]] = [
        {},
        {"stalls": "forbidden"},
        {"evictions": "between_steps", "channels": 1},
        {"prefetches": "sliced", "channels": 1},
    ]
    return memory_mapping.random_problem(rng, steps=rng.randint(2, 6), tensors=rng.randint(1, 3), **rng.choice(rules))


def _packing(seed: int) -> Case:
    problem = packing.random_problem(seed, capacity=random.Random(seed).choice([None, None, 8, 20]))
    least = packing.least_height(problem)
    is_within = problem.capacity is None or (least is not None and least <= problem.capacity)
    return problem, least if is_within else None


def _banked_packing(seed: int) -> Case:
    problem = banked_packing.random_problem(seed)
    return problem, banked_packing.least_cost(problem)


def _bank_mapping(seed: int) -> Case:
    problem = bank_mapping.random_problem(seed, operators=3)
    found = (verify(problem, plan) for plan in bank_mapping.every_plan(problem))
    costs = [each.objective for each in found if {broken.code for broken in each.violations} <= {"wrong_objective"}]
    return problem, min(cost for cost in costs if cost is not None)


def _operator_order(seed: int) -> Case:
    problem = operator_order.random_problem(seed)
    return problem, operator_order.least_peak(problem)


def _rematerialization(seed: int) -> Case:
    problem = rematerialization.limited(seed)
    return problem, rematerialization.least_cost(problem)


def _modulo_scheduling(seed: int) -> Case:
    cases = modulo_scheduling
    make = (cases.random_problem, cases.linked_problem, cases.varied_problem, cases.register_problem)[seed % 4]
    problem = make(seed)
    found = modulo_scheduling_force.best(problem)
    return problem, None if found is None else encode_objective(*found)


def _tier_placement(seed: int) -> Case:
    problem = tier_placement.random_problem(seed)
    return problem, tier_placement_force.optimum(problem)


def _memory_mapping(seed: int) -> Case:
    problem = mapping_problem(seed)
    return problem, memory_mapping_force.optimum(problem)


def _llm_placement(seed: int) -> Case:
    problem = llm_placement.random_problem(seed, most=3)
    return problem, llm_placement.least_time(problem)


CASES: dict[str, Callable[[int], Case]] = {
    "packing": _packing,
    "banked_packing": _banked_packing,
    "bank_mapping": _bank_mapping,
    "operator_order": _operator_order,
    "rematerialization": _rematerialization,
    "modulo_scheduling": _modulo_scheduling,
    "tier_placement": _tier_placement,
    "memory_mapping": _memory_mapping,
    "llm_placement": _llm_placement,
}
