"""Plans become games: legal throughout, and as near to the plan as the game's rules allow."""

from __future__ import annotations

import random

from benchmarks.lib.memory_mapping.plain_game import reset
from stowplan.learned_guidance.memory_mapping.game.demonstrations import Demonstration, actions_of, suggest_action
from stowplan.learned_guidance.memory_mapping.game.game import Action, Game
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.programs import play_on, program
from tests.models.memory_mapping.cases import random_plan, random_problem

COPY, NOCOPY, DROP = Action.COPY, Action.NOCOPY, Action.DROP


def plan_of(problem: Problem, residencies: tuple[Residency, ...], copies: tuple[Copy, ...], fast: tuple[int, ...]) -> Plan:
    """A valid plan with its objective."""
    found = verify(problem, Plan(problem=problem.digest, objective=0, residencies=residencies, copies=copies, fast_uses=fast))
    assert found.objective is not None
    plan = Plan(problem=problem.digest, objective=found.objective, residencies=residencies, copies=copies, fast_uses=fast)
    assert verify(problem, plan).ok
    return plan


def saved_ps(problem: Problem, plan: Plan) -> int:
    """What a plan saves against all slow."""
    return problem.all_slow_ps - plan.objective


def replay(problem: Problem, demonstration: Demonstration) -> Plan:
    """The game's plan; played without Drop-backup, so that every move must be a good one."""
    state = reset(problem, drop_backup=False)
    assert sum(state.step(action) for action in demonstration.actions) == demonstration.return_ps
    assert not state.is_lost
    plan = state.plan()
    assert verify(problem, plan).ok
    return plan


def test_copies_in_and_out_and_what_stays() -> None:
    problem = program(["", "", "", "a >b", "b", "", "a", "", "b"], {"a": 3, "b": 4}, inputs="a", outputs="b")
    # a comes in once and stays; b stays until its copy-out is done, and is read from slow memory at the end.
    plan = plan_of(
        problem,
        (Residency(0, 1, 7, 0), Residency(1, 3, 7, 3)),
        (Copy(0, "in", 1, 3), Copy(1, "out", 5, 7)),
        (0, 1, 2, 3),
    )
    assert suggest_action(problem, plan, Game(problem).moves) == (COPY, COPY, NOCOPY, NOCOPY, DROP)
    demonstration = actions_of(problem, plan)
    assert demonstration.actions == (COPY, COPY, NOCOPY, NOCOPY, DROP)
    assert demonstration.return_ps == saved_ps(problem, plan)
    # Windows are the game's own: this one ends earlier.
    assert replay(problem, demonstration).copies == (Copy(0, "in", 1, 3), Copy(1, "out", 4, 6))


def test_a_second_copy_in_is_a_copy() -> None:
    problem = program(["", "a", "", "", "", "a"], {"a": 2}, inputs="a")
    plan = plan_of(problem, (Residency(0, 0, 2, 0), Residency(0, 4, 6, 0)), (Copy(0, "in", 0, 1), Copy(0, "in", 4, 5)), (0, 1))
    assert actions_of(problem, plan).actions == (COPY, COPY)


def test_what_is_preloaded_is_copied_where_there_is_time() -> None:
    problem = program(["a", "", "", "b"], {"a": 2, "b": 2}, inputs="ab", max_preloads=2)
    plan = plan_of(problem, (Residency(0, 0, 1, 0, preloaded=True), Residency(1, 0, 4, 2, preloaded=True)), (), (0, 1))
    demonstration = actions_of(problem, plan)
    assert demonstration.actions == (DROP, COPY)
    assert 2 * demonstration.return_ps == saved_ps(problem, plan)


def test_what_costs_nothing_is_kept() -> None:
    # The last read is slow, after a copy out.
    plan = plan_of(program([">a", "a", "", "a"], {"a": 2}), (Residency(0, 0, 3, 0),), (Copy(0, "out", 1, 3),), (0, 1))
    problem = program([">a", "a", "", "a"], {"a": 20})
    demonstration = actions_of(problem, plan)
    # No time to copy that much out, so that it stays to the end.
    assert demonstration.actions == (NOCOPY, NOCOPY, NOCOPY)
    assert demonstration.return_ps == 300


def test_all_slow_stays_all_slow() -> None:
    problem = program(["a >b", "b", "a"], {"a": 2, "b": 2}, inputs="a")
    demonstration = actions_of(problem, Plan(problem=problem.digest, objective=problem.all_slow_ps))
    assert demonstration.actions == (DROP,) * 4
    assert demonstration.return_ps == 0


def test_any_valid_plan_is_a_game() -> None:
    rng = random.Random("any plan")
    kept = []
    for _ in range(150):
        problem = random_problem(rng, steps=rng.randint(4, 12), tensors=rng.randint(2, 6))
        plan = random_plan(problem, rng)
        demonstration = actions_of(problem, plan)
        replay(problem, demonstration)
        assert len(demonstration.actions) == len(Game(problem).moves)
        if saved_ps(problem, plan) > 0:
            kept.append(demonstration.return_ps / saved_ps(problem, plan))
    assert len(kept) > 50
    assert sum(kept) / len(kept) > 0.6


def test_so_is_one_that_uses_the_freedoms_of_compilers() -> None:
    rng = random.Random("freedoms")
    used = 0
    for _ in range(60):
        problem = random_problem(
            rng, steps=8, tensors=4, stalls="allowed", channels=1, evictions="between_steps", prefetches="sliced"
        )
        plan = random_plan(problem, rng)
        used += any(copy.part or copy.start == copy.end for copy in plan.copies)
        replay(problem, actions_of(problem, plan))
    assert used > 10


def test_the_plan_of_a_game_gives_that_game_again() -> None:
    rng = random.Random("own plans")
    same = total = 0
    for _ in range(100):
        problem = random_problem(rng, steps=rng.randint(6, 14), tensors=rng.randint(3, 6))
        state = reset(problem)
        play_on(state, rng, rng.choice(["greedy", "random", "place"]))
        demonstration = actions_of(problem, state.plan())
        replay(problem, demonstration)
        total += 1
        same += demonstration.return_ps >= state.return_ps
    assert same > 0.9 * total
