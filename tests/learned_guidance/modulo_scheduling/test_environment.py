"""Modulo scheduling behind Gymnasium's interface: its checkers, what is seen and earned, and plans that the verifier takes."""

from __future__ import annotations

import copy
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.paths import EXAMPLES, ROOT

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import stowplan  # noqa: E402
from benchmarks.lib.modulo_scheduling.generated_graphs import generated  # noqa: E402
from stowplan.errors import InputError, UsageError  # noqa: E402
from stowplan.learned_guidance.environments import MODULO_SCHEDULING  # noqa: E402
from stowplan.learned_guidance.modulo_scheduling.environment import (  # noqa: E402
    FAILURE,
    ModuloSchedulingEnv,
    demo_problem,
)
from stowplan.learned_guidance.modulo_scheduling.view import Limits  # noqa: E402
from stowplan.models.modulo_scheduling.bounds import critical_path, least_ii  # noqa: E402
from stowplan.models.modulo_scheduling.plan import Plan  # noqa: E402
from stowplan.models.modulo_scheduling.problem import Pin, Problem  # noqa: E402
from stowplan.models.modulo_scheduling.verify import verify  # noqa: E402
from tests.models.modulo_scheduling.cases import graph, line  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")

LIMITS = Limits(nodes=40, edges=80, tiles=16, slots=64)


def problems() -> list[Problem]:
    """Graphs of several sizes."""
    return [generated(np.random.default_rng(seed), instructions=count) for seed, count in enumerate((6, 14, 9))]


def draw(chance: np.random.Generator) -> Problem:
    return generated(chance, instructions=(6, 12))


def episode(env: ModuloSchedulingEnv, chance: np.random.Generator) -> tuple[list[float], dict[str, Any]]:
    """Rewards and the last info of an episode of random legal actions."""
    rewards, done, info = [], False, {}
    while not done:
        _, reward, done, truncated, info = env.step(chance.choice(np.flatnonzero(env.action_masks())))
        assert not truncated
        rewards.append(float(reward))
    return rewards, info


def fail(env: ModuloSchedulingEnv) -> tuple[Any, ...]:
    """End the episode with the first action that is not legal."""
    while True:
        illegal = np.flatnonzero(~env.action_masks())
        if len(illegal):
            return env.step(int(illegal[0]))
        env.step(0)


# Gymnasium's rules


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shaping": "placed", "first": "latency", "look_ahead": False, "ii": 8},
        {"problem": problems(), "shaping": "placed"},
        {"problem": draw, "limits": LIMITS, "ii": 6},
    ],
)
def test_the_checker_of_gymnasium_has_nothing_to_say(options: dict[str, Any]) -> None:
    check_env(gymnasium.make(MODULO_SCHEDULING, **options).unwrapped)
    check_env(gymnasium.make(MODULO_SCHEDULING, render_mode="ansi", **options).unwrapped)


def test_what_is_drawn_and_cannot_be_begun_is_drawn_again() -> None:
    stuck, other = (draw(np.random.default_rng(seed)) for seed in (70, 71))
    with pytest.raises(InputError, match="nothing can be placed at II 6"):
        ModuloSchedulingEnv(problem=stuck, limits=LIMITS, ii=6).reset()
    drawn = [other, *[stuck] * 3]
    env = ModuloSchedulingEnv(problem=lambda chance: drawn.pop(), limits=LIMITS, ii=6)
    env.reset(seed=0)
    assert (env.problem.digest, drawn) == (other.digest, [])
    hopeless = ModuloSchedulingEnv(problem=lambda chance: stuck, limits=LIMITS, ii=6)
    with pytest.raises(InputError, match="nothing can be placed at II"):
        hopeless.reset(seed=0)


@pytest.mark.filterwarnings("default")
def test_the_checker_of_stable_baselines() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(ModuloSchedulingEnv(problem=problems()), warn=False)


@pytest.mark.filterwarnings("default")
def test_the_masks_are_found_by_sb3_contrib() -> None:
    pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
    from stable_baselines3.common.vec_env import DummyVecEnv

    envs = DummyVecEnv([lambda: ModuloSchedulingEnv(problem=problems())] * 2)
    envs.reset()
    assert is_masking_supported(envs)
    assert get_action_masks(envs).shape == (2, envs.action_space.n)
    assert get_action_masks(envs).any(axis=1).all()


