"""Insertion as a game: without a network it is insertion itself, and what was done can be done again."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lib.memory_mapping import scarce
from benchmarks.lib.memory_mapping.constructions import quick_insertion
from benchmarks.lib.memory_mapping.residual import ACTIONS, FEATURES, no_network
from benchmarks.lib.memory_mapping.residual_labels import HAS_SECOND, SIZE, labelled, network
from benchmarks.lib.memory_mapping.residual_play import Climb, Program, evenly
from benchmarks.lib.memory_mapping.synthetic import synthetic
from benchmarks.lib.places import SHARED
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import heuristics
from stowplan.portfolio.memory_mapping.arrays import build
from stowplan.portfolio.memory_mapping.convert import export_plan

WITHOUT_CORPUS = not (SHARED / "corpus" / "tpu_v4").exists()


def program(seed: int) -> tuple[Problem, Program]:
    problem = synthetic(np.random.default_rng(seed), moves=120)
    return problem, Program(build(problem))


def inserted(problem: Problem) -> tuple[tuple[int, ...], ...]:
    return residencies(problem, build(problem), quick_insertion(build(problem), 1))


def residencies(problem: Problem, data: heuristics.Data, state: heuristics.State) -> tuple[tuple[int, ...], ...]:
    plan = export_plan(problem, data, state)
    assert verify(problem, plan).ok
    return tuple((each.tensor, each.start, each.end, each.offset) for each in plan.residencies)


def random_network(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SIZE) * 0.2


@pytest.mark.parametrize("seed", range(4))
def test_nothing_said_is_insertion(seed: int) -> None:
    problem, played = program(seed)
    wanted = inserted(problem)
    assert wanted
    played.played(no_network())
    assert residencies(problem, played.data, played.here.state) == wanted
    played.total(np.zeros(played.count, np.int64))
    assert residencies(problem, played.data, played.here.state) == wanted


@pytest.mark.skipif(WITHOUT_CORPUS, reason="needs ../shared/corpus")
@pytest.mark.parametrize("part", scarce.PARTS)
def test_nothing_said_is_insertion_on_all_modules(part: str) -> None:
    for name in scarce.modules(part):
        problem = scarce.made(f"{name} 0.35")
        played = Program(build(problem))
        played.played(no_network())
        assert residencies(problem, played.data, played.here.state) == inserted(problem), name


@pytest.mark.parametrize("seed", range(3))
def test_a_game_done_again_is_the_same(seed: int) -> None:
    problem, played = program(seed)
    net = network(random_network(seed), np.zeros(FEATURES), np.ones(FEATURES), 0.0)
    total = played.played(net)
    done = played.here.game.chosen.copy()
    first = residencies(problem, played.data, played.here.state)
    assert len({*done.tolist()}) > 1
    assert played.total(done) == total
    assert residencies(problem, played.data, played.here.state) == first


def test_labels_are_differences_of_whole_games() -> None:
    _, played = program(1)
    found = labelled(played, no_network(), no_network(), 5, np.random.default_rng(0))
    assert found is not None
    assert found.known[:, 0].all()
    assert (found.values[:, 0] == 0).all()
    assert (found.known[:, 1] == (found.rows[:, HAS_SECOND] > 0)).all()
    assert np.abs(found.values).max() > 0


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_climbing_is_never_worse_and_keeps_what_it_says(seed: int) -> None:
    problem, played = program(seed)
    climb = Climb(played, np.zeros(played.count, np.int64), *evenly(played, [*range(1, ACTIONS)]), 2.0, 0)
    begun = climb.best
    climb.tries(60)
    assert climb.best < begun
    assert played.total(climb.actions) == climb.best
    assert residencies(problem, played.data, played.here.state)
