"""Packings with overlaps: what heuristics and whole runs find, and what is said of it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import stowplan
from stowplan.kernel.context import Options
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.csv_files import parse
from stowplan.models.packing.overlaps import without_overlaps
from stowplan.models.packing.problem import Buffer, Overlap, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing import arrays, candidates
from stowplan.portfolio.packing.keep_close import offsets_by_ejection
from stowplan.portfolio.packing.kind import KIND
from stowplan.portfolio.packing.search import Placements
from stowplan.report.presenter import presenter_for
from tests.models.packing.cases import Recorder
from tests.models.packing.overlaps import least_height, random_graph, random_overlaps
from tests.models.packing.test_overlaps import CHAIN


@pytest.mark.parametrize("same", [False, True])
def test_first_fit_and_best_fit_make_valid_plans(same: bool) -> None:
    chance = np.random.default_rng(1)
    lower = 0
    for seed in range(300):
        problem = random_overlaps(seed, most=12, same=same)
        data = arrays.build(problem)
        if (data.fixed >= 0).any() or not len(data.size):
            continue
        placements, key = Placements(data, lambda: False), chance.normal(size=len(data.size))
        apart = Placements(arrays.build(without_overlaps(problem)), lambda: False).first_fit(key)
        for place in (placements.first_fit, placements.best_fit):
            placed = place(key)
            assert placed is not None
            plan = arrays.export_plan(problem, data, placed[1])
            assert plan.objective == placed[0] * data.unit, seed
            assert verify(problem, plan).ok, seed
            lower += apart is not None and plan.objective < apart[0] * data.unit
    assert lower > 50


def test_parts_of_the_data_keep_their_overlaps() -> None:
    data = arrays.build(parse(f"{CHAIN}d,5,6,16,\ne,5,7,32,d:32\nf,6,7,32,e:=\n"))
    assert data.overlaps.tolist() == [[1, 0, 20 // data.unit, 0], [2, 1, 0, 0], [4, 3, 16 // data.unit, 0], [5, 4, 0, 1]]
    parts = arrays.parts(data)
    assert [part.overlaps.tolist() for part in parts] == [
        [[1, 0, 20 // data.unit, 0], [2, 1, 0, 0]],
        [[1, 0, 16 // data.unit, 0], [2, 1, 0, 1]],
    ]


def test_search_is_near_the_least_height_and_proves_nothing() -> None:
    met = total = 0
    for seed in range(160):
        problem = random_overlaps(seed, same=seed >= 120)
        optimum = least_height(problem)
        context = Recorder(problem, time_limit=0.02, deterministic=True)
        candidates.search(problem, context)
        if problem.overlaps:
            candidates.apart(problem, context)
            candidates.exact(problem, context)
        assert not context.bounds
        assert context.infeasible == (optimum is None), seed
        if context.best is not None and optimum is not None:
            total += 1
            met += context.best.objective == optimum
    assert met > 0.9 * total > 90


def test_no_plan_is_higher_than_without_overlaps() -> None:
    lower = 0
    for seed in range(60):
        problem = random_overlaps(seed, most=9)
        plain = Recorder(without_overlaps(problem), time_limit=0.02, deterministic=True)
        candidates.search(plain.problem, plain)
        context = Recorder(problem, time_limit=0.05, deterministic=True)
        candidates.apart(problem, context)
        assert (plain.best is None) == (context.best is None), seed
        if plain.best is not None and context.best is not None:
            assert context.best.objective <= plain.best.objective, seed
            lower += context.best.objective < plain.best.objective
    assert lower > 3


def test_no_candidate_finds_less_than_without_overlaps() -> None:
    problem = random_graph(1, count=80, longest=30)
    lower = 0
    for with_overlaps, without in (
        (candidates.apart, candidates.search),
        (candidates.exact, candidates.exact),
        (candidates.canonical2, candidates.canonical2),
        (candidates.beam2, candidates.beam2),
    ):
        plain = Recorder(without_overlaps(problem), time_limit=0.002, deterministic=True)
        without(plain.problem, plain)
        context = Recorder(problem, time_limit=0.002, deterministic=True)
        with_overlaps(problem, context)
        assert plain.best is not None
        assert context.best is not None
        assert context.best.objective <= plain.best.objective
        assert all(bound <= load_bound(problem) or bound == context.best.objective for bound in context.bounds)
        lower += context.best.objective < plain.best.objective
    assert lower
    options = Options(deterministic=True)
    names = [{candidate.name for candidate in KIND.candidates(each, options)} for each in (problem, plain.problem)]
    assert names[0] == {*names[1], "apart", "presolve"}


def test_runs_find_and_prove_the_least_height() -> None:
    for seed in range(16):
        problem = random_overlaps(seed, same=seed >= 12)
        optimum, result = least_height(problem), stowplan.solve(problem, time_limit=20)
        if optimum is None:
            assert result.status == "infeasible"
            continue
        assert (result.status, result.objective, result.bound) == ("optimal", optimum, optimum), seed
        assert result.verified


def test_deterministic_runs_agree() -> None:
    problem = parse(CHAIN)
    first, second = (stowplan.solve(problem, time_limit=5, deterministic=True) for _ in range(2))
    assert first.objective == load_bound(problem) == 120
    assert first.plan == second.plan


def test_what_is_shared_is_reported() -> None:
    problem = parse(CHAIN)
    result = stowplan.solve(problem, time_limit=20)
    assert result.details["shared"] == 140
    text = presenter_for(problem).summarize(problem, result.plan)
    assert "shared        140 bytes by 2 of 2 overlaps" in text
    assert "live at once  120 bytes at most" in text
    assert "shares 60 bytes with a" in text


def test_a_capacity_that_is_too_small_is_explained() -> None:
    problem = msgspec.structs.replace(parse(CHAIN), capacity=119)
    result = stowplan.solve(problem, time_limit=20)
    assert result.status == "infeasible"
    assert result.details["conflict"]["buffers"] == ["a", "b"]
    assert "take 120 bytes where they share what they may, more than the capacity of 119" in result.summary()


def test_ejections_keep_what_may_overlap() -> None:
    problem = msgspec.structs.replace(parse(CHAIN), capacity=120)
    assert offsets_by_ejection(problem, (20, 0, 0), lambda: False) == (20, 0, 0)


def test_bounds_have_certificates() -> None:
    problem = parse(CHAIN)
    certificate = stowplan.solve(problem, time_limit=20, certify=True).certificate
    assert (certificate.form, certificate.bound) == ("load", 120)
    certificate.check(problem)


@pytest.mark.parametrize("name", ["apart", "canonical", "search", "cpsat"])
def test_results_of_no_bytes_may_share(name: str) -> None:
    """Every candidate plans buffers of 0 bytes, of which nothing is left for its arrays."""
    buffers = (
        Buffer(id="a", lower=0, upper=2, size=0),
        Buffer(id="b", lower=1, upper=3, size=0, overlaps=(Overlap(operand="a", distance=0),)),
    )
    result = stowplan.solve(Problem(buffers=buffers), time_limit=5, candidates=[name])
    assert result.status == "optimal"
    assert result.objective == 0
