"""MMapGame behind Gymnasium's interface: its checker, masked and unmasked play, and plans that the verifier accepts."""

from __future__ import annotations

import copy
import pickle
import random
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.paths import ROOT

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import stowplan  # noqa: E402
from benchmarks.lib.memory_mapping.plain_game import reset  # noqa: E402
from stowplan.errors import InputError  # noqa: E402
from stowplan.learned_guidance.environments import MMAP_GAME  # noqa: E402
from stowplan.learned_guidance.memory_mapping.environment import KEYS, MMapGameEnv  # noqa: E402
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, play_greedy  # noqa: E402
from stowplan.learned_guidance.memory_mapping.game.game import Action  # noqa: E402
from stowplan.learned_guidance.memory_mapping.game.programs import demo_problem  # noqa: E402
from stowplan.learned_guidance.memory_mapping.observation.layout import ActionFeature, ObservationConfig  # noqa: E402
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer, empty_observations  # noqa: E402
from stowplan.models.memory_mapping.plan import Plan  # noqa: E402
from stowplan.models.memory_mapping.problem import Problem  # noqa: E402
from stowplan.models.memory_mapping.verify import verify  # noqa: E402
from tests.learned_guidance.memory_mapping.programs import program  # noqa: E402
from tests.models.memory_mapping.cases import random_problem  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")

COPY, NOCOPY, DROP = Action.COPY, Action.NOCOPY, Action.DROP


def tight() -> Problem:
    """Copying a in leaves its write without an action: one step is too short to copy it out."""
    return program(["", "c", "", "a >a", "b"], {"a": 3, "b": 1, "c": 1}, inputs="abc", outputs="a")


def play(env: Any, rng: random.Random, manner: str = "masked", **reset_arguments: Any) -> tuple[list[float], dict[str, Any]]:
    """Play to the end: at random ``masked`` or ``unmasked``, or ``place`` (no Drop but where nothing else is legal).

    The rewards, and the last info.
    """
    observation, info = env.reset(**reset_arguments)
    rewards = []
    while True:
        assert observation in env.observation_space
        mask = info["action_mask"]
        assert (mask == observation["action_mask"]).all()
        legal = range(3) if manner == "unmasked" else np.flatnonzero(mask[:2] if manner == "place" and mask[:2].any() else mask)
        action = rng.choice([int(action) for action in legal])
        observation, reward, terminated, truncated, info = env.step(action)
        assert info["illegal"] == (not mask[action])
        rewards.append(reward)
        assert not truncated
        if terminated:
            assert not info["action_mask"].any()
            return rewards, info


# Gymnasium's rules


@pytest.mark.parametrize("options", [{}, {"reward_unit": "ps", "drop_backup": False}])
def test_the_checker_of_gymnasium_has_nothing_to_say(options: dict[str, Any]) -> None:
    check_env(gymnasium.make(MMAP_GAME, **options).unwrapped)


def test_an_environment_is_made_again_from_its_spec(tmp_path: Path) -> None:
    demo_problem().save(tmp_path / "demo.json")
    env = gymnasium.make(MMAP_GAME, problem=str(tmp_path / "demo.json"), reward_unit="ps")
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert play(env, random.Random(3))[0] == play(again, random.Random(3))[0]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_in_the_middle_of_a_game_plays_on_alike(clone: Any) -> None:
    env = gymnasium.make(MMAP_GAME)
    env.reset(seed=0)
    for action in (DROP, DROP, COPY):
        env.step(action)
    other = clone(env)
    mask = env.get_wrapper_attr("action_masks")().astype(np.int8)
    while mask.any():
        action = int(np.flatnonzero(mask)[-1])
        observation, reward, terminated, _, info = env.step(action)
        observation2, reward2, terminated2, _, info2 = other.step(action)
        assert (reward, terminated, info["return_ps"]) == (reward2, terminated2, info2["return_ps"])
        assert all((observation[name] == observation2[name]).all() for name in observation)
        mask = info["action_mask"]
    assert info["plan"] == info2["plan"]


