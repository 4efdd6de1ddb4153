"""The exact model finds what trying every sequence finds; no bound is above it."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from stowplan.models.rematerialization import bounds, cpsat
from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.problem import Op, Problem, Tensor
from stowplan.models.rematerialization.stages import Stages
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.models.rematerialization.verify import verify
from tests.models.rematerialization.cases import least_cost, least_peak, limited, peak_once
from tests.patience import HANG


def check_model(seed: int) -> str:
    """Compare with brute force: both ways to order; what was proven."""
    problem = limited(seed)
    least = least_cost(problem)
    found = cpsat.solve(problem, time_limit=HANG if least is not None else 0.5)
    staged = cpsat.solve(problem, order=build(problem).order, time_limit=HANG)
    assert not staged.bound, seed
    if staged.plan is not None:
        assert verify(problem, staged.plan).ok, seed
    if least is None:
        assert found.plan is staged.plan is None, seed
        return "none" if found.status == "infeasible" else "open"
    assert found.status != "infeasible", seed
    assert found.plan is not None, seed
    assert verify(problem, found.plan).ok, seed
    assert found.plan.objective == least, seed
    assert found.bound is not None, seed
    assert found.bound <= least, seed
    assert (found.status == "optimal") == (found.bound == least), seed
    assert staged.plan is None or staged.plan.objective >= least, seed
    if seed % 10 == 0:
        again = cpsat.solve(problem, hint=found.plan, time_limit=HANG)
        assert again.plan is not None, seed
        assert again.plan.objective == least, seed
    return found.status


def test_the_model_on_some_graphs() -> None:
    assert {check_model(seed) for seed in (0, 3, 4, 12, 1003, 1008, 1017)} >= {"optimal"}


@pytest.mark.slow
def test_the_model_on_hundreds_of_graphs() -> None:
    found = Counter(check_model(seed) for seed in (*range(200), *range(1000, 1100)))
    assert found["optimal"] > 150
    assert found["none"] + found["open"] > 5


def check_bounds(seed: int) -> str:
    """Compare with brute force: the peak, and the added cost within several limits."""
    problem = limited(seed)
    structure, peak, once = build(problem), least_peak(problem), peak_once(problem)
    assert bounds.load_bound(structure) <= bounds.least_peak(structure) <= peak, seed
    before: int | None = None
    for limit in range(max(0, peak - 1), once + 1, max(1, (once - peak) // 3)):
        bound = bounds.added_cost(structure, limit)
        least = least_cost(msgspec.structs.replace(problem, limit=limit))
        assert least is None or (bound is not None and bound <= least), (seed, limit)
        # A larger limit never gives a higher bound.
        assert before is None or (bound is not None and bound <= before), (seed, limit)
        before = bound
    bound = bounds.added_cost(structure, problem.limit or 0)
    least = least_cost(problem)
    return "none" if least is None else "tight" if bound == least else "loose"


def chain_of(structure: Structure, moments: Moments, seed: int) -> list[int]:
    """Some operators, each of which needs the one before."""
    order = structure.order.copy()
    random.Random(seed).shuffle(order)
    chain: list[int] = []
    for op in order[: 1 + seed % 5]:
        if all((moments.before[op] >> each | moments.before[each] >> op) & 1 for each in chain):
            chain.append(op)
    return sorted(chain, key=structure.order.index)


def check_stages(seed: int) -> str:
    """Compare with brute force: several limits; no relaxation is weaker than that of its last moment alone."""
    problem = limited(seed)
    structure, peak, once = build(problem), least_peak(problem), peak_once(problem)
    moments = Moments(structure)
    chain = chain_of(structure, moments, seed)
    for limit in {max(0, peak - 1), peak, (peak + once) // 2, problem.limit or 0}:
        within = msgspec.structs.replace(problem, limit=limit)
        least = least_cost(within)
        found = Stages(structure, moments, limit, chain).solve(time_limit=HANG)
        assert least is None or not found.is_infeasible, (seed, limit)
        assert least is None or found.bound is None or found.bound <= least, (seed, limit)
        assert found.is_infeasible or found.bound is not None, (seed, limit)
        one = Stages(structure, moments, limit, chain[-1:]).solve(time_limit=HANG)
        assert found.is_infeasible or one.bound is not None, (seed, limit)
        assert found.bound is None or one.bound is None or one.bound <= found.bound, (seed, limit)
        if found.sequence and not problem.precedences:
            free = msgspec.structs.replace(problem, limit=None)
            assert verify(free, build(free).made(found.sequence)).ok, (seed, limit)
    least, found = least_cost(problem), Stages(structure, moments, problem.limit or 0, chain).solve(time_limit=HANG)
    return "none" if least is None else "tight" if found.bound == least else "loose"


def test_stages_on_some_graphs() -> None:
    assert {check_stages(seed) for seed in (*range(0, 40, 4), *range(1000, 1020, 4))} >= {"tight"}


@pytest.mark.slow
def test_stages_on_hundreds_of_graphs() -> None:
    found = Counter(check_stages(seed) for seed in (*range(160), *range(1000, 1060)))
    assert found["tight"] > 2 * found["loose"]


def test_bounds_on_some_graphs() -> None:
    assert {check_bounds(seed) for seed in (0, 4, 7, 15, 1004, 1010)} <= {"none", "tight", "loose"}


@pytest.mark.slow
def test_bounds_on_hundreds_of_graphs() -> None:
    found = Counter(check_bounds(seed) for seed in (*range(200), *range(1000, 1030)))
    assert found["tight"] > 4 * found["loose"]


def chain(count: int, limit: int) -> Problem:
    """Forward and backward operators of one size and one cost, each backward one reading what its forward one read."""
    tensors = [Tensor(id="x", size=0)]
    ops = []
    for number in range(count):
        tensors.append(Tensor(id=f"a{number}", size=1))
        ops.append(Op(id=f"forward{number}", reads=(number,), writes=(number + 1,), cost=1))
    for number in range(count - 1, -1, -1):
        tensors.append(Tensor(id=f"g{number}", size=1))
        ops.append(Op(id=f"backward{number}", reads=(len(tensors) - 2, number), writes=(len(tensors) - 1,), cost=1))
    return Problem(tensors=tuple(tensors), ops=tuple(ops), inputs=(0,), outputs=(len(tensors) - 1,), limit=limit)


@pytest.mark.parametrize("limit", [3, 4, 5, 6])
def test_bounds_of_a_chain(limit: int) -> None:
    """Of five values that are read backwards, one more is kept for each byte."""
    problem = chain(5, limit)
    structure = build(problem)
    least = least_cost(problem)
    bound = bounds.added_cost(structure, limit)
    assert least is not None
    assert bound is not None
    assert 0 <= bound <= least
    assert bounds.least_peak(structure) == least_peak(problem) == 3
    assert bounds.added_cost(structure, 2) is None


def test_what_precedes_a_past_operator_does_not_run_again() -> None:
    """What the border returns stays, so that bounds do not count on running its operator again behind the border."""
    sizes = (4, 0, 2, 1, 1)
    tensors = tuple(Tensor(id=str(at), size=size, alias_of=0 if at == 1 else None) for at, size in enumerate(sizes))
    made = Op(id="made", writes=(0,), cost=10)
    border = Op(id="border", reads=(0,), writes=(1,), once=True)
    ops = (made, border, Op(id="c", writes=(2,)), Op(id="d", reads=(2,), writes=(3,)), Op(id="e", reads=(3,), writes=(4,)))
    problem = Problem(tensors=tensors, ops=ops, outputs=(1, 4), precedences=((0, 1), (1, 2)), limit=6)
    assert least_peak(problem) == 7
    assert bounds.added_cost(build(problem), 6) is None
    assert bounds.added_cost(build(problem), 7) == 0


def test_bounds_of_numbers_beyond_what_a_flow_takes() -> None:
    """Capacities are rounded down, so that bounds hold, and lose next to nothing."""
    small = chain(6, 4)
    bound = bounds.added_cost(build(small), 4)
    scale = 1 << 40
    tensors = tuple(msgspec.structs.replace(each, size=each.size * scale) for each in small.tensors)
    ops = tuple(msgspec.structs.replace(op, cost=op.cost * scale) for op in small.ops)
    large = Problem(tensors=tensors, ops=ops, inputs=small.inputs, outputs=small.outputs, limit=4 * scale)
    found = bounds.added_cost(build(large), 4 * scale)
    assert bound is not None
    assert found is not None
    assert bound - 1 < found / scale <= bound
