"""Constructions that follow hints, and the search that takes hints up."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks.lib.memory_mapping.constructions import best_guided
from stowplan.kernel.context import Context, Options
from stowplan.learned_guidance.memory_mapping.guide import guide as learned_guide
from stowplan.learned_guidance.memory_mapping.guide.guide import filled_hint
from stowplan.models.hint import TRUST, Hint, check_hint
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.accesses import access_sequences
from stowplan.models.memory_mapping.hint import VALUES
from stowplan.models.memory_mapping.milp import hint as guide_module
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays, candidates
from stowplan.portfolio.memory_mapping import guided as guided_plans
from stowplan.portfolio.memory_mapping.guided import (
    BY_PLACE,
    PARAMS,
    Guide,
    followed,
    guide,
    guided,
)
from stowplan.portfolio.memory_mapping.heuristics import Built, run
from stowplan.portfolio.memory_mapping.state import ENTER, STAY, State
from tests.kernel.recorder import Recorder
from tests.models.memory_mapping.brute_force import best_plan, optimum
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.portfolio.memory_mapping.states import assert_sound, built_states, wide_problem

#: Of the clock: never.
FAR = math.inf


def random_hint(problem: Problem, rng: random.Random) -> Hint:
    """Any values: zeros and ones, or anything between, trusted or not."""
    count = hints.counts(problem)["fast"]
    draw = rng.choice([rng.random, lambda: float(rng.random() < 0.5), lambda: 1.0, lambda: 0.0])
    values = [[draw() for _ in range(count)] for _ in range(2)]
    confidence = [rng.random() for _ in range(count)] if rng.random() < 0.5 else []
    return hints.hint(problem, *values, confidence=confidence)


def relaxed(problem: Problem) -> Hint | None:
    return relaxation_hint(problem, Effort(end=FAR))[0]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_hint_says_the_plan_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng) if seed % 2 else wide_problem(seed)
    data = arrays.build(problem)
    values = guide(random_hint(problem, rng))
    for by in PARAMS.orders:
        state, complete = run(guided(data, values, rng.choice(PARAMS.thresholds), by), lambda: False)
        assert complete
        assert_sound(problem, data, state)
        assert all(permit == ENTER | STAY for permit in state.permits)


def end_of(built: Built) -> State:
    return run(built, lambda: False)[0]


@pytest.mark.parametrize("seed", range(20))
def test_residencies_begin_and_last_only_as_the_hint_says(seed: int) -> None:
    problem = wide_problem(seed)
    data = arrays.build(problem)
    hint = hints.of_plan(problem, random_plan(problem, random.Random(seed)))
    state = end_of(followed(data, guide(hint), 0.5, seed % 4))
    uses = [access.uses for sequence in access_sequences(problem) for access in sequence.accesses]
    number = {use: place for place, access in enumerate(uses) for use in access}

    def numbers(access: int) -> list[int]:
        span = range(data.accesses[access].first_use, data.accesses[access + 1].first_use)
        return sorted({number[int(data.access_uses[position].use)] for position in span})

    for slot in state.slots:
        if slot.tensor >= 0:
            assert hint.values["fast"][numbers(slot.first)[0]]
            for access in range(slot.first, slot.last):
                assert hint.values["keep"][numbers(access)[-1]]


def test_a_hint_of_nothing_builds_nothing_and_one_without_trust_binds_nothing() -> None:
    built = 0
    for seed in range(10):
        problem = wide_problem(seed)
        data = arrays.build(problem)
        nothing = [0.0] * hints.counts(problem)["fast"]
        everything = [1.0] * len(nothing)
        assert not end_of(followed(data, guide(hints.hint(problem, nothing, nothing)), 0.2, 0)).totals[0].placed
        free = end_of(followed(data, guide(hints.hint(problem, everything, everything)), 0.2, 0))
        doubted = hints.hint(problem, nothing, nothing, confidence=[TRUST / 2] * len(nothing))
        assert end_of(followed(data, guide(doubted), 0.2, 0)).totals[0].total == free.totals[0].total
        built += int(free.totals[0].placed)
    assert built


def test_the_best_plan_as_a_hint_is_found_again_more_often_than_without() -> None:
    found = unguided = total = 0
    for seed in range(60):
        problem = random_problem(random.Random(seed), steps=5, tensors=3)
        best = best_plan(problem)
        if best.objective == problem.all_slow_ps:
            continue
        total += 1
        data = arrays.build(problem)
        found += best_guided(data, hints.of_plan(problem, best), lambda: False).totals[0].total == best.objective
        unguided += min(state.totals[0].total for state in built_states(problem)) == best.objective
    assert unguided < found
    assert total < 2 * found


@pytest.mark.parametrize("with_places", [False, True])
def test_after_a_first_plan_far_from_what_there_is_no_other_is_built(
    with_places: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[float, int]] = []

    def counted(data: arrays.Data, values: Guide, least: float, by: int) -> Built:
        tried.append((least, by))
        return guided(data, values, least, by)

    monkeypatch.setattr(guided_plans, "guided", counted)
    orders = (BY_PLACE, *PARAMS.orders) if with_places else PARAMS.orders
    every = [(least, by) for least in PARAMS.thresholds for by in orders]
    for seed in range(10):
        problem = wide_problem(seed)
        data = arrays.build(problem)
        given = hints.of_plan(problem, random_plan(problem, random.Random(seed)))
        if not with_places:
            given = hints.hint(problem, given.values["fast"], given.values["keep"])
        best = best_guided(data, given, lambda: False)
        assert tried == every
        first = min(
            end_of(guided(data, guide(given), PARAMS.thresholds[0], by)).totals[0].total for by in orders[: 1 + with_places]
        )
        for objective, is_near in [
            (math.ceil(first / (1 + PARAMS.margin)), True),
            (math.floor(first / (1 + PARAMS.margin)) - 1, False),
        ]:
            tried.clear()
            state = best_guided(data, given, lambda: False, objective)
            assert tried == (every if is_near else every[: 1 + with_places])
            assert state.totals[0].total == (best.totals[0].total if is_near else first)
        tried.clear()


def searching(problem: Problem, hint: Hint | None, **options: Any) -> Recorder:
    context = Recorder(deterministic=True, time_limit=0.01, **options)
    context.known = () if hint is None else (hint,)
    candidates.search(problem, context)
    return context


@pytest.mark.parametrize("seed", range(12))
def test_search_reports_valid_plans_whatever_it_is_hinted(seed: int) -> None:
    rng = random.Random(seed)
    problem = wide_problem(seed)
    context = searching(problem, random_hint(problem, rng))
    assert context.plans
    for plan, _ in context.plans:
        assert verify(problem, plan).ok


def test_alone_the_search_solves_the_relaxation_and_proves_its_bound() -> None:
    problem = random_problem(random.Random(8), steps=6, tensors=3)
    context = searching(problem, None)
    assert context.bounds
    assert max(context.bounds) <= optimum(problem)
    # Without the exact side nothing of it is used.
    assert not searching(problem, None, candidates=("heuristic",)).bounds


def test_beside_others_it_takes_hints_up_when_they_come() -> None:
    """The hint is not there before the search has built its first plans."""
    taken = 0
    for seed in range(30):
        problem = wide_problem(seed)
        data = arrays.build(problem)
        hint = relaxed(problem)
        ordinary = min(state.totals[0].total for state in built_states(problem))
        if hint is None or best_guided(data, hint, lambda: False).totals[0].total >= ordinary:
            continue
        taken += 1
        context = Late(hint, looks=120, workers=2, candidates=("heuristic", "exact"))
        candidates.search(problem, context)
        sources = [source for _, source in context.plans]
        assert sources[0] == "greedy"
        for plan, _ in context.plans:
            assert verify(problem, plan).ok
        assert context.asked > 3
    assert taken


class Late(Recorder):
    """Has a hint from the fourth time on that it is asked for one."""

    def __init__(self, hint: Hint, **options: Any):
        super().__init__(**options)
        self._late, self.asked = hint, 0

    def hints(self) -> tuple[Hint, ...]:
        self.asked += 1
        return (self._late,) if self.asked > 3 else ()


def test_the_relaxation_hands_its_hint_on_and_its_bound() -> None:
    problem = wide_problem(1)
    context = Recorder(time_limit=5.0, workers=2)
    candidates.relaxation(problem, context)
    assert [hint.source for hint in context.given] == ["relaxation"]
    check_hint(problem, context.given[0], VALUES)
    # With one worker, and in deterministic runs, the search has solved it before.
    for options in ({"workers": 1}, {"deterministic": True}):
        again = Recorder(time_limit=5.0, **options)
        candidates.relaxation(problem, again)
        assert not again.given
        assert max(again.bounds) <= min(plan.objective for plan in [random_plan(problem, random.Random(2))])


def asked(monkeypatch: pytest.MonkeyPatch, values: float = 1.0) -> list[Path]:
    """Have the learned guide say the same of every access; the files of weights it is asked with."""
    paths: list[Path] = []

    def said(problem: Problem, path: Path) -> Hint:
        paths.append(path)
        count = hints.counts(problem)["fast"]
        return hints.hint(problem, [values] * count, [values] * count, source="learned")

    monkeypatch.setattr(learned_guide, "learned_hint", said)
    return paths


@pytest.mark.parametrize(
    ("options", "known", "expected"),
    [
        ({"workers": 2}, False, 1),
        ({"workers": 1}, False, 1),
        ({"deterministic": True}, False, 1),
        ({"candidates": ("heuristic", "learned")}, False, 1),
        ({"candidates": ("heuristic", "exact")}, False, 0),
        ({"candidates": ("search",)}, False, 0),
        ({"workers": 2}, True, 0),
        # Where it would take most of the time.
        ({"time_limit": 1e-4}, False, 0),
    ],
)
def test_the_learned_guide_is_asked_once_where_there_is_no_hint_yet(
    options: dict[str, Any], known: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = wide_problem(3)
    paths = asked(monkeypatch)
    context = Recorder(**{"deterministic": True, "time_limit": 0.01, **options})
    context.known = (random_hint(problem, random.Random(1)),) if known else ()
    candidates.search(problem, context)
    assert len(paths) == expected
    assert all(path.name == "mmap_guide.npz" and path.is_file() for path in paths)
    assert [each.split(":")[0] for each in context.followed] == ["mmap_guide.npz sha256"] * expected


def test_a_learned_guide_that_comes_too_late_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide_problem(3)
    paths = asked(monkeypatch)
    context = Recorder(deterministic=True, time_limit=0.01)
    guides = guided_plans.Guides(problem, context, arrays.build(problem))
    monkeypatch.setattr(context, "closed", lambda: len(paths) == 1)
    assert guides.better(10**12) is None
    assert (len(paths), context.followed) == (1, [])


@pytest.mark.parametrize(
    ("options", "known", "expected"),
    [
        ({"candidates": ("heuristic", "learned")}, False, 0),
        ({"candidates": ("heuristic", "exact")}, False, 1),
        ({"candidates": ("search",)}, False, 1),
        ({"candidates": ("heuristic",)}, True, 0),
        # Where the learned guide would take too long: this one takes half of that.
        ({"time_limit": 1.5}, False, 1),
        ({"time_limit": 1e-4}, False, 0),
    ],
)
def test_without_a_learned_guide_memory_filled_by_density_is_followed(
    options: dict[str, Any], known: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = wide_problem(3)
    asked(monkeypatch)
    seconds = {"guide_seconds": 0.5 / problem.use_count, "filled_seconds": 0.25 / problem.use_count}
    monkeypatch.setattr(guided_plans, "PARAMS", msgspec.structs.replace(PARAMS, **seconds))
    filled: list[Hint] = []

    def fill(problem: Problem) -> Hint:
        filled.append(filled_hint(problem))
        return filled[-1]

    monkeypatch.setattr("stowplan.learned_guidance.memory_mapping.guide.guide.filled_hint", fill)
    context = Recorder(**{"looks": 60, "time_limit": 4.0, **options})
    context.known = (random_hint(problem, random.Random(1)),) if known else ()
    candidates.search(problem, context)
    assert len(filled) == expected
    for hint in filled:
        check_hint(problem, hint, VALUES)
    for plan, _ in context.plans:
        assert verify(problem, plan).ok


def test_what_follows_the_learned_guide_is_raced_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better plans are reported as guided; with nothing permitted the search goes on as without."""
    better = 0
    for seed in range(12):
        problem = wide_problem(seed)
        plain = searching(problem, None, candidates=("heuristic",)).plans
        asked(monkeypatch, 0.0)
        empty = searching(problem, None, candidates=("heuristic", "learned")).plans
        assert min(plan.objective for plan, _ in empty) <= plain[0][0].objective
        asked(monkeypatch, 1.0)
        full = searching(problem, None, candidates=("heuristic", "learned")).plans
        assert full[0] == plain[0]
        better += full[1:2] != [] and full[1][1] == "guided"
        for plan, _ in (*empty, *full):
            assert verify(problem, plan).ok
    assert better


