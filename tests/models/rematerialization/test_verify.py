"""The verifier takes good plans, and finds each way to break one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from stowplan.models.operator_order.problem import of_graph as order_problem
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Op, Problem, Reservation, Tensor
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import live_bytes, load_bytes, verify
from tests.models.operator_order import cases as operator_order
from tests.models.rematerialization.cases import random_problem, training, with_reservations

#: Without the second run of ``grow`` 8 + 8 bytes would be live at ``other``.
PROBLEM = Problem(
    tensors=(
        Tensor(id="x", size=1),
        Tensor(id="big", size=8),
        Tensor(id="small", size=1),
        Tensor(id="huge", size=8),
        Tensor(id="rest", size=1),
        Tensor(id="view", size=4, alias_of=1),
        Tensor(id="y", size=1),
    ),
    ops=(
        Op(id="grow", reads=(0,), writes=(1,), cost=5),
        Op(id="shrink", reads=(1,), writes=(2,), cost=1),
        Op(id="other", reads=(2,), writes=(3,), cost=1),
        Op(id="end", reads=(3,), writes=(4,), cost=1, once=True),
        Op(id="look", reads=(1,), writes=(5,)),
        Op(id="sum", reads=(4, 5), writes=(6,), cost=1),
    ),
    inputs=(0,),
    outputs=(6,),
    precedences=((3, 5),),
    limit=11,
)
PLAN = Plan(problem=PROBLEM.digest, objective=5, peak=10, sequence=(0, 1, 2, 3, 0, 4, 5))


def test_a_good_plan() -> None:
    found = verify(PROBLEM, PLAN)
    assert (found.ok, found.objective, found.figures["peak"]) == (True, 5, 10)
    assert live_bytes(PROBLEM, PLAN) == (9, 10, 10, 10, 10, 9, 10)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"problem": "0" * 64}, "wrong_problem", "the plan is for problem 0000"),
        ({"sequence": (0, 9)}, "unknown_operator", "run 1 is of operator 9, expected 0 to 5"),
        ({"sequence": (0, 1, 2, 3, 0, 4)}, "never_runs", "operator sum never runs"),
        ({"sequence": (0, 1, 2, 3, 3, 0, 4, 5)}, "runs_again", "operator end runs again at run 4"),
        ({"sequence": (1, 0, 2, 3, 0, 4, 5)}, "too_early", "run 0 (shrink) needs tensor big"),
        ({"sequence": (0, 1, 2, 3, 4, 5, 3)}, "too_early", "operator end runs at run 6, after sum at 5"),
        ({"objective": 4}, "wrong_objective", "an added cost of 4, it is 5"),
        ({"peak": 9}, "wrong_peak", "a peak of 9 bytes, it is 10"),
        ({"sequence": (0, 1, 2, 3, 4, 5), "objective": 0, "peak": 17}, "over_limit", "17 bytes are live at run 2 (other)"),
    ],
)
def test_what_is_broken_is_found(changes: dict[str, object], code: str, words: str) -> None:
    found = verify(PROBLEM, msgspec.structs.replace(PLAN, **changes)).violations
    assert [each for each in found if each.code == code and words in each.message], found


def test_what_is_reserved_counts_while_it_is_in_force() -> None:
    """From the run of one operator on, before that of another, during one alone, and so many times what is live at one."""
    marked = tuple(msgspec.structs.replace(op, once=op.id in ("other", "end")) for op in PROBLEM.ops)
    live = (9, 10, 10, 10, 10, 9, 10)
    for row, added in [
        (Reservation(size=5), (5, 5, 5, 5, 5, 5, 5)),
        (Reservation(size=5, since=2), (0, 0, 5, 5, 5, 5, 5)),
        (Reservation(size=5, until=3), (5, 5, 5, 0, 0, 0, 0)),
        (Reservation(size=5, since=2, until=3), (0, 0, 5, 0, 0, 0, 0)),
        (Reservation(size=5, since=3, until=3), (0, 0, 0, 5, 0, 0, 0)),
        (Reservation(size=5, since=3, until=2), (0, 0, 0, 0, 0, 0, 0)),
        (Reservation(size=-10, until=2, times=2, of=3), (10, 10, 0, 0, 0, 0, 0)),
    ]:
        smaller = Reservation(size=1, since=row.since, until=row.until)
        problem = msgspec.structs.replace(PROBLEM, ops=marked, reserved=(row, smaller), limit=None)
        plan = msgspec.structs.replace(PLAN, problem=problem.digest)
        loads = tuple(size + more for size, more in zip(live, added, strict=True))
        assert load_bytes(problem, plan) == loads, row
        assert live_bytes(problem, plan) == live
        plan = msgspec.structs.replace(plan, peak=max(loads))
        assert verify(problem, plan).ok
        tight = msgspec.structs.replace(problem, limit=max(loads) - 1)
        found = verify(tight, msgspec.structs.replace(plan, problem=tight.digest)).violations
        assert [each.code for each in found] == ["over_limit"]
        assert f"{max(loads)} bytes are live or reserved at run" in found[0].message


def test_a_view_keeps_the_instance_that_it_was_made_of() -> None:
    """Its base's writer runs again while the view is still to be read: both instances are live."""
    problem = msgspec.structs.replace(PROBLEM, ops=(*PROBLEM.ops, Op(id="late", reads=(1,))), limit=None)
    plan = build(problem).made((0, 4, 1, 0, 6, 2, 3, 5))
    assert verify(problem, plan).ok
    assert plan.peak == 18


