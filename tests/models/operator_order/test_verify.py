"""The verifier takes good plans, and finds each way to break one."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.structure import build
from stowplan.models.operator_order.verify import verify
from stowplan.portfolio.operator_order.arena import Lives
from tests.models.operator_order.cases import orders, random_problem

PROBLEM = Problem(
    tensors=(
        Tensor(id="x", size=4),
        Tensor(id="y", size=4, alignment=4),
        Tensor(id="view", size=2, alias_of=1),
        Tensor(id="z", size=6),
    ),
    ops=(
        Op(id="relu", reads=(0,), writes=(1,), in_place=((0, 1),)),
        Op(id="half", reads=(1,), writes=(2,)),
        Op(id="out", reads=(2,), writes=(3,)),
    ),
    inputs=(0,),
    outputs=(3,),
)
PLAN = Plan(problem=PROBLEM.digest, objective=10, arena=10, order=(0, 1, 2), offsets=(0, 0, 0, 4))


def codes(plan: Plan, problem: Problem = PROBLEM) -> list[str]:
    return [each.code for each in verify(problem, plan).violations]


def test_a_good_plan() -> None:
    found = verify(PROBLEM, PLAN)
    assert (found.ok, found.objective, found.figures["arena"]) == (True, 10, 10)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"problem": "0" * 64}, ["wrong_problem"]),
        ({"objective": 9}, ["wrong_objective"]),
        ({"arena": 11}, ["wrong_arena"]),
        ({"order": (0, 1)}, ["wrong_order"]),
        ({"order": (0, 1, 1)}, ["wrong_order"]),
        ({"order": (0, 1, 7)}, ["wrong_order"]),
        ({"offsets": (0, 0, 0)}, ["wrong_count"]),
        ({"offsets": (0, 0, 4, 4)}, ["view_moved"]),
        ({"offsets": (0, 0, 0, 3), "arena": 9}, ["overlap"]),
        ({"offsets": (0, 2, 2, 6), "arena": 12}, ["misaligned", "overlap"]),
        ({"offsets": (-4, -4, -4, 0), "arena": 6}, ["negative_offset"] * 3),
        ({"order": (1, 0, 2), "objective": 10}, ["too_early"]),
    ],
)
def test_what_is_broken_is_found(changes: dict[str, object], expected: list[str]) -> None:
    found = codes(msgspec.structs.replace(PLAN, **changes))
    assert set(expected) <= set(found) | ({"overlap"} & set(found))
    assert expected[0] in found


def test_a_place_may_be_taken_only_when_it_is_free() -> None:
    # The operand is read again later: its bytes cannot be the result's.
    ops = (*PROBLEM.ops, Op(id="late", reads=(0, 3)))
    problem = Problem(tensors=PROBLEM.tensors, ops=ops, inputs=(0,), outputs=(3,))
    plan = msgspec.structs.replace(PLAN, problem=problem.digest, order=(0, 1, 2, 3), objective=14)
    assert codes(plan, problem) == ["overlap"]


def test_a_place_is_taken_exactly_or_not_at_all() -> None:
    tensors = (Tensor(id="x", size=4), Tensor(id="y", size=4))
    ops = (Op(id="relu", reads=(0,), writes=(1,), in_place=((0, 1),)),)
    problem = Problem(tensors=tensors, ops=ops, inputs=(0,), outputs=(1,))
    plan = Plan(problem=problem.digest, objective=4, arena=6, order=(0,), offsets=(0, 2))
    assert codes(plan, problem) == ["overlap"]
    assert verify(problem, msgspec.structs.replace(plan, offsets=(0, 4), arena=8)).ok


def test_what_is_never_live_takes_nothing() -> None:
    problem = Problem(tensors=(Tensor(id="x", size=4),), ops=(Op(id="nothing"),), inputs=(0,))
    plan = Plan(problem=problem.digest, objective=0, arena=0, order=(0,), offsets=(0,))
    assert verify(problem, plan).ok


@pytest.mark.parametrize("seed", range(40))
def test_changed_plans_are_refused_or_worse(seed: int) -> None:
    """Random changes: a valid plan that says less than the truth is never let through."""
    problem = random_problem(seed)
    structure, chance = build(problem), random.Random(seed)
    order = next(orders(problem))
    plan = Lives(problem, structure, order).quick()
    assert verify(problem, plan).ok
    for _ in range(10):
        offsets = list(plan.offsets)
        changed = list(plan.order)
        if chance.random() < 0.5:
            at = chance.randrange(len(offsets))
            offsets[at] = max(0, offsets[at] + chance.randint(-3, 3))
        else:
            one, other = chance.randrange(len(changed)), chance.randrange(len(changed))
            changed[one], changed[other] = changed[other], changed[one]
        mutant = msgspec.structs.replace(plan, offsets=tuple(offsets), order=tuple(changed))
        assert verify(problem, mutant).ok == _is_valid(problem, mutant)


def _is_valid(problem: Problem, plan: Plan) -> bool:
    """The rules once more, byte by byte and moment by moment."""
    position = {op: at for at, op in enumerate(plan.order)}
    if any(position[one] > position[op] for op, befores in enumerate(problem.predecessors) for one in befores):
        return False
    base = problem.base
    if any(plan.offsets[number] != plan.offsets[base[number]] for number in range(len(base))):
        return False
    touches: dict[int, list[int]] = {}
    for number, op in enumerate(problem.ops):
        for tensor in (*op.reads, *op.writes):
            touches.setdefault(base[tensor], []).append(2 * position[number])
    end = 2 * len(plan.order) + 1
    for tensor in problem.inputs:
        if base[tensor] in touches or not problem.free_inputs:
            touches.setdefault(base[tensor], []).append(-1)
    for tensor in (*problem.outputs, *(() if problem.free_inputs else problem.inputs)):
        touches.setdefault(base[tensor], []).append(end)
    lives = {tensor: (min(when), max(when)) for tensor, when in touches.items()}
    arena = max((plan.offsets[tensor] + problem.tensors[tensor].size for tensor in lives), default=0)
    if arena != plan.arena or any(plan.offsets[t] % problem.tensors[t].alignment for t in range(len(base)) if base[t] == t):
        return False
    pairs = {(base[one], other): number for number, op in enumerate(problem.ops) for one, other in op.in_place}
    for one, (first, last) in lives.items():
        for other, (begin, until) in lives.items():
            if one >= other or last < begin or until < first:
                continue
            bytes_one = set(range(plan.offsets[one], plan.offsets[one] + problem.tensors[one].size))
            bytes_other = set(range(plan.offsets[other], plan.offsets[other] + problem.tensors[other].size))
            if not bytes_one & bytes_other:
                continue
            allowed = False
            for x, y in ((one, other), (other, one)):
                if (x, y) in pairs and lives[x][1] == lives[y][0] and plan.offsets[x] == plan.offsets[y]:
                    allowed = lives[x][1] == 2 * position[pairs[x, y]]
            if not allowed:
                return False
    live = [
        sum(problem.tensors[t].size for t, (first, last) in lives.items() if first <= 2 * at <= last)
        - sum(problem.tensors[x].size for (x, _), number in pairs.items() if position[number] == at and lives[x][1] == 2 * at)
        for at in range(len(plan.order))
    ]
    return max(live, default=0) == plan.objective
