"""The verifier against an executor, on random valid plans and on everything one change away from them."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings

from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Evictions, Loop, Piece, Problem, Step, Tensor, Use
from stowplan.models.memory_mapping.verify import MAX_LISTED, Reason, Verification, verify
from tests.models.memory_mapping import reference
from tests.models.memory_mapping.cases import planned_problems, random_plan, random_problem, with_objective
from tests.models.memory_mapping.mutations import mutants

#: Codes of rules that say what a plan looks like; the others say what happens when it runs.
FORM = {
    Reason.WRONG_PROBLEM,
    Reason.BAD_INDEX,
    Reason.BAD_INTERVAL,
    Reason.BAD_OFFSET,
    Reason.BAD_PRELOAD,
    Reason.COPY_ORDER,
    Reason.BAD_PART,
    Reason.LOOP_PARTIAL,
    Reason.LOOP_MIXED,
    Reason.ALIAS_NOT_UNIFORM,
}
CLOCK = {Reason.STALLED_COPY, Reason.WRONG_OBJECTIVE}


def codes(verification: Verification) -> set[Reason]:
    return {violation.code for violation in verification.violations}


def agree(problem: Problem, plan: Plan) -> Verification:
    """Verify, and require that the executor says the same, kind of rule by kind of rule."""
    found = verify(problem, plan)
    form = reference.form_faults(problem, plan)
    assert bool(codes(found) & FORM) == bool(form), (found.violations, form)
    if not form:
        execution = reference.execution_faults(problem, plan)
        assert bool(codes(found) - FORM - CLOCK) == bool(execution), (found.violations, execution)
        clock = reference.clock_faults(problem, plan)
        assert bool(codes(found) & CLOCK) == bool(clock), (found.violations, clock)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_random_valid_plans_run(seed: int) -> None:
    rng = random.Random(seed)
    used: Counter[str] = Counter()
    for _ in range(50):
        problem = random_problem(rng)
        plan = random_plan(problem, rng)
        assert agree(problem, plan).ok
        used.update(copy.direction for copy in plan.copies)
        used["preload"] += sum(item.preloaded for item in plan.residencies)
        used["stall"] += verify(problem, plan).figures.get("stall_ps", 0) > 0
    # The plans are worth testing on.
    assert min(used[kind] for kind in ("in", "out", "preload", "stall")) >= 5


@pytest.mark.parametrize("seed", range(12))
def test_every_mutant_is_rejected_or_runs(seed: int) -> None:
    rng = random.Random(f"mutants {seed}")
    for _ in range(4):
        problem = random_problem(rng)
        plan = random_plan(problem, rng)
        for what, mutant in mutants(problem, plan):
            found = agree(problem, mutant)
            if what in ("objective", "digest"):
                assert not found.ok, what
            if found.ok:
                # Then it is a plan as good as any: the right objective, by the executor's own clock too.
                assert found.objective == mutant.objective


def agree_on_mutants(problem: Problem, plan: Plan) -> None:
    """Each with the objective that it has, where it has one."""
    for _, mutant in mutants(problem, plan):
        objective = verify(problem, mutant).objective
        agree(problem, mutant if objective is None else msgspec.structs.replace(mutant, objective=objective))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_evictions_between_steps(seed: int) -> None:
    """Valid plans run, and so does every mutant that the verifier accepts; some leave their place between two steps."""
    rng = random.Random(f"between steps {seed}")
    leaving = 0
    while leaving < 4:
        problem = random_problem(rng, stalls="allowed", channels=1, evictions="between_steps")
        plan = random_plan(problem, rng)
        ends = {(item.tensor, item.end) for item in plan.residencies}
        empty = [copy for copy in plan.copies if copy.direction == "out" and copy.start == copy.end]
        if not any((copy.tensor, copy.end) in ends for copy in empty):
            continue
        leaving += 1
        assert agree(problem, plan).ok
        agree_on_mutants(problem, plan)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("evictions", ["whole_steps", "between_steps"])
def test_prefetches_in_slices(seed: int, evictions: Evictions) -> None:
    """As for evictions: the executor takes the place of a slice when that starts."""
    rng = random.Random(f"slices {seed}")
    sliced = 0
    while sliced < 1:
        problem = random_problem(rng, stalls="allowed", channels=1, prefetches="sliced", evictions=evictions)
        plan = random_plan(problem, rng)
        if not any(copy.part for copy in plan.copies):
            continue
        sliced += 1
        assert agree(problem, plan).ok
        agree_on_mutants(problem, plan)


class TestPlaceLeft:
    """A result that is copied out between two steps, and who takes its place."""

    problem = Problem(
        name="left", target="none", cost_model="test", capacity=1, evictions="between_steps",
        steps=(
            Step("make", "test", 1, (Use(0, True, 1),), (Piece(0, (9,), (1,)),)),
            Step("take", "test", 1, (Use(1, False, 1),), (Piece(0, (9,), (1,)),)),
        ),
        tensors=(Tensor("made", 1, 2, 3, is_output=True), Tensor("taken", 1, 2, 2, is_input=True)),
    )  # fmt: skip

    def plan(self, *copies: Copy, end: int = 1) -> Plan:
        residencies = (Residency(0, 0, end, 0), Residency(1, 1, 2, 0))
        return with_objective(
            self.problem,
            Plan(problem=self.problem.digest, objective=0, residencies=residencies, copies=copies, fast_uses=(0, 1)),
        )

    def test_the_next_takes_it_at_once(self) -> None:
        found = agree(self.problem, self.plan(Copy(0, "out", 1, 1), Copy(1, "in", 1, 1)))
        assert found.ok
        assert found.objective == 1 + 3 + 2 + 1

    def test_not_where_steps_are_whole(self) -> None:
        strict = msgspec.structs.replace(self.problem, evictions="whole_steps")
        plan = msgspec.structs.replace(self.plan(Copy(0, "out", 1, 1), Copy(1, "in", 1, 1)), problem=strict.digest)
        assert codes(agree(strict, plan)) == {Reason.COPY_WITHOUT_RESIDENCY}

    def test_not_before_it_is_left(self) -> None:
        assert codes(agree(self.problem, self.plan(Copy(1, "in", 1, 1), Copy(0, "out", 1, 1)))) == {Reason.OVERLAP}

    def test_after_the_last_step(self) -> None:
        plan = Plan(problem=self.problem.digest, objective=0, residencies=(Residency(0, 0, 2, 0),), fast_uses=(0,))
        plan = msgspec.structs.replace(plan, copies=(Copy(0, "out", 2, 2),))
        found = agree(self.problem, with_objective(self.problem, plan))
        assert found.ok
        assert found.objective == 1 + 9 + 3


def test_mutants_with_their_objective_restated() -> None:
    """Without a wrong objective to give a mutant away, the rules themselves must tell."""
    rng = random.Random("restated")
    accepted = rejected = 0
    for _ in range(15):
        problem = random_problem(rng)
        for _, mutant in mutants(problem, random_plan(problem, rng)):
            objective = verify(problem, mutant).objective
            if objective is not None:
                found = agree(problem, msgspec.structs.replace(mutant, objective=objective))
                accepted += found.ok
                rejected += not found.ok
    assert accepted > 100
    assert rejected > 100


@given(planned_problems())
@settings(max_examples=60)
def test_verification_is_deterministic_and_explains(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    broken = msgspec.structs.replace(plan, copies=(), objective=-1)
    assert verify(problem, broken) == verify(problem, broken)
    for violation in verify(problem, broken).violations:
        assert violation.message
        assert "\n" not in violation.message


def test_mad_plans_do_not_raise() -> None:
    rng = random.Random("mad")
    numbers = [-(10**30), -1, 0, 1, 2, 5, 9, 10**30]
    for _ in range(300):
        problem = random_problem(rng)
        pick = lambda: rng.choice(numbers)  # noqa: E731
        plan = Plan(
            problem=problem.digest,
            objective=pick(),
            residencies=tuple(Residency(pick(), pick(), pick(), pick(), rng.random() < 0.3) for _ in range(rng.randint(0, 5))),
            copies=tuple(Copy(pick(), rng.choice(["in", "out"]), pick(), pick()) for _ in range(rng.randint(0, 5))),
            fast_uses=tuple(pick() for _ in range(rng.randint(0, 5))),
        )
        assert verify(problem, plan).ok == reference.is_valid(problem, plan)


def test_empty_program() -> None:
    problem = Problem(name="", target="", cost_model="", capacity=1, steps=(), tensors=(Tensor("x", 1, 1, 1, True, True),))
    assert verify(problem, Plan(problem=problem.digest, objective=0)).ok


# One small program, and for each code a plan that breaks that rule and no other.

READ, WRITE = False, True


def step(*uses: tuple[int, bool], slow: int = 10, fast: int = 4, weight: int = 1) -> Step:
    return Step(
        name="step",
        opcode="op",
        weight=weight,
        uses=tuple(Use(tensor, is_output, 1) for tensor, is_output in uses),
        pieces=(Piece(0, (slow,) * len(uses), (fast,) * len(uses)),),
    )


X, Y, Z = 0, 1, 2


def program(**changes: object) -> Problem:
    """x is an input, y is made from it and is an output, z is between the two; y is updated in place at the end."""
    fields: dict[str, object] = {
        "name": "chain",
        "target": "none",
        "cost_model": "by hand",
        "capacity": 8,
        "alignment": 2,
        "max_preloads": 1,
        "stalls": "forbidden",
        "steps": (
            step((X, READ)),  # use 0
            step((X, READ), (Z, WRITE)),  # 1, 2
            step((Z, READ), (Y, WRITE)),  # 3, 4
            step((X, READ)),  # 5
            step((Y, READ), (Y, WRITE)),  # 6, 7
            step(),
            step((X, READ)),  # 8
        ),
        "tensors": (
            Tensor("x", 4, copy_in_ps=4, copy_out_ps=4, is_input=True),
            Tensor("y", 4, copy_in_ps=4, copy_out_ps=4, is_output=True, members=("y.0", "y.1")),
            Tensor("z", 4, copy_in_ps=4, copy_out_ps=4),
        ),
    }
    return Problem(**{**fields, **changes})  # type: ignore[arg-type]


def plan_for(problem: Problem, *parts: Residency | Copy, fast: tuple[int, ...] = ()) -> Plan:
    return with_objective(
        problem,
        Plan(
            problem=problem.digest,
            objective=0,
            residencies=tuple(part for part in parts if isinstance(part, Residency)),
            copies=tuple(part for part in parts if isinstance(part, Copy)),
            fast_uses=fast,
        ),
    )


#: Copies take no time, so that one with an empty window is not late.
FREE_COPIES = program(tensors=tuple(msgspec.structs.replace(tensor, copy_in_ps=0) for tensor in program().tensors))

#: x is read in every iteration of a loop, and written at its end.
REWRITTEN = program(
    steps=(step((X, READ)), step((X, READ)), step((X, WRITE))), loops=(Loop(1, 3, 2),), tensors=program().tensors[:1]
)
UPDATED = program(steps=(step((X, READ)), step((X, READ), (X, WRITE)), step()), tensors=program().tensors[:1])


def test_valid_plan_by_hand() -> None:
    problem = program(steps=(*program().steps, step((X, READ))))
    plan = plan_for(
        problem,
        Residency(X, 0, 2, 0, preloaded=True),
        Residency(Z, 1, 3, 4),
        Residency(Y, 2, 8, 0),
        Residency(X, 3, 7, 4),
        Copy(X, "in", 3, 4),
        Copy(Y, "out", 5, 8),
        fast=(0, 1, 2, 3, 4, 6, 7, 8),
    )
    found = agree(problem, plan)
    assert found.ok
    assert found.objective == 4 + 8 + 8 + 10 + 8 + 0 + 4 + 10
    assert found.figures["stall_ps"] == 0
    stalling = msgspec.structs.replace(problem, stalls="allowed")
    assert verify(stalling, msgspec.structs.replace(plan, problem=stalling.digest)).ok


def test_stalls_are_counted() -> None:
    problem = program(stalls="allowed")
    plan = plan_for(
        problem,
        Residency(X, 0, 2, 0),
        Copy(X, "in", 0, 0),
        Residency(Y, 2, 7, 0),
        Residency(X, 6, 7, 4),
        Copy(Y, "out", 5, 6),
        Copy(X, "in", 6, 6),
        fast=(0, 1, 4, 6, 7, 8),
    )
    found = agree(problem, plan)
    assert found.ok
    # The first copy-in stalls step 0; step 5 takes no time, so the copy-out stalls step 6, and the next copy-in follows it.
    assert found.figures["stall_ps"] == 4 + 4 + 4
    assert found.objective == 12 + 4 + 14 + 14 + 10 + 8 + 0 + 4


@pytest.mark.parametrize(
    ("code", "problem", "parts", "fast"),
    [
        (Reason.OVERLAP, program(), [Residency(Z, 1, 3, 0), Residency(Y, 2, 4, 2), Copy(Y, "out", 3, 4)], (2, 3, 4)),
        (Reason.DOUBLE_RESIDENCY, program(), [Residency(Z, 1, 3, 0), Residency(Z, 1, 3, 4)], (2, 3)),
        (Reason.NO_SOURCE, program(), [Residency(X, 0, 2, 0)], (1,)),
        (Reason.BAD_OFFSET, program(), [Residency(Z, 1, 3, 1)], (2, 3)),
        (Reason.BAD_OFFSET, program(), [Residency(Z, 1, 3, -2)], (2, 3)),
        (Reason.BAD_OFFSET, program(), [Residency(Z, 1, 3, 6)], (2, 3)),
        (Reason.BAD_PRELOAD, program(max_preloads=0), [Residency(X, 0, 2, 0, preloaded=True)], (0,)),
        (Reason.BAD_PRELOAD, program(), [Residency(X, 3, 4, 0, preloaded=True)], (5,)),
        (Reason.BAD_INTERVAL, FREE_COPIES, [Residency(X, 3, 4, 0), Copy(X, "in", 3, 3)], (5,)),
        (Reason.COPY_WITHOUT_RESIDENCY, program(), [Copy(X, "in", 0, 1)], ()),
        (Reason.COPY_WITHOUT_RESIDENCY, program(), [Residency(X, 0, 2, 0, preloaded=True), Copy(X, "in", 0, 1)], (1,)),
        (Reason.COPY_WITHOUT_RESIDENCY, program(), [Residency(X, 0, 2, 0), Copy(X, "in", 0, 3)], ()),
        (Reason.COPY_WITHOUT_RESIDENCY, program(), [Residency(X, 0, 2, 0, preloaded=True), Copy(X, "out", 1, 3)], (1,)),
        (Reason.COPY_IN_LATE, program(), [Residency(X, 0, 2, 0), Copy(X, "in", 0, 1)], (0, 1)),
        (
            Reason.COPY_OUT_EARLY,
            program(channels=2),
            [Residency(X, 0, 4, 0), Copy(X, "in", 0, 2), Copy(X, "out", 1, 3)],
            (5,),
        ),
        (
            Reason.COPY_OUT_EARLY,
            program(stalls="allowed"),
            [Residency(Y, 2, 4, 0), Copy(Y, "out", 2, 2), Copy(Y, "out", 3, 4)],
            (4,),
        ),
        (
            Reason.COPY_OUT_EARLY,
            program(stalls="allowed"),
            [Residency(X, 0, 2, 0), Copy(X, "in", 0, 0), Copy(X, "out", 0, 1)],
            (0, 1),
        ),
        (Reason.FAST_USE_NOT_RESIDENT, program(), [], (0,)),
        (Reason.COPY_DURING_WRITE, program(), [Residency(Y, 2, 5, 0), Copy(Y, "out", 3, 5)], (4, 6, 7)),
        (Reason.STALE_SLOW, program(), [Residency(Y, 2, 4, 0)], (4,)),
        (Reason.STALE_SLOW, program(), [Residency(Z, 1, 2, 0), Residency(Z, 2, 3, 4), Copy(Z, "in", 2, 3)], (2,)),
        (Reason.STALE_FAST, program(), [Residency(Y, 3, 6, 0), Copy(Y, "in", 3, 4)], ()),
        (Reason.OUTPUT_NOT_SLOW, program(), [Residency(Y, 2, 7, 0)], (4, 6, 7)),
        (Reason.LOOP_PARTIAL, program(loops=(Loop(3, 6, 2),)), [Residency(X, 0, 4, 0, preloaded=True)], (0,)),
        (Reason.LOOP_PARTIAL, program(loops=(Loop(0, 7, 2),)), [Residency(X, 0, 7, 0), Copy(X, "in", 0, 2)], (5,)),
        (Reason.LOOP_PARTIAL, program(loops=(Loop(1, 3, 2),)), [Residency(Z, 1, 4, 0)], (2, 3)),
        (Reason.LOOP_MIXED, REWRITTEN, [Residency(X, 0, 3, 0), Copy(X, "in", 0, 1)], (2,)),
        (Reason.SPLIT_IN_PLACE, UPDATED, [Residency(X, 0, 3, 0), Copy(X, "in", 0, 1)], (2,)),
        (Reason.STALLED_COPY, program(), [Residency(X, 5, 7, 0), Copy(X, "in", 5, 6)], (8,)),
        (
            Reason.ALIAS_NOT_UNIFORM,
            program(alias_rule="uniform"),
            [Residency(Y, 2, 4, 0), Copy(Y, "out", 3, 4)],
            (4,),
        ),
    ],
)
def test_each_rule_by_hand(code: Reason, problem: Problem, parts: list[Residency | Copy], fast: tuple[int, ...]) -> None:
    found = agree(problem, plan_for(problem, *parts, fast=fast))
    assert codes(found) == {code}, found.violations


def test_claims_and_order() -> None:
    problem = program(stalls="allowed")
    plan = plan_for(
        problem,
        Residency(X, 0, 2, 0),
        Copy(X, "in", 0, 1),
        Residency(X, 3, 7, 0),
        Copy(X, "in", 3, 5),
        fast=(1, 8),
    )
    assert verify(problem, plan).ok
    for code, runs, changes in [
        (Reason.WRONG_PROBLEM, True, {"problem": "0" * 64}),
        (Reason.WRONG_OBJECTIVE, True, {"objective": plan.objective - 1}),
        (Reason.COPY_ORDER, False, {"copies": plan.copies[::-1]}),
        (Reason.BAD_INDEX, True, {"fast_uses": plan.fast_uses[::-1]}),
        (Reason.BAD_INDEX, False, {"fast_uses": (*plan.fast_uses, 9)}),
        (Reason.BAD_INDEX, True, {"residencies": (*plan.residencies, Residency(3, 0, 1, 0))}),
        (Reason.BAD_INDEX, False, {"copies": (*plan.copies, Copy(-1, "in", 3, 4))}),
    ]:
        found = verify(problem, msgspec.structs.replace(plan, **changes))
        assert codes(found) == {code}
        assert (found.objective is not None) == runs


def test_what_a_loop_would_break() -> None:
    """Run once, the plan is right; in the second iteration the read finds what was there before the first."""
    parts = (Residency(X, 0, 3, 0), Copy(X, "in", 0, 1))
    once = msgspec.structs.replace(REWRITTEN, loops=())
    assert agree(once, plan_for(once, *parts, fast=(2,))).ok
    assert reference.execution_faults(REWRITTEN, plan_for(REWRITTEN, *parts, fast=(2,)))


def test_long_lists_are_capped() -> None:
    problem = program(capacity=2)
    many = tuple(Residency(tensor, 0, 7, 0, True) for tensor in (X, Y) for _ in range(60))
    found = verify(problem, Plan(problem=problem.digest, objective=problem.all_slow_ps, residencies=many))
    for code, count in ((Reason.OVERLAP, 60 * 60), (Reason.DOUBLE_RESIDENCY, 60 * 59), (Reason.BAD_OFFSET, 120)):
        listed = [violation.message for violation in found.violations if violation.code is code]
        assert len(listed) == MAX_LISTED + 1
        assert listed[-1] == f"and {count - MAX_LISTED} more"