def test_without_a_file_of_weights_the_search_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOWPLAN_GUIDE", str(tmp_path / "none.npz"))
    context = searching(wide_problem(1), None)
    assert context.plans
    (note,) = context.notes
    assert note.startswith(f"the learned guide: {tmp_path / 'none.npz'}: cannot read")


def test_equal_runs_give_equal_plans() -> None:
    problem = wide_problem(5)
    first, second = (searching(problem, None).plans for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("options", "within"),
    [
        ({"workers": 2}, False),
        ({"workers": 1}, True),
        ({"deterministic": True}, True),
        ({"workers": 1, "candidates": ("search", "relaxation")}, True),
        ({"workers": 1, "candidates": ("heuristic",)}, False),
    ],
)
def test_the_search_solves_the_relaxation_where_the_exact_side_comes_after_it(options: dict[str, Any], within: bool) -> None:
    assert guided_plans.relaxes_in_search(Context(Options(**options))) is within


@pytest.mark.parametrize(("workers", "large", "part"), [(2, False, 1.0), (2, True, 0.5), (1, False, 0.25), (1, True, 0.25)])
def test_the_relaxation_of_a_hint_is_capped(workers: int, large: bool, part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide_problem(1)
    efforts: list[Effort] = []
    monkeypatch.setattr(guide_module, "relaxation_hint", lambda problem, effort: (efforts.append(effort), 0))
    monkeypatch.setattr(guided_plans, "PARAMS", msgspec.structs.replace(PARAMS, large_uses=problem.use_count - large))
    monkeypatch.setattr(guided_plans, "time", SimpleNamespace(monotonic=lambda: 100.0))
    # The recorder's context has 20 s left, and that is all of the limit.
    guided_plans.solve_relaxation(problem, Recorder(workers=workers, time_limit=20.0))
    assert efforts[0].end == 100.0 + 20.0 * part


def test_a_deterministic_hint_is_limited_by_iterations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    efforts: list[Effort] = []
    monkeypatch.setattr(guide_module, "relaxation_hint", lambda problem, effort: (efforts.append(effort), 0))
    for limit in (1.0, 2.0):
        guided_plans.solve_relaxation(wide_problem(1), Recorder(deterministic=True, time_limit=limit))
    first, second = (effort.iteration_limit for effort in efforts)
    assert first is not None
    assert second is not None
    assert 0 < first < second
