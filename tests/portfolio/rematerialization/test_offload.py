"""The search for plans with a host: valid, never better than the least of all plans, mostly as good."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import stowplan
from stowplan.models.rematerialization.bounds import load_bound
from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Host, Op, Problem, Tensor
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
from stowplan.portfolio.rematerialization import frontier
from stowplan.portfolio.rematerialization.candidates import search
from stowplan.portfolio.rematerialization.offload import PARAMS, offload
from stowplan.portfolio.rematerialization.transfers import read_before_written
from tests.cli.conftest import Cli, cli
from tests.kernel.recorder import Recorder
from tests.models.rematerialization import cases
from tests.models.rematerialization.host_cases import SLOW, chain, hosted, least_cost
from tests.paths import DATA
from tests.patience import HANG

__all__ = ["cli"]

EXAMPLE = DATA / "training-host.remat.json"


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
    lines = result.summary().splitlines()
    assert f"  host peak  {result.details['host_peak']:,} bytes" in lines
    assert f"  stalls     {result.details['stalls']:,} cost" in lines


def layers(depth: int, seed: int) -> Problem:
    """Layers of training: a backward operator writes two gradients, and one of them is a result that nothing else reads."""
    chance = random.Random(seed)
    tensors, ops, kept, results = [Tensor(id="x", size=3)], list[Op](), [0], list[int]()

    def made(size: int) -> int:
        tensors.append(Tensor(id=f"t{len(tensors)}", size=size))
        return len(tensors) - 1

    for number in range(depth):
        new = made(chance.randint(2, 8))
        ops.append(Op(id=f"forward{number}", reads=(kept[-1],), writes=(new,), cost=chance.randint(1, 9)))
        kept.append(new)
    gradient = kept[-1]
    for number in reversed(range(depth)):
        both = made(chance.randint(2, 8)), made(chance.randint(1, 6))
        results.append(both[1])
        reads = (gradient, kept[number])
        ops.append(Op(id=f"backward{number}", reads=reads, writes=both, cost=chance.randint(1, 9)))
        gradient = both[0]
    problem = Problem(
        tensors=tuple(tensors),
        ops=tuple(ops),
        inputs=(0,),
        outputs=(*results, gradient),
        free_inputs=False,
        host=Host(bandwidth=0.5, limit=1 << 20),
    )
    structure = build(problem)
    low, high = load_bound(structure), structure.ordering.peak(structure.order)
    return msgspec.structs.replace(problem, limit=low + (high - low) // 3)


@pytest.mark.parametrize(("depth", "seed"), [(6, 11), (6, 26), (10, 5), (10, 23), (20, 8), (40, 1)])
def test_drafts_that_read_what_is_not_made_are_mended(depth: int, seed: int) -> None:
    """A writer of two values runs where the other is needed, behind the fetch of the first."""
    problem, recorder = layers(depth, seed), Recorder(deterministic=True, time_limit=0.3)
    offload(problem, recorder)
    assert recorder.plans
    assert all(verify(problem, plan).ok for plan, _ in recorder.plans)


def test_what_is_read_before_it_is_made() -> None:
    structure = build(layers(2, 0))
    forward, behind, backward, last = structure.order
    (gradient, _) = structure.writes[backward]
    assert read_before_written(structure, [forward, behind, backward, structure.ops, last]) == set()
    assert read_before_written(structure, [forward, behind, structure.ops, last, backward]) == {gradient}


@pytest.mark.parametrize("seed", range(6))
def test_moments_know_of_fetches(seed: int) -> None:
    """What must run before or after an operator is what is so in the graph whose fetches read what their writers write."""
    problem = layers(5, seed)
    structure = build(problem)
    moved = random.Random(seed).sample(structure.movable, 6)
    graph = structure.with_fetches(moved, [1] * len(moved))
    made = Moments(structure).with_fetches(graph)
    reads = [(structure.tensor[value],) for value in moved if structure.writer[value] >= 0]
    fetches = tuple(Op(id=f"fetch{number}", reads=read) for number, read in enumerate(reads))
    plain = Moments(build(msgspec.structs.replace(problem, ops=(*problem.ops, *fetches))))
    number = {op: at for at, op in enumerate(range(structure.ops))}
    with_writer = (place for place, value in enumerate(moved) if structure.writer[value] >= 0)
    number |= {structure.ops + place: structure.ops + at for at, place in enumerate(with_writer)}
    for one, other in itertools.permutations(range(structure.ops), 2):
        assert made.before[one] >> other & 1 == plain.before[one] >> other & 1
    for fetch in (op for op in number if op >= structure.ops):
        for op in range(structure.ops):
            assert made.before[fetch] >> op & 1 == plain.before[number[fetch]] >> op & 1
            # Those behind the writer have the fetch behind them or before them.
            assert made.after[op] >> fetch & 1 == plain.after[op] >> number[fetch] & 1


def test_graphs_of_many_layers_begin_with_a_plan_that_sends_nothing() -> None:
    problem = layers(60, 3)
    assert len(problem.ops) >= PARAMS.by_cuts
    alone, recorder = (Recorder(deterministic=True, time_limit=0.5) for _ in range(2))
    search(msgspec.structs.replace(problem, host=msgspec.UNSET), alone)
    offload(problem, recorder)
    plans = [plan for plan, _ in recorder.plans]
    assert all(verify(problem, plan).ok for plan in plans)
    assert not plans[0].moves
    assert min(plan.objective for plan in plans) < min(plan.objective for plan, _ in alone.plans)


def test_the_host_holds_no_more_than_it_may() -> None:
    problem = chain(16, 24, 8, host=20)
    result = stowplan.solve(problem, time_limit=5)
    assert isinstance(result.plan, Plan)
    assert verify(problem, result.plan).figures["host_peak"] <= 20
    assert result.objective is not None
    # Recomputing alone adds 36.
    assert 0 < result.objective < 36


def test_a_deterministic_run_repeats_itself() -> None:
    problem = hosted(5)
    first, second = (stowplan.solve(problem, time_limit=1, deterministic=True) for _ in range(2))
    assert first.plan == second.plan


def test_show_lists_copies(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    found = cli("solve", EXAMPLE, "-o", plan, "--candidates", "offload", "--time-limit", 5, "--deterministic", "-q")
    assert found.code == 0
    shown = cli("show", plan, EXAMPLE).out
    assert "of 67,108,864 bytes, waits of " in shown
    assert "  fetch  " in shown
    assert cli("verify", EXAMPLE, plan).code == 0
    # Far below the 223 that recomputing adds.
    assert Plan.load(plan).objective < 100


def test_the_frontier_of_three_axes(cli: Cli, tmp_path: Path) -> None:
    source, output = tmp_path / "in.json", tmp_path / "out.json"
    chain(8, 24, 1).save(source)
    options = ("--limits", "16,24", "--host-limits", "0,8,1000", "--time-limit", 12, "-q", "-o", output)
    assert cli("frontier", source, *options, "--png", tmp_path / "out.svg").code == 0
    points = json.loads(output.read_text())["points"]
    assert [(each["limit"], each["host_limit"]) for each in points] == [(a, b) for b in (0, 8, 1000) for a in (16, 24)]
    costs = {(each["limit"], each["host_limit"]): each["added_cost"] for each in points}
    assert costs[16, 0] > costs[16, 8] > costs[16, 1000]
    assert "moves" in points[4]
    without = msgspec.structs.replace(chain(8, 24, 1), host=msgspec.UNSET)
    without.save(source)
    refused = cli("frontier", source, *options)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "expected a problem with a host" in refused.err
    assert "--host-limits: found 'x', expected sizes" in cli("frontier", source, "--host-limits", "x").err


def test_plans_and_bounds_hold_for_all_that_they_dominate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan is known at all larger limits, one bound at all smaller ones; where nothing fits, nothing fits in less."""
    problem = chain(8, 24, 1)
    asked: list[tuple[int, int]] = []

    def solved(problem: Problem, plans: dict[str, Plan], **options: object) -> SimpleNamespace:
        assert isinstance(problem.host, Host)
        limits = (problem.limit or 0, problem.host.limit)
        asked.append(limits)
        assert {plan.problem for plan in plans.values()} <= {problem.digest}
        status = "infeasible" if limits == (12, 8) else "time_limit"
        order = build(problem).order
        own = [build(problem).made(order)] if limits == (40, 0) else []
        plan = min([*plans.values(), *own], key=lambda plan: plan.objective, default=None)
        bound = 7 if limits == (44, 8) else 0
        return SimpleNamespace(status=status, plan=plan, bound=bound)

    monkeypatch.setattr(frontier, "solve", solved)
    points = frontier.frontier(problem, [44, 8, 12, 40], host_limits=[8, 0])
    assert asked == [(limit, host) for host in (0, 8) for limit in (8, 12, 40, 44)]
    assert [point.plan is not None for point in points] == [False, False, True, True] * 2
    assert [point.bound for point in points] == [None, None, 7, 7] * 2
    assert [point.is_infeasible for point in points] == [True, True, False, False] * 2


def test_what_never_fits_is_proven() -> None:
    problem: Problem = chain(4, 7, 1)
    result = stowplan.solve(problem, time_limit=HANG)
    assert (result.status, result.plan) == ("infeasible", None)
