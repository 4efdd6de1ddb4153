"""A new plan that changes little of an earlier one: valid, never worse, never further from it than the best plan found."""

from __future__ import annotations

import itertools
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan import KeepClose, kinds
from stowplan.deadline import Deadline
from stowplan.errors import InputError, UsageError
from stowplan.kernel.context import Options
from stowplan.kernel.keep_close.after_run import StabilityPass
from stowplan.kernel.keep_close.earlier_plan import given
from stowplan.kernel.kind import check, kind_of
from stowplan.kernel.state import RunState
from stowplan.models.modulo_scheduling.cpsat.questions import solve_closest as solve_closest_schedule
from stowplan.models.modulo_scheduling.structure import Structure
from stowplan.models.packing.cpsat import solve_closest
from stowplan.models.packing.plan import Plan as Packing
from stowplan.models.packing.problem import Problem as PackingProblem
from stowplan.portfolio.packing.keep_close import offsets_by_ejection
from stowplan.portfolio.plan_comparison import compare_plans
from tests.kernel.conftest import SolveFakes
from tests.kernel.fakes import OPTIMUM, ladder_plan, ladder_problem
from tests.kernel.keep_close.cases import first_fit, valid_plans
from tests.models.packing.cases import fits, least_height, random_problem

OPTIONS = Options(time_limit=3.0, deterministic=True, workers=1)


def kept_close(problem: Any, plans: list[Any], close: KeepClose) -> tuple[RunState, dict[str, Any]]:
    """What comes of a run that finds these plans."""
    kind = kind_of(problem)
    closer = StabilityPass(kind, problem, given(close, kind))
    state = RunState(kind, problem, OPTIONS, Deadline(60.0), on_plan=closer.remember)
    starts = {name: start.plan for name, start in closer.starts.items()}
    for number, (name, plan) in enumerate([*starts.items(), *enumerate(plans)]):
        assert state.offer_plan(plan, str(name), (0, number)) is None
    closer.finish(state)
    return state, closer.details["keep_close"]


@pytest.mark.parametrize("kind", [each.name for each in kinds.registered()])
def test_never_worse_and_never_further(kind: str) -> None:
    """On random problems of every kind, with no loss allowed and with some."""
    closer = tried = 0
    for seed in range(12):
        problem, plans = valid_plans(kind, seed)
        for number, within in itertools.product(range(min(2, len(plans))), (0.0, 0.05)):
            earlier, others = plans[number], plans[:number] + plans[number + 1 :]
            state, said = kept_close(problem, others, KeepClose(plan=earlier, within=within))
            best = min(check(kind_of(problem), problem, plan).objective or 0 for plan in plans)
            found = check(kind_of(problem), problem, state.plan)
            assert found.ok, found.violations
            assert state.objective == found.objective == state.plan.objective
            assert found.objective is not None
            before = check(kind_of(problem), problem, earlier)
            assert (found.objective, found.tie_break) <= (before.objective, before.tie_break)
            assert within or found.objective <= best
            parts = compare_plans(problem, earlier, state.plan).parts
            assert said["changed"] == sum(len(part.changes) for part in parts)
            assert said["of"] == sum(part.total for part in parts)
            assert said["changed"] <= said["best_changed"]
            closer += said["changed"] < said["best_changed"]
            tried += 1
    assert tried >= 20
    assert closer, "nothing was ever brought closer"


@pytest.mark.parametrize("seed", range(30))
def test_the_least_number_of_moved_buffers(seed: int) -> None:
    """Against trying every set of buffers to stay, with alignments, gaps and fixed offsets."""
    problem = random_problem(seed, most=5)
    height = least_height(problem)
    if height is None:
        return
    chance = random.Random(seed)
    earlier = first_fit(problem, chance)
    for ceiling in {height, height + 1}:
        least = _fewest_moved(problem, earlier.offsets, ceiling)
        bounds: list[int] = []
        outcome = solve_closest(
            msgspec.structs.replace(problem, capacity=ceiling),
            earlier.offsets,
            time_limit=30.0,
            workers=1,
            seed=0,
            on_bound=bounds.append,
        )
        assert outcome.status == "optimal"
        assert outcome.bound == least == max(bounds)
        assert outcome.plan is not None
        assert sum(a != b for a, b in zip(outcome.plan.offsets, earlier.offsets, strict=True)) == least
        assert check(kind_of(problem), problem, outcome.plan).ok
        pushed = offsets_by_ejection(msgspec.structs.replace(problem, capacity=ceiling), earlier.offsets, lambda: False)
        if pushed is not None:
            top = max((at + each.size for at, each in zip(pushed, problem.buffers, strict=True)), default=0)
            plan = Packing(problem=problem.digest, objective=top, offsets=pushed)
            assert top <= ceiling
            assert check(kind_of(problem), problem, plan).ok
            assert sum(a != b for a, b in zip(pushed, earlier.offsets, strict=True)) >= least


