"""The kind as a whole: optima, proofs, infeasibility, determinism, offsets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.tier_placement import candidates
from stowplan.portfolio.tier_placement.kind import KIND
from tests.kernel.recorder import Recorder
from tests.models.tier_placement.brute_force import optimum
from tests.models.tier_placement.cases import chain, random_problem
from tests.paths import EXAMPLES


def resnet50() -> Problem:
    problem: Problem = stowplan.read(EXAMPLES / "resnet50.layers.json", "nnp-i")
    return problem


@pytest.mark.parametrize("function", [candidates.search, candidates.milp, candidates.cpsat, candidates.counts])
def test_candidates_on_small_networks(function: object) -> None:
    """Valid plans, bounds below the optimum, infeasibility only where there is no map."""
    for seed in range(25):
        problem = random_problem(seed, layers=3)
        best = optimum(problem)
        context = Recorder(time_limit=0.05, deterministic=True, seed=seed)
        function(problem, context)  # type: ignore[operator]
        for plan, _ in context.plans:
            found = verify(problem, KIND.finish(problem, plan, plan.objective))
            assert found.ok, (seed, found.violations)
        assert best is None or not context.infeasible, seed
        if best is not None:
            assert all(bound <= best for bound in context.bounds), seed
            assert not context.plans or min(plan.objective for plan, _ in context.plans) == best, seed


def test_offsets_where_tiers_are_address_spaces() -> None:
    problem = chain(8, address_spaces=True)
    context = Recorder(time_limit=0.2, deterministic=True)
    candidates.search(problem, context)
    sources = {source for _, source in context.plans}
    assert sources == {"greedy_dp", "search"}
    for plan, _ in context.plans:
        assert len(plan.weight_offsets) == 8
        assert verify(problem, plan).ok


def test_resnet50_is_solved_with_a_proof() -> None:
    """The optimum that two exact models agree on."""
    result = stowplan.solve(resnet50(), time_limit=60, candidates="search,milp")
    assert (result.status, result.objective, result.bound) == ("optimal", 108_062_993, 108_062_993)
    assert result.verified
    assert result.baseline_name == "compiler"
    assert result.speedup is not None
    assert result.speedup > 1.5
    assert {"compiler", "greedy_dp"} <= {*result.baselines}
    assert sum(result.details["weights_in"].values()) == 25_530_472


def test_deterministic_runs_give_the_same_bytes(tmp_path: Path) -> None:
    problem = resnet50()
    for name in ("a", "b"):
        result = stowplan.solve(problem, time_limit=1, candidates="search", deterministic=True, seed=5)
        result.plan.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_network_that_fits_nowhere() -> None:
    tiers = (Tier(name="slow", capacity=10, bandwidth=10**9), Tier(name="fast", capacity=5, bandwidth=10**10))
    layers = (Layer(name="big", output_bytes=4, weight_bytes=12),)
    result = stowplan.solve(Problem(tiers=tiers, layers=layers, name="n"), time_limit=20)
    assert (result.status, result.exit_code, result.plan) == ("infeasible", 1, None)
    assert result.details["explanation"] == "the weights of layer big have 12 bytes, the largest tier has 10"


@pytest.mark.slow
def test_tens_of_thousands_of_moves_scale_to_five_thousand_layers() -> None:
    """A stack of networks: far better than the compiler with a few moves a tensor, and near its bound."""
    problem = resnet50()
    count = len(problem.layers)
    layers = []
    for copy in range(88):
        for layer in problem.layers:
            inputs = tuple(source + copy * count for source in layer.inputs)
            if copy and not inputs:
                inputs = (copy * count - 1,)
            layers.append(msgspec.structs.replace(layer, name=f"{layer.name}.{copy}", inputs=inputs))
    large = msgspec.structs.replace(problem, layers=tuple(layers[:5000]), features=())
    named = [candidate.name for candidate in KIND.candidates(large, Recorder().options) if candidate.family != "learned"]
    assert named == ["search", "linear", "lns"]
    context = Recorder(time_limit=2, deterministic=True, looks=10**9)
    candidates.linear(large, context)
    candidates.search(large, context)
    best = min(context.plans, key=lambda each: each[0].objective)[0]
    assert verify(large, best).ok
    assert best.objective <= 1.01 * max(context.bounds)