def test_vectors_of_environments() -> None:
    envs = gymnasium.make_vec(MMAP_GAME, num_envs=3, vectorization_mode="sync")
    observations, info = envs.reset(seed=5)
    assert observations["action_mask"].shape == (3, 3)
    rng = np.random.default_rng(0)
    totals, ended = np.zeros(3), 0
    for _ in range(40):
        actions = [rng.choice(np.flatnonzero(mask)) if mask.any() else 0 for mask in observations["action_mask"]]
        observations, rewards, terminated, _, info = envs.step(np.array(actions))
        totals += rewards
        for number in np.flatnonzero(terminated):
            ended += 1
            assert info["plan"][number].objective == info["objective_ps"][number]
            assert totals[number] == pytest.approx(info["normalised_return"][number])
    assert ended == 3
    envs.close()


# Play


def test_same_seed_same_trajectory() -> None:
    problems = [random_problem(random.Random(number)) for number in range(20)]

    def trajectory(seed: int) -> list[Any]:
        env, rng = MMapGameEnv(problems), random.Random("moves")
        games = [play(env, rng, seed=seed if number == 0 else None) for number in range(5)]
        return [(rewards, info["plan"]) for rewards, info in games]

    assert trajectory(1) == trajectory(1)
    assert trajectory(1) != trajectory(2)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("manner", ["masked", "unmasked", "place"])
def test_every_game_is_a_valid_plan_with_the_return_it_says(manner: str, strict: bool) -> None:
    rng = random.Random(f"environments {manner} {strict}")
    resets = lost = loops = 0
    for number in range(100):
        problem = random_problem(rng, steps=rng.randint(1, 14), tensors=rng.randint(1, 8))
        for drop_backup in (True, False):
            env = MMapGameEnv(problem, strict_copy_windows=strict, drop_backup=drop_backup, reward_unit="ps")
            rewards, info = play(env, rng, manner)
            assert verify(problem, info["plan"]).ok, number
            assert sum(rewards) == info["return_ps"] == problem.all_slow_ps - info["objective_ps"]
            assert info["normalised_return"] == problem.normalised_return(info["objective_ps"])
            assert not info["lost"] or not drop_backup
            resets, lost, loops = resets + info["resets"], lost + info["lost"], loops + bool(problem.loops)
    assert loops > 20
    assert manner != "place" or (resets > 5 and lost > 5)


@pytest.mark.parametrize("strict", [False, True])
def test_a_masked_agent_plays_what_the_reference_plays(strict: bool) -> None:
    rng = random.Random(f"reference {strict}")
    moves = 0
    for number in range(60):
        problem = random_problem(rng, steps=rng.randint(1, 14), tensors=rng.randint(1, 8))
        rules: Any = {"strict_copy_windows": strict, "drop_backup": number % 2 == 0}
        env, state = MMapGameEnv(problem, reward_unit="ps", **rules), reset(problem, **rules)
        _, info = env.reset()
        while not state.is_over:
            assert [Action(action) for action in np.flatnonzero(info["action_mask"])] == list(state.legal_actions())
            action = rng.choice(state.legal_actions())
            _, reward, terminated, _, info = env.step(int(action))
            assert reward == state.step(action)
            assert (info["return_ps"], info["resets"], terminated) == (state.return_ps, state.resets, state.is_over)
            moves += 1
        if moves and "plan" in info:
            assert info["plan"] == state.plan()
    assert moves > 500


def test_a_masked_agent_plays_what_the_kernel_plays() -> None:
    rng = random.Random("kernel")
    resets = 0
    for _ in range(60):
        problem = random_problem(rng, steps=rng.randint(1, 14), tensors=rng.randint(1, 8))
        env, actions = MMapGameEnv(problem, reward_unit="ps"), []
        _, info = env.reset()
        while "plan" not in info:
            actions.append(rng.choice(np.flatnonzero(info["action_mask"]).tolist()))
            info = env.step(actions[-1])[4]
        state = CompiledGame(problem).reset()
        if not state.is_over:
            assert state.play(actions) == info["return_ps"]
        assert (state.plan(), state.resets) == (info["plan"], info["resets"])
        resets += state.resets
    assert resets > 0


