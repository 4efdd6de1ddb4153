"""Beams on hundreds of small problems, whose least heights are known from every offset tried."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stowplan
from stowplan import work_rates
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing import arrays, beam, candidates
from tests.models.packing.cases import Recorder, least_height, random_problem


def plain_problem(seed: int, most: int) -> Problem:
    """A random problem without gaps and fixed offsets; some buffers have alignments."""
    # By the rules of random_problem: no gaps where the number is 0 or 1 mod 4, nothing fixed where it is not 4 mod 5.
    return random_problem(60 * (seed // 4) + (0, 1, 12, 13)[seed % 4], most)


def pack(data: arrays.Data, height: int, width: int, seed: int, mirrored: bool = False) -> np.ndarray | None:
    chance = np.random.default_rng(seed)
    return beam.Beam(data, mirrored).pack(height, width, 5, chance, 0.1, lambda: False)[0]


def test_plans_are_valid_and_the_least_height_is_found() -> None:
    missed = solved = 0
    for seed in range(300):
        problem = plain_problem(seed, 6)
        data = arrays.build(problem)
        if not data.is_plain:
            assert len(data.size) == 0, seed
            continue
        optimum = least_height(problem)
        assert optimum is not None
        least = optimum // data.unit
        for mirrored in (False, True):
            assert pack(data, least - 1, 60, seed, mirrored) is None, seed
            offsets = pack(data, least, 60, seed, mirrored)
            solved += 1
            if offsets is None:
                missed += 1
                continue
            found = verify(problem, arrays.export_plan(problem, data, offsets))
            assert found.ok, (seed, found.violations)
            assert found.objective == optimum, seed
    # A beam closes valleys and forgets states, so that it may miss a plan.
    assert solved > 500
    assert missed <= solved // 50


def test_plans_of_many_buffers_keep_the_height() -> None:
    found = 0
    for seed in range(300):
        problem = plain_problem(seed, 20 + 20 * (seed % 2))
        data = arrays.build(problem)
        if not data.is_plain:
            continue
        load = int(data.load().max())
        for height, mirrored in itertools.product((load, load + 1), (False, True)):
            offsets = pack(data, height, 30, seed, mirrored)
            if offsets is not None:
                plan = arrays.export_plan(problem, data, offsets)
                assert verify(problem, plan).ok, seed
                assert plan.objective <= height * data.unit, seed
                found += 1
    assert found > 600


def test_the_search_by_beams_reaches_what_the_exact_search_proves() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(25):
        problem = plain_problem(seed, 14)
        context, exact = (Recorder(problem, time_limit=0.03, deterministic=True) for _ in range(2))
        candidates.search(problem, context)
        candidates.exact(problem, exact)
        assert context.best is not None, seed
        bound = max([*exact.bounds, load_bound(problem)])
        assert context.best.objective >= bound, seed
        assert not context.bounds, seed
        outcomes["least" if context.best.objective == bound else "higher"] += 1
    assert outcomes["higher"] <= 2


def test_runs_of_one_seed_agree() -> None:
    problem = plain_problem(3, 60)
    plans = []
    for _ in range(2):
        context = Recorder(problem, time_limit=0.05, deterministic=True, seed=7)
        candidates.beam2(problem, context)
        plans.append(context.best)
    assert plans[0] == plans[1] is not None


def test_a_beam_stops_when_it_is_told() -> None:
    data = arrays.build(plain_problem(3, 60))
    asked: list[bool] = []

    def should_stop() -> bool:
        asked.append(True)
        return len(asked) > 3

    offsets, states = beam.Beam(data).pack(10**6, 8, 5, np.random.default_rng(0), 0.0, should_stop)
    assert offsets is None
    assert 0 < states <= 24
    assert len(asked) == 4


def test_gaps_and_fixed_offsets_are_not_plain() -> None:
    gap = Buffer(id="gap", lower=0, upper=4, size=2, gaps=((1, 2),))
    fixed = Buffer(id="fixed", lower=0, upper=4, size=2, offset=2)
    free = Buffer(id="free", lower=1, upper=2, size=2)
    assert not arrays.build(Problem(buffers=(gap, free))).is_plain
    assert not arrays.build(Problem(buffers=(fixed, free))).is_plain
    assert arrays.build(Problem(buffers=(free,))).is_plain


def test_no_buffer_to_pack_is_no_work_for_beams() -> None:
    problem = Problem(buffers=(Buffer(id="none", lower=0, upper=1, size=0),))
    context = Recorder(problem)
    candidates.beam2(problem, context)
    assert context.best is None


def test_an_open_instance_is_packed_at_its_load(shared: Path) -> None:
    problem = stowplan.read(shared / "dsa" / "minimalloc" / "D.1048576.csv")
    data = arrays.build(problem)
    chance, offsets = np.random.default_rng(0), None
    for _ in range(20):
        offsets, _ = beam.Beam(data).pack(int(data.load().max()), 1000, 5, chance, 0.1, lambda: False)
        if offsets is not None:
            break
    assert offsets is not None
    plan = arrays.export_plan(problem, data, offsets)
    assert verify(problem, plan).ok
    assert plan.objective == 986_112


def test_beams_that_die_at_once_cost_their_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alignment keeps the load out of reach, so that beams at the bound die after a few states; each pays for its arrays."""
    lives = {"a": (0, 3, 173), "b": (1, 4, 115), "c": (2, 6, 49), "d": (3, 7, 21)}
    buffers = [Buffer(id=id_, lower=low, upper=high, size=size, alignment=16) for id_, (low, high, size) in lives.items()]
    problem, widths = Problem(buffers=tuple(buffers)), []
    pack = beam.Beam.pack

    def counted(self: beam.Beam, height: int, width: int, *arguments: Any) -> tuple[Any, int]:
        widths.append(min(width, self.widest))
        return pack(self, height, width, *arguments)

    monkeypatch.setattr(beam.Beam, "pack", counted)
    context = Recorder(problem, deterministic=True, time_limit=0.5)
    candidates.search(problem, context)
    assert context.best is not None
    limit = work_rates.PACKING_NODES.per_second * 0.5 / (len(buffers) + 50)
    assert sum(widths[:-1]) < limit
