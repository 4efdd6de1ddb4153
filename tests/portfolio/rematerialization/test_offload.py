"""The search for plans with a host: valid, never better than the least of all plans, mostly as good."""

from __future__ import annotations

import msgspec
import pytest

import stowplan
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.verify import verify
from stowplan.portfolio.rematerialization.offload import offload
from tests.models.rematerialization import cases
from tests.models.rematerialization.host_cases import SLOW, chain, hosted, least_cost
from tests.patience import HANG
from tests.portfolio.recorder import Recorder


def check_search(seed: int) -> bool:
    """Whether it, or what needs no host, finds the optimum."""
    problem, recorder = hosted(seed, 3), Recorder(deterministic=True, time_limit=0.5)
    offload(problem, recorder)
    least = least_cost(problem)
    for plan, _ in recorder.plans:
        assert verify(problem, plan).ok, seed
        assert least is not None, seed
        assert plan.objective >= least, seed
    without = cases.least_cost(msgspec.structs.replace(problem, host=msgspec.UNSET))
    costs = [plan.objective for plan, _ in recorder.plans]
    return least in (None, without, *costs)


def test_the_search_on_some_graphs() -> None:
    assert sum(map(check_search, (2, 3, 5, 8, 11, 12))) >= 5


@pytest.mark.slow
def test_the_search_on_hundreds_of_graphs() -> None:
    seeds = [seed for seed in range(300) if seed not in SLOW]
    assert sum(map(check_search, seeds)) > 0.95 * len(seeds)


@pytest.mark.parametrize(("bandwidth", "least"), [(2, 0), (1, 8), (0.5, 16)])
def test_a_chain_is_solved(bandwidth: float, least: int) -> None:
    """Sent as far as the channel can, and the rest recomputed: the bound says that no plan is better."""
    result = stowplan.solve(chain(16, 24, bandwidth), time_limit=HANG)
    assert (result.status, result.objective, result.bound) == ("optimal", least, least)
    assert result.details["peak"] <= 24
    assert result.details["host_peak"] > 0


def test_the_host_holds_no_more_than_it_may() -> None:
    problem = chain(16, 24, 8, host=20)
    result = stowplan.solve(problem, time_limit=2, deterministic=True)
    assert isinstance(result.plan, Plan)
    assert verify(problem, result.plan).figures["host_peak"] <= 20
    free = stowplan.solve(msgspec.structs.replace(problem, host=msgspec.UNSET), time_limit=2, deterministic=True)
    assert result.objective is not None
    assert free.objective is not None
    assert 0 < result.objective < free.objective


def test_a_deterministic_run_repeats_itself() -> None:
    problem = hosted(5)
    first, second = (stowplan.solve(problem, time_limit=1, deterministic=True) for _ in range(2))
    assert first.plan == second.plan


def test_what_never_fits_is_proven() -> None:
    problem: Problem = chain(4, 7, 1)
    result = stowplan.solve(problem, time_limit=HANG)
    assert (result.status, result.plan) == ("infeasible", None)