def test_a_greedy_agent_sees_enough_to_play_as_the_kernel_does() -> None:
    rng = random.Random("greedy")
    for _ in range(40):
        game = CompiledGame(random_problem(rng, steps=rng.randint(1, 14), tensors=rng.randint(1, 8), tables=False))
        env = MMapGameEnv(game.problem)
        observation, info = env.reset()
        while "plan" not in info:
            rewards = observation["actions"][:, ActionFeature.REWARD]
            action = np.argmax(np.where(observation["action_mask"], rewards, -np.inf))
            observation, _, _, _, info = env.step(action)
        assert info["return_ps"] == play_greedy(game.tables, game.reset().data)


def test_observations_are_those_of_the_observer() -> None:
    rng = random.Random("observations")
    config = ObservationConfig(
        future_buffers=2, same_tensor_buffers=1, map_rows=8, map_columns=12, profile_bins=16, supply_slots=6
    )
    for _ in range(20):
        game = CompiledGame(random_problem(rng, steps=rng.randint(2, 14), tensors=rng.randint(1, 8)))
        env, state, observer = MMapGameEnv(game.problem, observation=config), game.reset(), Observer(game, config)
        observation, _ = env.reset()
        while not state.is_over:
            expected = empty_observations(config, 1)
            observer.observe(state, expected, 0)
            for name, array in expected._asdict().items():
                assert (observation[KEYS.get(name, name)] == array[0]).all()
            assert len(observation) == len(expected) + 1
            assert (observation["actions"][:, ActionFeature.IS_LEGAL] == observation["action_mask"]).all()
            action = rng.choice(np.flatnonzero(state.legal).tolist())
            state.step(action)
            observation, _, terminated, _, _ = env.step(action)
        assert terminated == state.is_over
        assert not any(array.any() for array in observation.values())


def test_keys_are_fit_for_names_of_torch_modules() -> None:
    """Stable-Baselines3 keeps an encoder for each key in a ModuleDict, which refuses names of its own methods."""
    torch = pytest.importorskip("torch")
    keys = MMapGameEnv().observation_space.spaces
    assert len(torch.nn.ModuleDict({key: torch.nn.Identity() for key in keys})) == len(keys) == 7


def test_normalised_rewards_sum_to_the_normalised_return() -> None:
    rng = random.Random("normalised")
    for _ in range(30):
        rewards, info = play(MMapGameEnv(), rng)
        assert 0 < sum(rewards) == pytest.approx(info["normalised_return"])
        assert info["normalised_return"] < 0.8234


def test_a_program_without_uses_has_an_episode_of_one_step() -> None:
    rewards, info = play(MMapGameEnv(program(["", ""], {})), random.Random(0))
    assert rewards == [0.0]
    assert info["normalised_return"] == 1.0
    assert verify(program(["", ""], {}), info["plan"]).ok


# Illegal actions


def test_an_illegal_action_is_replaced_by_the_most_cautious() -> None:
    env = MMapGameEnv(tight(), reward_unit="ps", drop_backup=False)
    env.reset()
    assert env.action_masks().tolist() == [True, False, True]
    _, reward, terminated, _, info = env.step(NOCOPY)
    assert (reward, terminated, info["illegal"]) == (0.0, False, True)
    _, reward, _, _, info = env.step(DROP)
    assert not info["illegal"]
    # A drop of a's input allows but a drop of its output.
    for action in (COPY, COPY):
        _, reward, terminated, _, info = env.step(action)
    assert (info["illegal"], terminated, info["return_ps"]) == (False, True, 100)


def test_an_illegal_action_may_be_refused() -> None:
    env = MMapGameEnv(tight(), on_illegal="raise")
    env.reset()
    with pytest.raises(gymnasium.error.InvalidAction, match="NOCOPY is not legal in move 0"):
        env.step(NOCOPY)
    assert not env.step(COPY)[4]["illegal"]


# Misuse