def test_an_environment_is_made_again_from_its_spec(tmp_path: Path) -> None:
    demo_problem().save(tmp_path / "demo.json")
    env = gymnasium.make(MODULO_SCHEDULING, problem=str(tmp_path / "demo.json"), shaping="placed")
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    earned = []
    for each in (env, again):
        each.reset(seed=3)
        earned.append(episode(each.unwrapped, np.random.default_rng(1))[0])
    assert earned[0] == earned[1]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_plays_on_alike(clone: Any) -> None:
    env = ModuloSchedulingEnv(problem=problems())
    env.reset(seed=1)
    env.step(int(np.flatnonzero(env.action_masks())[0]))
    other = clone(env)
    assert episode(env, np.random.default_rng(0)) == episode(other, np.random.default_rng(0))
    for one, two in zip(env.reset()[0].values(), other.reset()[0].values(), strict=True):
        assert (one == two).all()


# What is earned


@pytest.mark.parametrize("first", ["ii", "latency"])
def test_complete_mappings_earn_their_cycles(first: Any) -> None:
    problem = generated(np.random.default_rng(1), instructions=14)
    env, chance = ModuloSchedulingEnv(problem=problem, first=first, iterations=10), np.random.default_rng(0)
    path, complete = critical_path(problem), 0
    for number in range(12):
        env.reset(seed=None if number else 0)
        rewards, info = episode(env, chance)
        assert not any(rewards[:-1])
        if info["failed"]:
            assert (rewards[-1], "plan" in info) == (FAILURE, False)
            continue
        complete += 1
        plan = info["plan"]
        assert plan == env.plan()
        assert verify(problem, plan).ok
        ii, makespan = plan.ii, plan.makespan
        cycles, least = (9 * ii + makespan, 9 * ii + path) if first == "ii" else (9 * makespan + ii, 9 * path + ii)
        assert rewards[-1] == pytest.approx(-cycles / least)
        assert FAILURE < rewards[-1] <= -1
    assert complete >= 3


def test_shaping_by_what_is_placed() -> None:
    """A failure earns more the later it comes."""
    problem = demo_problem()
    env, chance, seen = (
        ModuloSchedulingEnv(problem=problem, shaping="placed", look_ahead=False),
        np.random.default_rng(0),
        set(),
    )
    for number in range(10):
        env.reset(seed=None if number else 0)
        rewards, info = episode(env, chance)
        if info["failed"]:
            assert rewards[-1] == pytest.approx(FAILURE + info["placed"] / len(problem.instructions))
            seen.add(info["placed"])
    assert len(seen) > 1


def test_an_illegal_action_ends_the_episode() -> None:
    env = ModuloSchedulingEnv()
    env.reset(seed=0)
    _, reward, terminated, truncated, info = fail(env)
    assert (reward, terminated, truncated, info["failed"]) == (FAILURE, True, False, True)


# Which problem, which interval, and what is placed before


def test_intervals_rise_after_failures_and_fall_after_mappings() -> None:
    env = ModuloSchedulingEnv(problem=graph("a>b b>c a>c", line(3, spoke_depth=5)))
    seen = [env.reset(seed=0)[1]["ii"]]
    for _ in range(6):
        fail(env)
        seen.append(env.reset()[1]["ii"])
    assert seen == [1, 2, 3, 4, 5, 5, 5]
    assert not episode(env, np.random.default_rng(0))[1]["failed"]
    assert env.reset()[1]["ii"] == 4
    assert env.reset(seed=0)[1]["ii"] == 1


def test_intervals_that_stay() -> None:
    env = ModuloSchedulingEnv(problem=demo_problem(), ii=4)
    for _ in range(3):
        assert env.reset()[1]["ii"] == 4
        fail(env)
    assert env.reset(options={"ii": 3})[1]["ii"] == 3


def test_an_interval_that_no_mapping_has_is_left_behind() -> None:
    """The bounds say 1, but ``b`` is to issue in a slot that there is from 2 on."""
    problem = graph("b>a", line(spoke_depth=6), pins=(Pin(instruction="b", slot=1),))
    assert least_ii(problem) == 1
    assert ModuloSchedulingEnv(problem=problem).reset()[1]["ii"] == 2
    with pytest.raises(InputError, match="nothing can be placed at II 1"):
        ModuloSchedulingEnv(problem=problem, ii=1).reset()


