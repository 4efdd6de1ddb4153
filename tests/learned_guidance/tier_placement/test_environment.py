"""Tier placement behind Gymnasium's interface: its checkers, what is seen and earned, and plans that the verifier accepts."""

from __future__ import annotations

import copy
import pickle
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.paths import EXAMPLES, ROOT

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import stowplan  # noqa: E402
from benchmarks.lib.tier_placement.variants import generated  # noqa: E402
from stowplan.errors import InputError, UsageError  # noqa: E402
from stowplan.hardware.nnp_i.chip import REWARD_SCALE, Chip  # noqa: E402
from stowplan.learned_guidance.environments import TIER_PLACEMENT  # noqa: E402
from stowplan.learned_guidance.tier_placement.environment import TierPlacementEnv, demo_problem  # noqa: E402
from stowplan.learned_guidance.tier_placement.graph import graph_of  # noqa: E402
from stowplan.models.tier_placement.plan import Plan  # noqa: E402
from stowplan.models.tier_placement.problem import Problem, Tier  # noqa: E402
from stowplan.models.tier_placement.verify import verify  # noqa: E402
from tests.models.tier_placement.cases import chain  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")


def problems() -> list[Problem]:
    """Networks of several sizes."""
    return [generated(np.random.default_rng(seed), form="branches", layers=count) for seed, count in enumerate((8, 20, 14))]


def draw(chance: np.random.Generator) -> Problem:
    return generated(chance, layers=10, form="mlp")


def compilers(env: TierPlacementEnv) -> Any:
    """The compiler's own map as an action."""
    own, action = Chip(env.problem).compiler, np.zeros((env.layers, 2), np.int64)
    action[: len(env.problem.layers)] = np.stack(own[:2], axis=1)
    return action.reshape(-1)


# Gymnasium's rules


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"features": "chip", "noise": 0.05},
        {"problem": problems(), "noise": 0.05},
        {"problem": draw, "layers": 24},
    ],
)
def test_the_checker_of_gymnasium_has_nothing_to_say(options: dict[str, Any]) -> None:
    check_env(gymnasium.make(TIER_PLACEMENT, **options).unwrapped)
    check_env(gymnasium.make(TIER_PLACEMENT, render_mode="ansi", **options).unwrapped)


@pytest.mark.filterwarnings("default")
def test_the_checker_of_stable_baselines() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(TierPlacementEnv(problem=problems(), features="chip"), warn=False)


def test_an_environment_is_made_again_from_its_spec(tmp_path: Path) -> None:
    demo_problem().save(tmp_path / "demo.json")
    env = gymnasium.make(TIER_PLACEMENT, problem=str(tmp_path / "demo.json"), noise=0.1)
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    earned = []
    for each in (env, again):
        each.reset(seed=3)
        earned.append(each.step(compilers(each.unwrapped))[1])
    assert earned[0] == earned[1]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_plays_on_alike(clone: Any) -> None:
    env = TierPlacementEnv(problem=problems(), noise=0.05)
    env.reset(seed=1)
    other = clone(env)
    for _ in range(4):
        action = compilers(env)
        assert env.step(action)[1] == other.step(action)[1]
        for one, two in zip(env.reset()[0].values(), other.reset()[0].values(), strict=True):
            assert (one == two).all()


def test_vectors_of_environments() -> None:
    envs = gymnasium.make_vec(TIER_PLACEMENT, num_envs=3, vectorization_mode="sync", vector_kwargs={}, problem=problems())
    observations, info = envs.reset(seed=5)
    assert observations["mask"][:, 0, 1].tolist() == [1, 1, 1]
    assert info == {}
    seen = set()
    for _ in range(12):
        observations, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
        assert observations in envs.observation_space
        assert rewards.shape == (3,)
        assert not truncated.any()
        # A step ends an episode, and the next call begins another.
        assert not terminated.any() or len(info["latency_ps"]) == 3
        seen |= {each.problem.name for each in envs.unwrapped.get_attr("unwrapped")}
    assert len(seen) == 3
    envs.close()


# What is seen