def test_a_place_is_taken_by_the_last_reader_of_an_instance() -> None:
    tensors = (Tensor(id="a", size=4), Tensor(id="b", size=4), Tensor(id="c", size=1))
    ops = (
        Op(id="make", writes=(0,), cost=1),
        Op(id="relu", reads=(0,), writes=(1,), in_place=((0, 1),)),
        Op(id="use", reads=(0, 1), writes=(2,)),
    )
    problem = Problem(tensors=tensors, ops=ops, outputs=(2,))
    made = build(problem).made
    assert made((0, 1, 2)).peak == 9
    # The second instance is another one: relu's operand is free.
    assert made((0, 1, 0, 2)).peak == 9
    assert live_bytes(problem, made((0, 1, 0, 2))) == (4, 4, 8, 9)


def test_operators_that_run_once_have_the_peak_of_operator_order() -> None:
    for seed in range(200):
        problem = random_problem(seed)
        for order in [next(operator_order.orders(order_problem(problem)))]:
            assert build(problem).made(order).peak == operator_order.peak_of(order_problem(problem), order), seed


@pytest.mark.parametrize("part", range(4))
def test_changed_plans_are_valid_where_a_plain_reading_of_the_rules_says_so(part: int) -> None:
    valid = 0
    for seed in range(50 * part, 50 * part + 50):
        problem = (random_problem if seed % 3 == 2 else training)(seed)
        problem = with_reservations(problem, seed) if seed % 2 else problem
        structure, chance = build(problem), random.Random(seed)
        for _ in range(20):
            runs = list(structure.order)
            for _ in range(chance.randint(0, 4)):
                runs.insert(chance.randint(0, len(runs)), chance.randrange(structure.ops))
            if chance.random() < 0.4:
                one, other = chance.randrange(len(runs)), chance.randrange(len(runs))
                runs[one], runs[other] = runs[other], runs[one]
            plan = structure.made(runs)
            peak = _peak(problem, runs)
            found = verify(problem, plan)
            assert found.ok == (peak is not None), (seed, runs)
            if peak is not None:
                valid += 1
                assert found.figures.get("peak") == peak, (seed, runs)
                tight = msgspec.structs.replace(problem, limit=peak)
                assert verify(tight, msgspec.structs.replace(plan, problem=tight.digest)).ok
                if peak:
                    low = msgspec.structs.replace(problem, limit=peak - 1)
                    found = verify(low, msgspec.structs.replace(plan, problem=low.digest))
                    assert [each.code for each in found.violations] == ["over_limit"]
    assert valid > 100


def _peak(problem: Problem, runs: Sequence[int]) -> int | None:
    """The rules once more, byte by byte: each run looks back for what it reads, each moment forward for what is still read."""
    tensors, written = problem.tensors, {tensor: number for number, op in enumerate(problem.ops) for tensor in op.writes}
    count = len(runs)

    def source(tensor: int) -> int:
        base = tensors[tensor].alias_of
        return tensor if tensor in written or base is None else source(base)

    def instance(tensor: int, at: int) -> tuple[int, int] | None:
        """Storage, and the run that wrote what is read of a tensor just before run ``at``; -1 for inputs."""
        tensor = source(tensor)
        if tensor not in written:
            return (tensor, -1) if tensor in problem.inputs else None
        before = [each for each in range(at) if runs[each] == written[tensor]]
        base = tensors[tensor].alias_of
        if not before or base is None:
            return (tensor, before[-1]) if before else None
        own = source(base) in problem.ops[written[tensor]].writes
        return instance(base, before[-1] + own)

    if {*runs} != {*range(len(problem.ops))} or any(problem.ops[op].once and runs.count(op) > 1 for op in runs):
        return None
    last: dict[tuple[int, int], int] = {}
    for one, other in problem.precedences:
        if count - 1 - list(reversed(runs)).index(one) > list(runs).index(other):
            return None
    for at, number in enumerate(runs):
        op = problem.ops[number]
        bases = [base for each in op.writes if (base := tensors[each].alias_of) is not None]
        for tensor in (*op.reads, *(base for base in bases if source(base) not in op.writes)):
            found = instance(tensor, at)
            if found is None:
                return None
            last[found] = at
        for tensor in op.writes:
            found = instance(tensor, at + 1)
            assert found is not None
            last[found] = max(last.get(found, at), at)
    for tensor in (*problem.outputs, *(() if problem.free_inputs else problem.inputs)):
        found = instance(tensor, count)
        assert found is not None
        last[found] = count
    bytes_at = []
    for at, number in enumerate(runs):
        live = sum(tensors[tensor].size for (tensor, begin), end in last.items() if begin <= at <= end)
        for operand, result in problem.ops[number].in_place:
            taken = instance(operand, at)
            live -= tensors[result].size if taken is not None and last[taken] == at else 0
        bytes_at.append(live)
    return max((live + _reserved(problem, runs, bytes_at, at) for at, live in enumerate(bytes_at)), default=0)


def _reserved(problem: Problem, runs: Sequence[int], live: Sequence[int], at: int) -> int:
    """The largest reservation in force at a run, each looked at by itself."""
    sizes, done = [0], {*runs[: at + 1]}
    for row in problem.reservations:
        if row.since is not None and row.since == row.until:
            holds = runs[at] == row.since
        else:
            holds = (row.since is None or row.since in done) and (row.until is None or row.until not in done)
        if holds:
            sizes.append(row.size + sum(live[runs.index(row.of)] for _ in range(row.times) if row.of is not None))
    return max(sizes)