def test_partial_placements_to_begin_with() -> None:
    problem = demo_problem()
    env = ModuloSchedulingEnv(problem=problem)
    first, second = (each.id for each in problem.instructions[:2])
    _, info = env.reset(options={"ii": 3, "fixed": {first: (4, 1)}})
    assert (info["placed"], env.mapping.tile[0], env.mapping.slot[0]) == (1, 4, 1)
    rewards, info = episode(env, np.random.default_rng(0))
    assert info["failed"] or info["plan"].tiles[0] == 4
    # Everything but one instruction.
    env.reset(options={"ii": 3})
    while "plan" not in info:
        env.reset(options={"ii": 3})
        rewards, info = episode(env, np.random.default_rng(len(rewards)))
    plan = info["plan"]
    rest = {each.id: (plan.tiles[at], plan.slots[at]) for at, each in enumerate(problem.instructions) if each.id != second}
    env.reset(options={"ii": 3, "fixed": rest})
    _, _, terminated, _, info = env.step(plan.tiles[1] * env.limits.slots + plan.slots[1])
    assert (terminated, info["failed"]) == (True, False)
    with pytest.raises(InputError, match=f"found {first} fixed on tile 99"):
        env.reset(options={"fixed": {first: (99, 0)}})


def test_problems_are_drawn_by_seed() -> None:
    env = ModuloSchedulingEnv(problem=problems())

    def drawn(seed: int) -> list[str]:
        env.reset(seed=seed)
        names = []
        for _ in range(12):
            env.reset()
            names.append(env.problem.digest)
        return names

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(set(drawn(1))) == 3


def test_a_function_draws_problems() -> None:
    env = ModuloSchedulingEnv(problem=draw, limits=LIMITS)
    assert env.problems == ()
    seen = set()
    for number in range(6):
        observation, _ = env.reset(seed=number)
        assert observation in env.observation_space
        seen.add(env.problem.digest)
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first": "area"}, "found first='area', expected one of 'ii', 'latency'"),
        ({"shaping": "yes"}, "found shaping='yes', expected one of 'none', 'placed'"),
        ({"render_mode": "human"}, "found render_mode='human', expected one of None, 'ansi'"),
        ({"problem": []}, "found no problems"),
        ({"problem": 3}, "found a problem of type int, expected a modulo-scheduling Problem or the path of its file"),
        ({"problem": draw}, "found a function that draws problems, expected limits="),
        ({"problem": graph("a>b a>c a>d", line(2))}, "has 3 consumers that need different tiles, a tile reaches 2"),
        ({"limits": Limits(nodes=40, edges=80, tiles=16, slots=1)}, "found distance_x3 of II 2 or more, expected 1 at most"),
    ],
)
def test_errors_of_options(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModuloSchedulingEnv(**arguments)


def test_errors() -> None:
    for arguments in ({"ii": 0}, {"iterations": 0}):
        with pytest.raises(UsageError, match="expected at least 1"):
            ModuloSchedulingEnv(**arguments)
    with pytest.raises(InputError, match="found no instructions"):
        ModuloSchedulingEnv(problem=Problem(instructions=(), machine=line()))
    with pytest.raises(InputError, match="found 18 nodes, expected 3 at most"):
        ModuloSchedulingEnv(limits=Limits(nodes=3, edges=80, tiles=16, slots=9)).reset()
    env = ModuloSchedulingEnv(problem=problems())
    for call in (env.action_masks, env.render, lambda: env.step(0), lambda: env.problem, env.plan):
        with pytest.raises(gymnasium.error.ResetNeeded):
            call()
    env.reset()
    with pytest.raises(ValueError, match="partial mapping"):
        env.plan()
    for action in (-1, env.action_space.n, 0.5, np.zeros(2, int)):
        with pytest.raises(gymnasium.error.InvalidAction, match=f"expected 0 to {env.action_space.n - 1}"):
            env.step(action)
    fail(env)
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode is over"):
        env.step(0)
    for options, message in (
        ({"problem": 3}, "found problem 3, expected a number below 3"),
        ({"seed": 3}, "found reset option 'seed', expected 'problem', 'ii' or 'fixed'"),
        ({"ii": 99}, "found an initiation interval of 99, expected"),
    ):
        with pytest.raises(InputError, match=message):
            env.reset(options=options)


# Pictures and examples


def test_text_says_what_stands_where() -> None:
    env = ModuloSchedulingEnv(problem=graph("a>b", line(2)), render_mode="ansi", ii=2)
    env.reset()
    env.step(1 * env.limits.slots)
    assert env.render() == "a>b: II 2, 1 of 2 instructions, 3 clocks\n  tile  0: - -\n  tile  1: a -\n"
    env = ModuloSchedulingEnv()
    env.reset()
    assert env.render() is None


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["map_with_gymnasium.py", "40"])
    runpy.run_path(str(ROOT / "examples" / "map_with_gymnasium.py"), run_name="__main__")
    assert "tile  0" in capsys.readouterr().out
    assert verify(stowplan.read(EXAMPLES / "fir.dfg.json", "se"), Plan.load(tmp_path / "plan.json")).ok