def test_order_is_enforced() -> None:
    env = MMapGameEnv()
    for too_early in (lambda: env.step(0), env.render, env.plan, env.action_masks, lambda: env.problem):
        with pytest.raises(gymnasium.error.ResetNeeded):
            too_early()
    play(env, random.Random(0))
    with pytest.raises(gymnasium.error.ResetNeeded, match="over"):
        env.step(0)
    env.reset()
    with pytest.raises(ValueError, match="34 moves are not made yet"):
        env.plan()
    for nonsense in (3, -1, "copy", None, 1.0):
        with pytest.raises(gymnasium.error.InvalidAction):
            env.step(nonsense)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problem": []}, "found no problems"),
        ({"problem": 3}, "type int"),
        ({"problem": [b"x"]}, "type bytes"),
        ({"problem": "nowhere.json"}, "nowhere.json"),
        ({"reward_unit": "s"}, "found reward_unit='s', expected one of 'normalised', 'ps'"),
        ({"on_illegal": "ignore"}, "found on_illegal='ignore'"),
        ({"render_mode": "human"}, "found render_mode='human'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MMapGameEnv(**arguments)


def test_an_episode_may_name_its_problem(tmp_path: Path) -> None:
    first, second = tight(), program([">a", ""], {"a": 1}, outputs="a")
    env = MMapGameEnv([first, second])
    second.save(tmp_path / "second.json")
    for wanted in (1, second, tmp_path / "second.json", str(tmp_path / "second.json")):
        env.reset(options={"problem": wanted})
        assert env.problem.digest == second.digest
    env.reset(options={"problem": 0})
    assert env.problem is first
    for options, message in (({"problem": 2}, "below 2"), ({"program": 0}, "'program'"), ({"problem": 1.5}, "type float")):
        with pytest.raises(InputError, match=message):
            env.reset(options=options)
    drawn = set()
    for seed in range(10):
        env.reset(seed=seed)
        drawn.add(env.problem.digest)
    assert drawn == {first.digest, second.digest}


def test_problems_may_be_drawn_by_a_function() -> None:
    def draw(rng: np.random.Generator) -> Problem:
        return random_problem(random.Random(int(rng.integers(1000))))

    def digests() -> list[str]:
        env = MMapGameEnv(draw)
        result = []
        for number in range(5):
            play(env, random.Random(0), seed=7 if number == 0 else None)
            result.append(env.problem.digest)
        return result

    assert digests() == digests()
    assert len(set(digests())) == 5


def test_the_example_plays_a_real_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    examples = ROOT / "examples"
    monkeypatch.chdir(tmp_path)
    module = str(examples / "data" / "alexnet_inf_b1.hlo.txt.gz")
    monkeypatch.setattr(sys, "argv", ["play_mmap_game.py", module])
    runpy.run_path(str(examples / "play_mmap_game.py"), run_name="__main__")
    said = capsys.readouterr().out
    returns = [float(number) for number in re.findall(r"R (\d\.\d+)", said)]
    assert 0 < returns[0] < returns[1]
    problem, plan = stowplan.read(module, target="tpu-v4"), Plan.load(tmp_path / "plan.json")
    assert verify(problem, plan).ok
    assert f"{problem.normalised_return(plan.objective):.3f}" in said


# Pictures


def test_the_text_shows_memory_channel_and_move() -> None:
    env = MMapGameEnv(program(["", "", "a", ">b"], {"a": 2, "b": 2}, inputs="a", outputs="b", capacity=4), render_mode="ansi")
    env.reset()
    assert "move 0 of 2, R 0.000; next: input a of step 2: COPY, DROP\n" in str(env.render())
    env.step(COPY)
    lines = str(env.render()).splitlines()
    assert lines[0] == "test: move 1 of 2, R 0.500; next: output b of step 3: DROP"
    wide = 18
    assert lines[1:9] == ["memory  " + "." * 4 * wide] * 8
    assert lines[9:17] == ["memory  " + "." * wide + "A" * 2 * wide + "." * wide] * 8
    assert lines[17] == "channel " + "." * wide + ">" * wide + "." * 2 * wide
    assert lines[18] == "        " + " " * 3 * wide + "^"
    env.step(DROP)
    assert str(env.render()).startswith("test: move 2 of 2, R 0.500, over\n")


def test_no_picture_without_a_mode() -> None:
    env = MMapGameEnv()
    env.reset()
    assert env.render() is None