def _fewest_moved(problem: PackingProblem, earlier: tuple[int, ...], ceiling: int) -> int:
    free = [at for at, buffer in enumerate(problem.buffers) if buffer.offset is None]
    for count in range(len(free) + 1):
        for moved in itertools.combinations(free, count):
            buffers = tuple(
                buffer if at in moved else msgspec.structs.replace(buffer, offset=earlier[at])
                for at, buffer in enumerate(problem.buffers)
            )
            if fits(PackingProblem(buffers=buffers), ceiling):
                return count
    raise AssertionError("no plan within the ceiling")


def buffers(*rows: tuple[str, int, int, int]) -> PackingProblem:
    return PackingProblem(
        buffers=tuple(
            kinds.load("stowplan.models.packing.problem:Buffer")(id=name, lower=low, upper=high, size=size)
            for name, low, high, size in rows
        )
    )


FOUR = (("a", 0, 4, 4), ("b", 2, 6, 3), ("c", 5, 9, 4), ("d", 0, 9, 2))


def packed(problem: PackingProblem, *offsets: int) -> Packing:
    plan = Packing(problem=problem.digest, objective=0, offsets=offsets, buffers=problem.buffers)
    height = max(at + each.size for at, each in zip(offsets, problem.buffers, strict=True))
    return msgspec.structs.replace(plan, objective=height)


def test_a_plan_as_good_as_the_best_is_kept_whole() -> None:
    problem = buffers(*FOUR)
    earlier = packed(problem, 5, 2, 5, 0)
    assert earlier.objective == 9
    result = stowplan.solve(problem, time_limit=2.0, keep_close=earlier)
    assert result.plan.offsets == earlier.offsets
    assert (result.provenance.candidate, result.status, result.baselines["earlier"]) == ("earlier", "optimal", 9)
    assert result.details["keep_close"]["changed"] == 0
    assert "changed    0 of 4 decisions of the earlier plan" in result.summary()


def test_a_loss_that_is_allowed_keeps_more() -> None:
    problem = buffers(*FOUR)
    earlier = packed(problem, 6, 2, 6, 0)
    strict = stowplan.solve(problem, time_limit=2.0, keep_close=earlier)
    loose = stowplan.solve(problem, time_limit=2.0, keep_close=KeepClose(plan=earlier, within=0.12))
    assert (strict.objective, strict.details["keep_close"]["changed"]) == (9, 2)
    assert (loose.objective, loose.details["keep_close"]["changed"]) == (10, 0)
    assert (loose.status, loose.bound) == ("feasible", 9)


def test_what_is_kept_is_no_worse_than_a_baseline_that_is_named() -> None:
    """However much may be lost otherwise, and though the earlier plan is worse."""
    problem = buffers(*FOUR)
    earlier = packed(problem, 20, 2, 30, 0)
    loose, limited = (
        stowplan.solve(problem, time_limit=2.0, keep_close=KeepClose(plan=earlier, within=10.0), baseline=baseline)
        for baseline in (None, "greedy")
    )
    assert loose.plan.offsets == earlier.offsets
    assert limited.objective <= limited.baselines["greedy"] < earlier.objective


def test_an_earlier_version_is_known_again_by_names() -> None:
    """b is gone, e is new, d is larger; a and c have been swapped in the file."""
    yesterday = buffers(*FOUR)
    plan = packed(yesterday, 5, 2, 5, 0)
    today = buffers(("c", 5, 9, 4), ("a", 0, 4, 4), ("d", 0, 9, 3), ("e", 4, 5, 7))
    result = stowplan.solve(today, time_limit=2.0, keep_close=plan)
    assert result.details["keep_close"]["of"] == 3
    assert result.details["keep_close"]["parts"] == {"buffer": [0, 3]}
    assert dict(zip("cad", result.plan.offsets, strict=False)) == {"c": 5, "a": 5, "d": 0}
    assert result.objective == 10
    nameless = msgspec.structs.replace(plan, buffers=())
    again = stowplan.solve(today, time_limit=2.0, keep_close=KeepClose(plan=nameless, problem=yesterday))
    assert again.plan.offsets == result.plan.offsets
    with pytest.raises(UsageError, match="expected the earlier version with it"):
        stowplan.solve(today, time_limit=2.0, keep_close=nameless)


