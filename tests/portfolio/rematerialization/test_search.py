"""Every heuristic gives valid plans, none better than the optimum; the compiled replay is the verifier's."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from stowplan.kernel.context import Context
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
from stowplan.portfolio.rematerialization import candidates, engine, proofs, staged
from stowplan.portfolio.rematerialization.greedy import Policy, checkpoint_policies, simulate
from stowplan.portfolio.rematerialization.insertion import Insertion
from tests.kernel.recorder import Recorder
from tests.models.rematerialization.cases import least_cost, limited, random_problem, training


def peak(graph: engine.Graph, work: engine.Scratch, runs: engine.Ints) -> int:
    """Of a sequence, in bytes; -1 where it cannot run."""
    live = np.zeros(len(runs) + 1, np.int64)
    can_run = engine.profile(graph, work, runs, len(runs), live)
    return int(live[: len(runs)].max(initial=0)) if can_run else -1


def policies(problem: Problem, seed: int) -> list[Policy]:
    structure, chance = build(problem), random.Random(seed)
    by_chance = Policy(chance.random() * 2, chance.random() * 2, chance.random() * 2)
    return [Policy(), by_chance, *checkpoint_policies(structure, structure.order)]


def check_simulations(seed: int) -> bool:
    """Whether one of them is the optimum."""
    problem = limited(seed)
    structure, least = build(problem), least_cost(problem)
    costs = []
    for policy in policies(problem, seed):
        found = simulate(structure, structure.order, problem.limit or 0, policy)
        if found is not None:
            plan = structure.made(found)
            assert verify(problem, plan).ok, (seed, policy)
            assert least is not None, seed
            assert plan.objective >= least, seed
            costs.append(plan.objective)
    return least is None or (bool(costs) and min(costs) == least)


def test_simulations_of_some_graphs() -> None:
    assert sum(map(check_simulations, range(12))) > 9


@pytest.mark.slow
def test_simulations_of_hundreds_of_graphs() -> None:
    assert sum(map(check_simulations, range(300))) > 270


def test_a_stopped_simulation_gives_nothing() -> None:
    problem = limited(1)
    structure = build(problem)
    assert simulate(structure, structure.order, 1 << 40, should_stop=lambda: True) is None


@pytest.mark.parametrize("part", range(3))
def test_the_compiled_replay_is_the_verifiers(part: int) -> None:
    for seed in range(30 * part, 30 * part + 30):
        problem = (random_problem if seed % 3 == 2 else training)(seed)
        structure, chance = build(problem), random.Random(seed)
        graph = engine.build_graph(structure)
        work = engine.scratch(graph, structure.ops + 4)
        for _ in range(10):
            runs = list(structure.order)
            for _ in range(chance.randint(0, 4)):
                runs.insert(chance.randint(0, len(runs)), chance.randrange(structure.ops))
            if chance.random() < 0.3:
                one, other = chance.randrange(len(runs)), chance.randrange(len(runs))
                runs[one], runs[other] = runs[other], runs[one]
            found = verify(problem, structure.made(runs))
            assert peak(graph, work, np.array(runs, np.int64)) == (found.figures["peak"] if found.ok else -1), (seed, runs)


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_local_search_gives_valid_sequences_and_never_worse_ones(seed: int) -> None:
    problem = limited(seed)
    structure, least = build(problem), least_cost(problem)
    graph, room = engine.build_graph(structure), 4 * structure.ops
    runs, best = np.zeros(room, np.int64), np.zeros(room, np.int64)
    runs[: structure.ops] = structure.order
    heat = np.array([1.0, 0.01, 4.0 * max(1, sum(structure.cost))])
    chance = np.array([seed + 1], np.int64)
    limit = problem.limit or 0
    work = engine.scratch(graph, room)
    moves = np.empty(3 * len(runs) + 2 + structure.ops, np.int64)
    count, found, cost = engine.anneal(graph, work, runs, structure.ops, limit, best, 1 << 60, chance, heat, 3000, moves)
    assert peak(graph, engine.scratch(graph, count), runs[:count].copy()) >= 0
    if found:
        plan = structure.made(best[:found].tolist())
        assert verify(problem, plan).ok
        assert least is not None
        assert plan.objective == cost >= least


def check_insertions(seed: int) -> bool:
    """Whether insertions into the order given, and ruin and recreate, reach the optimum."""
    problem = limited(seed)
    structure, least, limit = build(problem), least_cost(problem), problem.limit or 0
    insertion = Insertion(structure)
    first = insertion.repaired(structure.order, limit)
    if first is None:
        return least is None
    assert verify(problem, structure.made(first)).ok, seed
    second = insertion.recreated(first, limit, seed + 1, 300, 0.1, 30)
    plan = structure.made(second)
    assert verify(problem, plan).ok, seed
    assert least is not None, seed
    assert plan.objective >= least, seed
    return plan.objective == least


def test_insertions_into_some_orders() -> None:
    assert sum(map(check_insertions, range(40))) > 25


@pytest.mark.slow
def test_insertions_into_hundreds_of_orders() -> None:
    assert sum(map(check_insertions, range(300))) > 200


def test_stages_give_valid_plans_and_bounds() -> None:
    for seed in range(12):
        problem = limited(seed)
        structure, least = build(problem), least_cost(problem)
        first = simulate(structure, structure.order, problem.limit or 0)
        start = None if first is None else structure.made(first)
        context = Recorder(start_plan=start, deterministic=True, time_limit=0.1)
        staged.stages(problem, context)
        assert not context.infeasible or least is None, seed
        assert all(least is not None and bound <= least for bound in context.bounds), seed
        for plan, _ in context.plans:
            assert verify(problem, plan).ok, seed
            assert least is not None
            assert plan.objective >= least, seed


def test_the_search_reaches_the_optimum_of_small_graphs() -> None:
    reached = 0
    for seed in range(12):
        problem = limited(seed)
        least = least_cost(problem)
        context = Recorder(deterministic=True, time_limit=0.1)
        candidates.search(problem, context)
        for plan, _ in context.plans:
            assert verify(problem, plan).ok
            assert least is not None
            assert plan.objective >= least
        reached += least is None or min(plan.objective for plan, _ in context.plans) == least
    assert reached >= 11


@pytest.mark.parametrize("candidate", [proofs.cuts, candidates.search])
def test_that_nothing_fits_is_proven_first(
    candidate: Callable[[Problem, Context], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(*_: object) -> None:
        raise AssertionError("nothing is simulated")

    monkeypatch.setattr(candidates, "simulate_within_limit", simulated)
    problem = Problem(tensors=training(0).tensors, ops=training(0).ops, inputs=(0,), outputs=training(0).outputs, limit=0)
    context = Recorder()
    candidate(problem, context)
    assert context.infeasible


def test_drafts_by_lot_differ_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = limited(8)
    context, drawn = Recorder(seed=3), list[tuple[int, int, int]]()
    run = staged._StagedSearch(problem, context, problem.limit or 0)

    def draft(self: staged._StagedSearch, aim: int, gap: float, share: float = 0.2, stream: int = 0) -> None:
        drawn.append((self.chain[0], self.limit - aim, stream))

    monkeypatch.setattr(staged._StagedSearch, "draft", draft)
    staged._random_drafts(run, [[2], [5]], 1000)
    # None is of use: after so many no more are made.
    assert len(drawn) == staged.PARAMS.misses == len({stream for *_, stream in drawn})
    assert {chain for chain, *_ in drawn} == {2, 5}
    assert all(0 <= below <= 1500 for _, below, _ in drawn)
    assert len({below for _, below, _ in drawn}) > 6


def test_where_nothing_is_within_the_limit_the_least_peak_is_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = next(each for seed in range(99) if (each := limited(seed)) and least_cost(each))

    def none(*args: object) -> None:
        return None

    monkeypatch.setattr(candidates, "simulate_within_limit", none)
    monkeypatch.setattr(candidates, "_improve", none)
    monkeypatch.setattr(Insertion, "repaired", none)
    context = Recorder()
    candidates.search(problem, context)
    assert [source for _, source in context.plans] == ["least peak"]


def test_plans_are_there_before_other_orders_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmade(run: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(candidates._Search, "orders", unmade)
    for seed in range(12):
        problem = limited(seed)
        context, repeated = Recorder(), Recorder(deterministic=True)
        for each in (context, repeated):
            with pytest.raises(InterruptedError):
                candidates.search(problem, each)
        assert not repeated.plans
        assert all(verify(problem, plan).ok for plan, _ in context.plans)
        if least_cost(problem) is not None and context.plans:
            best = min((plan for plan, _ in context.plans), key=lambda plan: plan.objective)
            # The order of another plan is another beginning.
            again = Recorder(start_plan=best)
            with pytest.raises(InterruptedError):
                candidates.search(problem, again)
            assert min(plan.objective for plan, _ in again.plans) <= best.objective
            break
    else:
        pytest.fail("no plan was found")