@pytest.mark.parametrize("features", ["paper", "chip"])
def test_observations_are_the_graph_filled_up(features: Any) -> None:
    given = problems()
    env = TierPlacementEnv(problem=given, features=features)
    assert env.layers == max(len(each.layers) for each in given)
    assert env.action_space.nvec.tolist() == [3] * (2 * env.layers)
    for number, problem in enumerate(given):
        observation, _ = env.reset(options={"problem": number})
        assert observation in env.observation_space
        assert env.problem is problem
        graph, count = graph_of(problem, features), len(problem.layers)
        assert (observation["features"][:count] == graph.features).all()
        assert not observation["features"][count:].any()
        edges = observation["edges"]
        assert (edges[:, : graph.edges.shape[1]] == graph.edges).all()
        assert (edges[:, graph.edges.shape[1] :] == -1).all()
        assert not observation["tiers"].any()
        weights = [int(layer.weight_bytes > 0) for layer in problem.layers]
        assert observation["mask"].T.tolist() == [[*each, *[0] * (env.layers - count)] for each in (weights, [1] * count)]


def test_the_last_observation_shows_the_proposal() -> None:
    env = TierPlacementEnv(problem=problems())
    observation, _ = env.reset(options={"problem": 0})
    mask = observation["mask"]
    action = np.full(env.action_space.shape, 2)
    observation, _, terminated, truncated, _ = env.step(action)
    assert (terminated, truncated) == (True, False)
    assert (observation["tiers"] == 2 * mask).all()
    assert not env.reset()[0]["tiers"].any()


# What is earned


def test_rewards_are_those_of_the_chip() -> None:
    env = TierPlacementEnv(problem=chain_with_features())
    chip = Chip(env.problems[0])
    chance = np.random.default_rng(0)
    executed = 0
    for _ in range(60):
        env.reset()
        action = (chance.random(24) < chance.uniform(0.6, 1.0)).astype(np.int64)
        _, reward, _, _, info = env.step(action)
        expected = chip.evaluate(action[::2].tolist(), action[1::2].tolist())
        assert reward == expected.reward
        assert (info["epsilon"], info["latency_ps"]) == (expected.epsilon, expected.latency_ps)
        assert (info["speedup"], info["measured_ps"]) == (expected.speedup, expected.measured_ps)
        assert info["plan"] == env.plan() == chip.plan(expected.map)
        assert verify(env.problem, info["plan"]).ok
        executed += info["epsilon"] == 0
    assert 10 < executed < 50


def chain_with_features() -> Problem:
    """Twelve layers, not all of which fit into the fast tier."""
    tiers = (Tier(name="slow", capacity=10_000, bandwidth=10**11), Tier(name="fast", capacity=400, bandwidth=10**12))
    return msgspec.structs.replace(chain(12), tiers=tiers, features=((1,) * 19,) * 12)


def test_the_compilers_map_earns_its_own_speed() -> None:
    env = TierPlacementEnv()
    env.reset()
    _, reward, _, _, info = env.step(compilers(env))
    assert (reward, info["speedup"], info["epsilon"]) == (REWARD_SCALE, 1.0, 0.0)
    assert info["plan"].objective == Chip(env.problem).compiler_ps


def test_offsets_of_address_spaces_are_part_of_the_plan() -> None:
    problem = msgspec.structs.replace(chain(6, address_spaces=True), features=((1,) * 19,) * 6)
    env = TierPlacementEnv(problem=problem)
    env.reset()
    plan: Plan = env.step(np.ones(12, np.int64))[-1]["plan"]
    assert len(plan.weight_offsets) == 6
    assert verify(problem, plan).ok


def test_noise_is_seeded() -> None:
    env = TierPlacementEnv(noise=0.05)

    def earned(seed: int) -> list[float]:
        rewards = []
        for number in range(5):
            env.reset(seed=None if number else seed)
            rewards.append(float(env.step(compilers(env))[1]))
        return rewards

    assert earned(1) == earned(1) != earned(2)
    assert len(set(earned(1))) == 5
    assert np.mean(earned(1)) == pytest.approx(REWARD_SCALE, rel=0.2)


# Which problems


def test_problems_are_drawn_by_seed() -> None:
    env = TierPlacementEnv(problem=problems())

    def drawn(seed: int) -> list[str]:
        env.reset(seed=seed)
        names = []
        for _ in range(12):
            env.reset()
            names.append(env.problem.name)
        return names

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == {each.name for each in problems()}