def test_what_is_no_earlier_plan_is_refused() -> None:
    problem = buffers(*FOUR)
    plan = packed(problem, 5, 2, 5, 0)
    wrong = msgspec.structs.replace(plan, offsets=(0, 0, 0, 0), objective=4)
    with pytest.raises(InputError, match="the earlier plan is not valid for this problem: overlap"):
        stowplan.solve(problem, time_limit=2.0, keep_close=wrong)
    with pytest.raises(UsageError, match="found a str to keep close to, expected a plan of packing"):
        stowplan.solve(problem, time_limit=2.0, keep_close="yesterday")
    with pytest.raises(UsageError, match="a loss of -1 to keep close"):
        stowplan.solve(problem, time_limit=2.0, keep_close=KeepClose(plan=plan, within=-1))
    with pytest.raises(UsageError, match="an earlier version that is a problem of memory_mapping"):
        stowplan.solve(problem, time_limit=2.0, keep_close=KeepClose(plan=plan, problem=ladder_problem()))
    with pytest.raises(UsageError, match="a plan named 'earlier'"):
        stowplan.solve(problem, time_limit=2.0, keep_close=plan, plans={"earlier": plan})
    other = buffers(("a", 0, 4, 4))
    with pytest.raises(InputError, match="not valid for the earlier version"):
        stowplan.solve(problem, time_limit=2.0, keep_close=KeepClose(plan=plan, problem=other))


def test_the_cache_knows_what_to_keep_close_to(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    first, second = (ladder_plan(ladder_problem(), 1, first=at) for at in (0, 1))
    plain = solve_fakes("solves", "proves", cache=tmp_path)
    one = solve_fakes("solves", "proves", cache=tmp_path, keep_close=first)
    other = solve_fakes("solves", "proves", cache=tmp_path, keep_close=second)
    loose = solve_fakes("solves", "proves", cache=tmp_path, keep_close=KeepClose(plan=first, within=0.5))
    assert not any("cached" in each.details for each in (plain, one, other, loose))
    again = solve_fakes("solves", "proves", cache=tmp_path, keep_close=first)
    assert "cached" in again.details
    assert (again.plan, again.details["keep_close"]) == (one.plan, one.details["keep_close"])


def test_the_same_bytes_again(solve_fakes: SolveFakes) -> None:
    earlier = ladder_plan(ladder_problem(), 1, first=1)
    results = [solve_fakes("solves", "proves", deterministic=True, keep_close=earlier, workers=each) for each in (1, 2)]
    assert results[0].objective == OPTIMUM
    assert msgspec.json.encode(results[0].plan) == msgspec.json.encode(results[1].plan)
    assert results[0].details["keep_close"] == results[1].details["keep_close"]


def test_a_cancelled_run_keeps_what_is_at_hand(solve_fakes: SolveFakes) -> None:
    earlier = ladder_plan(ladder_problem(), 1, first=1)
    cancel = threading.Event()
    cancel.set()
    result = solve_fakes("solves", keep_close=earlier, cancel=cancel)
    assert (result.stop_reason, result.provenance.candidate) == ("cancelled", "earlier")
    assert result.details["keep_close"]["changed"] == 0


def test_the_closest_schedule_is_the_earlier_one_where_that_is_allowed() -> None:
    """Also where its tiles are turned: the model breaks no symmetry."""
    tried = 0
    for seed in range(40):
        problem, plans = valid_plans("modulo_scheduling", seed, count=2)
        if len(plans) < 2 or plans[0].ii != plans[1].ii:
            continue
        earlier, start = plans
        found = solve_closest_schedule(
            Structure(problem),
            list(zip(earlier.tiles, earlier.times, strict=True)),
            start,
            max(earlier.makespan, start.makespan),
            time_limit=30.0,
        )
        assert found is not None
        assert check(kind_of(problem), problem, found).ok
        assert (found.tiles, found.times) == (earlier.tiles, earlier.times)
        tried += earlier.tiles != start.tiles
    assert tried >= 3
