"""The PPO mapper's trainer: it learns, imitates, and goes on bit for bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

import torch

from benchmarks.lib.modulo_scheduling.flipped import flipped
from stowplan.errors import InputError, UsageError
from stowplan.learned_guidance.modulo_scheduling.ppo import lessons
from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.learned_guidance.training.run import run
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.verify import verify
from tests.learned_guidance.modulo_scheduling.graphs import butterflies, chain, distance
from tests.learned_guidance.modulo_scheduling.ppo.small import small

PROBLEMS = [distance(), chain(3, back=1)]


def same(one: Trainer, two: Trainer) -> bool:
    """Whether two trainers have the same weights."""
    weights = two.network.state_dict()
    return all(torch.equal(weight, weights[name]) for name, weight in one.network.state_dict().items())


def greedy_plan(problem: Problem, ii: int) -> Plan:
    """A plan of first legal places."""
    mapping = Mapping(problem, ii)
    while mapping.current >= 0:
        tile, slot = np.argwhere(mapping.mask())[0]
        mapping.place(int(tile), int(slot))
    return mapping.plan()


def test_it_finds_valid_plans_and_reports() -> None:
    trainer = Trainer(PROBLEMS, small(steps=256))
    lines = []
    assert run(trainer, on_progress=lambda progress: lines.append(progress)) == "steps_done"
    assert trainer.steps == 256
    assert len(lines) == 4
    assert lines[-1].episodes == trainer.episodes
    for number, problem in enumerate(PROBLEMS):
        plan = trainer.plan(number)
        assert plan is not None
        assert not verify(problem, plan).violations
        assert plan.objective <= trainer.curriculum.objectives[number]


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    config = small(steps=192, imitation_steps=30)
    plan = greedy_plan(PROBLEMS[0], 4)
    whole, cut = Trainer(PROBLEMS, config, seed=3), Trainer(PROBLEMS, config, seed=3)
    for trainer in (whole, cut):
        trainer.demonstrate(0, plan)
    run(whole)
    for reports in (1, 3):
        run(cut, max_reports=reports)
        cut.save(tmp_path / "checkpoint.pt")
        # What others draw in between does not matter.
        np.random.default_rng().random()
        torch.rand(3)
        cut = Trainer.resume(tmp_path / "checkpoint.pt", PROBLEMS)
    run(cut)
    assert cut.steps == whole.steps == 192
    assert cut.imitated == 30
    assert same(whole, cut)
    assert whole.curriculum.state_dict() == cut.curriculum.state_dict()


def test_seeds_decide() -> None:
    one, again, other = (Trainer(PROBLEMS, small(), seed=seed) for seed in (1, 1, 2))
    for trainer in (one, again, other):
        run(trainer)
    assert same(one, again)
    assert not same(one, other)


def test_others_random_numbers_stay_as_they_were() -> None:
    before = np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    run(Trainer(PROBLEMS, small()))
    assert (np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()) == before


def test_imitation_brings_a_plan_back() -> None:
    problem = butterflies()
    plan = greedy_plan(problem, 4)
    trainer = Trainer([problem], small(hidden=16, imitation_steps=150, imitation_rate=1e-2))
    trainer.demonstrate(0, plan)
    losses: list[float] = []
    run(trainer, on_progress=lambda progress: losses.append(progress.imitation_loss), max_reports=8)
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.slow
def test_training_learns_to_complete_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    # Untrained, every other mapping gets stuck without the masks' look ahead.
    monkeypatch.setattr(lessons, "ModuloSchedulingEnv", partial(lessons.ModuloSchedulingEnv, look_ahead=False))
    problem = butterflies(4)
    trainer = Trainer([problem], small(steps=1_024, hidden=16, rate=3e-3, entropy=0.0), seed=1)
    rewards: list[float] = []
    run(trainer, on_progress=lambda progress: rewards.append(progress.mean_reward))
    assert np.mean(rewards[-4:]) > np.mean(rewards[:4])


def test_ablations_train() -> None:
    run(Trainer([distance()], small(layers=0)))
    run(Trainer([distance()], small(first="latency", shaping="none")))


def test_plans_upside_down_are_plans() -> None:
    problem = butterflies()
    plan = greedy_plan(problem, 4)
    other = flipped(plan, problem)
    assert other is not None
    assert other.tiles != plan.tiles
    trainer = Trainer([problem], small())
    trainer.demonstrate(0, other)


def test_wrong_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"batch_size is 99, expected 64 at most"):
        small(batch_size=99)
    with pytest.raises(UsageError, match=r"hidden is 9, expected a multiple of heads"):
        small(hidden=9)
    with pytest.raises(InputError, match=r"no problems"):
        Trainer([], small())
    trainer = Trainer([distance()], small())
    with pytest.raises(InputError, match=r"plan of another problem"):
        trainer.demonstrate(0, greedy_plan(butterflies(), 4))
    trainer.save(tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match=r"made with other problems"):
        Trainer.resume(tmp_path / "checkpoint.pt", [butterflies()])
    with pytest.raises(InputError, match=r"other sizes"):
        Trainer([distance()], small(hidden=16), weights=trainer.network.state_dict())