def test_a_function_draws_problems() -> None:
    env = TierPlacementEnv(problem=draw, layers=30)
    assert env.problems == ()
    seen = set()
    for number in range(6):
        observation, _ = env.reset(seed=number)
        assert observation in env.observation_space
        seen.add(env.problem.digest)
    env.reset(seed=0)
    assert env.problem == draw(gymnasium.utils.seeding.np_random(0)[0])
    assert len(seen) == 6


def test_any_problem_that_is_small_enough_can_be_asked_for(tmp_path: Path) -> None:
    small, _, other = problems()
    env = TierPlacementEnv(problem=small, layers=90, edges=300)
    other.save(tmp_path / "other.json")
    for wanted in (other, tmp_path / "other.json", str(tmp_path / "other.json")):
        env.reset(options={"problem": wanted})
        assert env.problem == other
    env.reset()
    assert env.problem == small


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": "all"}, "found features='all', expected one of 'paper', 'chip'"),
        ({"render_mode": "human"}, "found render_mode='human', expected one of None, 'ansi'"),
        ({"problem": []}, "found no problems"),
        ({"problem": 3}, "found a problem of type int, expected a tier-placement Problem or the path of its file"),
        ({"problem": [chain_with_features(), demo_problem()]}, "found 2 tiers in chain, expected 3"),
        ({"problem": draw}, "found a function that draws problems, expected layers="),
        ({"layers": 5}, "found 47 layers in residual-922273, expected at most 5"),
        ({"edges": 5}, "found .* edges in both directions in residual-922273, expected at most 5"),
        ({"tiers": 2}, "found 3 tiers in residual-922273, expected 2"),
    ],
)
def test_errors_of_options(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TierPlacementEnv(**arguments)


def test_errors() -> None:
    with pytest.raises(UsageError, match="found layers 0, expected at least 1"):
        TierPlacementEnv(layers=0)
    with pytest.raises(InputError, match="no node features"):
        TierPlacementEnv(problem=chain(3)).reset()
    with pytest.raises(UsageError, match="noise"):
        TierPlacementEnv(noise=2.0).reset()
    env = TierPlacementEnv(problem=problems())
    for call in (env.render, lambda: env.step(np.zeros(env.action_space.shape, int)), lambda: env.problem):
        with pytest.raises(gymnasium.error.ResetNeeded):
            call()
    with pytest.raises(ValueError, match="nothing has been proposed"):
        env.plan()
    env.reset()
    for action in (3, np.zeros(5, int), np.full(env.action_space.shape, 3), np.zeros(env.action_space.shape)):
        with pytest.raises(
            gymnasium.error.InvalidAction, match=re.escape(f"expected {2 * env.layers} whole numbers from 0 to 2")
        ):
            env.step(action)
    env.step(np.zeros(env.action_space.shape, int))
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode is over"):
        env.step(np.zeros(env.action_space.shape, int))
    for options, message in (
        ({"problem": 3}, "found problem 3, expected a number below 3"),
        ({"seed": 3}, "found reset option 'seed', expected 'problem'"),
        ({"problem": generated(np.random.default_rng(0), layers=200)}, "layers in .*, expected at most"),
    ):
        with pytest.raises(InputError, match=message):
            env.reset(options=options)


# Pictures and examples


def test_text_says_what_stands_where() -> None:
    env = TierPlacementEnv(problem=chain_with_features(), render_mode="ansi")
    env.reset()
    assert env.render().splitlines()[0].endswith("us, the compiler's map")
    env.step(np.zeros(24, np.int64))
    assert re.fullmatch(
        r"chain: 12 layers, 0\.0 us, 0\.\d+ times as fast as the compiler's\n"
        r"  slow: weights 0\.00 MiB, activations 0\.00 MiB\n  fast: weights 0\.00 MiB, activations 0\.00 MiB\n",
        env.render(),
    )
    env.reset()
    env.step(np.ones(24, np.int64))
    assert "of the bytes re-assigned" in env.render()
    env = TierPlacementEnv()
    env.reset()
    assert env.render() is None


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["place_with_gymnasium.py", "150"])
    runpy.run_path(str(ROOT / "examples" / "place_with_gymnasium.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "times as fast as the compiler's" in shown
    problem = stowplan.read(EXAMPLES / "resnet50.layers.json", "nnp-i", precision="int8")
    assert verify(problem, Plan.load(tmp_path / "plan.json")).ok
