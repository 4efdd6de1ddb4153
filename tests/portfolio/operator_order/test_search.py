"""The exact search finds what trying every order finds; every heuristic gives orders that hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stowplan.kernel.context import Context, Options
from stowplan.models.operator_order.bounds import load_bound
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.structure import build
from stowplan.models.operator_order.verify import verify
from stowplan.portfolio.operator_order import beam, candidates
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.portfolio.operator_order.graph import make
from stowplan.portfolio.operator_order.local_search import Dividing, Windows
from stowplan.portfolio.operator_order.orders import BASELINES
from stowplan.portfolio.operator_order.set_search import EXHAUSTED, FOUND, SetSearch
from stowplan.portfolio.packing.candidates import InnerRun
from tests.kernel.recorder import Recorder
from tests.models.operator_order.cases import least_peak, random_problem


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("part", range(8))
def test_exact_on_hundreds_of_graphs(part: int, backward: bool) -> None:
    for seed in range(50 * part, 50 * part + 50):
        problem = random_problem(seed)
        structure = build(problem)
        least = least_peak(problem)
        search = SetSearch(make(structure, backward), load_bound(problem), least + 1)
        assert search.run(lambda: False) == FOUND, seed
        order = search.order()
        assert sorted(order) == list(range(len(problem.ops))), seed
        assert structure.peak(order) == search.bound == least, seed
        assert verify(problem, Lives(problem, structure, order).quick()).ok, seed
        none = SetSearch(make(structure, backward), load_bound(problem), least)
        assert none.run(lambda: False) == EXHAUSTED, seed
        assert none.bound == least, seed


@pytest.mark.parametrize("name", BASELINES)
def test_orders_of_compilers_hold(name: str) -> None:
    for seed in range(100):
        problem = random_problem(seed, 9)
        structure = build(problem)
        order = BASELINES[name](structure, lambda: False)
        assert order is not None
        assert verify(problem, Lives(problem, structure, order).quick()).ok, seed


@pytest.mark.parametrize("backward", [False, True])
def test_beams_hold(backward: bool) -> None:
    for seed in range(100):
        problem = random_problem(seed, 9)
        structure = build(problem)
        found = beam.search(make(structure, backward), 0, 10**6, 3, np.random.default_rng(seed), lambda: False)
        assert found is not None
        order = found[1]
        assert verify(problem, Lives(problem, structure, order).quick()).ok, seed
        assert structure.peak(order) <= found[0] or backward, seed


def test_dividing_never_makes_it_worse() -> None:
    reached = 0
    for seed in range(60):
        problem = random_problem(seed, 12)
        structure = build(problem)
        order = BASELINES["bfs"](structure, lambda: False)
        assert order is not None
        forwards, backwards = make(structure), make(structure, backward=True)
        chance = np.random.default_rng(seed)
        dividing = Dividing(structure, forwards, backwards, order, load_bound(problem), chance)
        before = structure.peak(order)
        for _ in range(5):
            dividing.step(lambda: False)
        assert dividing.peak == structure.peak(dividing.order) <= before
        reached += dividing.peak < before
        assert verify(problem, Lives(problem, structure, dividing.order).quick()).ok, seed
    assert reached > 5


def test_windows_never_make_it_worse() -> None:
    for seed in range(60):
        problem = random_problem(seed, 12)
        structure = build(problem)
        order = BASELINES["bfs"](structure, lambda: False)
        assert order is not None
        windows = Windows(
            structure, make(structure), order, load_bound(problem), np.random.default_rng(seed), Context(Options()).limits
        )
        before = structure.peak(order)
        for _ in range(5):
            windows.step(lambda: False)
        assert windows.peak == structure.peak(windows.order) <= before
        assert verify(problem, Lives(problem, structure, windows.order).quick()).ok, seed


@pytest.mark.parametrize("time_limit", [0.1, 0.5, 4.0])
@pytest.mark.parametrize("candidate", [candidates.search, candidates.exact])
def test_all_packings_of_a_deterministic_run_are_within_its_limit(
    candidate: Callable[[Problem, Context], None], time_limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arena of a chain cannot be as small as its peak, for the alignment alone: nothing else ends the search."""
    sizes = (173, 115, 49, 21)
    chain = Problem(
        tensors=tuple(Tensor(id=f"t{number}", size=size, alignment=16) for number, size in enumerate(sizes)),
        ops=tuple(Op(id=f"o{number}", reads=(number,), writes=(number + 1,)) for number in range(len(sizes) - 1)),
        inputs=(0,),
        outputs=(len(sizes) - 1,),
    )
    seconds: list[float] = []

    class Idle(InnerRun):
        """Lets nobody work."""

        def __init__(self, outer: Context, *limits: float, **options: Any):
            super().__init__(outer, *limits, **options)
            seconds.append(self.seconds())

        def closed(self) -> bool:
            return True

    monkeypatch.setattr(candidates, "InnerRun", Idle)
    candidate(chain, Recorder(deterministic=True, time_limit=time_limit))
    assert seconds
    assert sum(seconds) <= time_limit * 1.001
