"""Training is the same run whenever it stops and resumes, spends what it was given, and finds the optimum of tiny networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from stowplan.errors import InputError, UsageError
from stowplan.hardware.nnp_i.chip import REWARD_SCALE
from stowplan.learned_guidance.tier_placement.egrl import workload
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import CHECKPOINT, POLICY
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.population import Chromosome, Member
from stowplan.learned_guidance.tier_placement.egrl.trainer import Progress, Trainer, restore_sizes
from stowplan.learned_guidance.training import run as training
from stowplan.learned_guidance.training.checkpoint import load, load_policy
from stowplan.learned_guidance.training.curve import CurveFile
from stowplan.learned_guidance.training.run import Allowance, run
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.verify import verify
from tests.learned_guidance.tier_placement.egrl.networks import other_digest, small_config, small_network
from tests.models.tier_placement import brute_force

ONE = [small_network(5)]
SEVERAL = [small_network(5), small_network(3, seed=1), small_network(7, seed=2)]


@pytest.fixture(params=[10, 20_000], ids=["a few members at once", "all members at once"])
def _nodes_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members, or all, in one forward pass."""
    monkeypatch.setattr(workload, "NODES_AT_ONCE", request.param)


def content(trainer: Trainer, path: Path) -> dict[str, Any]:
    """All of a checkpoint that must not depend on the clock."""
    trainer.save(path)
    values = load(path, CHECKPOINT).values
    del values["seconds"]
    return values


def assert_equal(one: Any, other: Any, place: str = "") -> None:
    assert type(one) is type(other), place
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for name in one:
            assert_equal(one[name], other[name], f"{place}/{name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{place}/{number}")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, place
        assert one.numpy().tobytes() == other.numpy().tobytes(), place
    else:
        assert one == other, place


def finished(trainer: Trainer) -> list[Progress]:
    """Reports of a run to its end."""
    found: list[Progress] = []
    assert run(trainer, on_progress=found.append) == "steps_done"
    return found


def without_times(reports: list[Progress]) -> list[tuple[Any, ...]]:
    return [(*report.row[:1], *report.row[2:11]) for report in reports]


DRIFTING = {"reevaluate": True, "least_networks": 0.0, "least_chromosomes": 0.0}
PAPER = {
    "bootstrap": True,
    "actor_actions": "likeliest",
    "critic_pooling": "max",
    "repair": False,
    "repair_networks": False,
    "migrate_rollouts": False,
}


@pytest.mark.parametrize(
    ("problems", "changes"),
    [
        (ONE, {}),
        (ONE, {"learner": False}),
        (ONE, {"population": 0, "rollouts": 2}),
        (ONE, DRIFTING),
        (ONE, PAPER),
        (SEVERAL, {}),
        (SEVERAL, {"learner": False}),
        (SEVERAL, DRIFTING),
    ],
    ids=["egrl", "ea", "pg", "drifting", "paper", "several", "several ea", "several drifting"],
)
@pytest.mark.usefixtures("_nodes_at_once")
def test_a_run_may_stop_anywhere(
    tmp_path: Path, problems: list[Any], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done since the end of a generation is done again. With noise, so that the chip's generator counts."""
    monkeypatch.setattr(training, "KEEP_SHARE", math.inf)
    changes = {"evaluations": 45, **changes}
    straight = Trainer(problems, small_config(**changes, noise=0.05), seed=3)
    straight.demonstrate(0, np.zeros((5, 2), np.int64)) if straight.config.learner else None
    stopping = Trainer(problems, small_config(**changes, noise=0.05), seed=3)
    stopping.demonstrate(0, np.zeros((5, 2), np.int64)) if stopping.config.learner else None

    expected, found = finished(straight), []
    for count in (0, 1, 3):
        left = iter(range(count))
        report = stopping.iterate(Allowance(should_stop=lambda: next(left, None) is None))  # noqa: B023
        assert stopping.is_whole == (report is not None)
        found += [] if report is None else [report]
        stopping.save(tmp_path / "part")
        stopping = Trainer.resume(tmp_path / "part", problems)
    found += finished(stopping)
    assert without_times(found) == without_times(expected)
    assert straight.evaluations == 45
    assert_equal(content(straight, tmp_path / "straight"), content(stopping, tmp_path / "resumed"))


@pytest.mark.parametrize("problems", [ONE, SEVERAL], ids=["one network", "several networks"])
def test_a_run_that_is_given_more_is_the_run_that_had_it_all_along(
    tmp_path: Path, problems: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the first limit cuts a generation at."""
    monkeypatch.setattr(training, "KEEP_SHARE", math.inf)
    monkeypatch.setattr(workload, "NODES_AT_ONCE", 10)
    straight = Trainer(problems, small_config(evaluations=25, noise=0.05), seed=5)
    finished(straight)
    for first in (1, 17):
        trainer = Trainer(problems, small_config(evaluations=first, noise=0.05), seed=5)
        reports = finished(trainer)
        assert reports[-1].evaluations == trainer.evaluations == first
        trainer.save(tmp_path / "part")
        again = Trainer.resume(tmp_path / "part", problems, changes={"evaluations": 25})
        # A generation that the limit cut is reported again, whole.
        assert again.iteration == reports[-1].generation - (reports[-1].generation > trainer.generations)
        finished(again)
        again.config = straight.config
        assert_equal(content(straight, tmp_path / "straight"), content(again, tmp_path / "resumed"))


@pytest.mark.usefixtures("_nodes_at_once")
def test_generations_evaluate_exactly_what_was_asked_for() -> None:
    for evaluations in (1, 7, 8, 20):
        trainer = Trainer(SEVERAL, small_config(evaluations=evaluations), seed=1)
        seen = []
        while not trainer.done:
            trainer.iterate()
            seen.append(trainer.evaluations)
        assert max(seen) == evaluations == sum(network.best.evaluations for network in trainer.networks)
        assert [network.chip.evaluations for network in trainer.networks] == [
            each.best.evaluations for each in trainer.networks
        ]


def test_a_population_of_elites_alone_goes_on() -> None:
    """All keep their fitness, so that nothing would be asked."""
    trainer = Trainer(ONE, small_config(population=2, learner=False, evaluations=9, imitation=0.0), seed=1)
    assert finished(trainer)[-1].evaluations == 9


def test_repaired_proposals_can_all_be_executed() -> None:
    def valid_part(**changes: Any) -> float:
        """In the mean over generations."""
        reports = finished(Trainer([small_network(30, seed=2)], small_config(**changes), seed=2))
        return float(np.mean([report.valid for report in reports]))

    assert valid_part() == 1.0
    assert 0.0 < valid_part(repair_networks=False) < 1.0
    assert valid_part(repair=False) < valid_part(repair_networks=False)


@pytest.mark.parametrize("migrates", [True, False])
def test_the_best_rollout_stands_for_selection(migrates: bool) -> None:
    """It is an elite where nothing is better, so it is a member of the next generation as it is."""
    config = small_config(migrate_rollouts=migrates, rollouts=400, evaluations=1_000, boltzmann_fraction=0.0, seeding=False)
    trainer = Trainer([small_network(12, seed=3)], config, seed=1)
    trainer.iterate()
    chromosomes = [member for member in trainer.members if member.is_chromosome and member.is_judged]
    assert bool(chromosomes) == migrates
    if migrates:
        assert trainer.networks[0].best.tiers is not None
        assert any((member.encoding.prior.argmax(-1) == trainer.networks[0].best.tiers).all() for member in chromosomes)
        assert max(member.fitness for member in chromosomes) == max(member.fitness for member in trainer.members)


def test_reports_say_what_a_generation_came_to() -> None:
    trainer = Trainer(ONE, small_config(evaluations=24), seed=0)
    reports = finished(trainer)
    assert [report.generation for report in reports] == [*range(1, len(reports) + 1)]
    assert reports[0].evaluations == 6 + trainer.config.rollouts
    for before, report in zip([None, *reports], reports, strict=False):
        count = report.evaluations - (before.evaluations if before else 0)
        assert 0.0 <= report.valid <= 1.0
        # Steps of the learner are a part of the generation; the last one may be cut.
        assert (report.losses is not None) == (report.generation <= trainer.generations)
        assert report.valid * count == pytest.approx(round(report.valid * count))
        assert len(report.row) == len(Trainer.COLUMNS)
        assert "best speedup" in report.line
        assert before is None or report.best >= before.best
    best = trainer.networks[0].best
    assert reports[-1].best == best.speedup == best.points[-1][1]
    assert [count for count, _ in best.points] == sorted({count for count, _ in best.points})


def test_the_curve_goes_on_where_it_was_resumed(tmp_path: Path) -> None:
    curve, path = tmp_path / "curve.csv", tmp_path / "x"
    trainer = Trainer(ONE, small_config(evaluations=100), seed=0)
    rows = CurveFile(curve, Trainer.COLUMNS)
    run(trainer, max_reports=3, on_progress=lambda report: rows.append(report.row), save=lambda: trainer.save(path))
    run(trainer, max_reports=1, on_progress=lambda report: rows.append(report.row))
    assert [row.split(",")[0] for row in curve.read_text().splitlines()] == ["generation", "1", "2", "3", "4"]
    again = Trainer.resume(path, ONE)
    rows = CurveFile(curve, Trainer.COLUMNS, again.iteration)
    run(again, max_reports=2, on_progress=lambda report: rows.append(report.row))
    assert [row.split(",")[0] for row in curve.read_text().splitlines()] == ["generation", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_it_finds_the_optimum_of_tiny_networks(seed: int) -> None:
    problem = small_network(3, seed=seed)
    trainer = Trainer([problem], small_config(evaluations=1200, updates_per_evaluation=0.03, population=12), seed=seed)
    optimum = brute_force.optimum(problem)
    run(trainer, should_stop=lambda: trainer.networks[0].best.latency_ps == optimum)
    assert trainer.networks[0].best.latency_ps == optimum


def test_one_population_of_graph_networks_learns_on_all() -> None:
    config = small_config(evaluations=60, updates_per_evaluation=0.1)
    trainer = Trainer(SEVERAL, config, seed=2)
    sizes = set()
    last = 0
    while not trainer.done:
        trainer.iterate()
        if trainer.generations == last:
            continue
        last = trainer.generations
        number = last % 3
        networks = [member for member in trainer.members if not member.is_chromosome]
        sizes.add((len(networks), len(trainer.members)))
        # What they are worth on this network is not known yet; chromosomes fit it.
        assert not any(member.is_judged for member in networks)
        layers = len(SEVERAL[number].layers)
        assert all(len(each.encoding.prior) == layers for each in trainer.members if isinstance(each.encoding, Chromosome))
    assert sizes == {(4, 6)}
    counts = [network.best.evaluations for network in trainer.networks]
    assert max(counts) - min(counts) <= 6 + config.rollouts


def member(fitness: float, is_chromosome: bool = False) -> Member:
    encoding = Chromosome.random(2, 2, np.random.default_rng(0), (0.1, 10.0)) if is_chromosome else np.zeros(3, np.float32)
    return Member(encoding, fitness)


def test_encodings_keep_their_numbers() -> None:
    a, b, c = (member(fitness) for fitness in (3.0, 1.0, 2.0))
    x, y = (member(fitness, is_chromosome=True) for fitness in (5.0, 4.0))
    parents = [a, b, c, x, y]
    # Selection made three chromosomes and left two networks: the least fit goes, and the best network that is gone stays.
    made = [x, member(2.0), member(4.0, is_chromosome=True), c, member(1.0, is_chromosome=True)]
    assert restore_sizes(made, parents) == [made[1], c, a, x, made[2]]
    assert restore_sizes(parents, parents) == parents
    only = [member(1.0), member(2.0)]
    assert restore_sizes([only[1], only[0]], only) == [only[1], only[0]]


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    first, second, other = (Trainer(ONE, small_config(evaluations=20, noise=0.05), seed=seed) for seed in (4, 4, 5))
    for trainer in (first, second, other):
        finished(trainer)
    assert_equal(content(first, tmp_path / "first"), content(second, tmp_path / "second"))
    assert first.networks[0].best.points != other.networks[0].best.points


def test_the_best_map_is_a_verified_plan_and_making_it_counts_nothing(tmp_path: Path) -> None:
    for problem in (small_network(6), small_network(6, address_spaces=True)):
        trainer = Trainer([problem], small_config(evaluations=30, noise=0.05), seed=0)
        run(trainer, max_reports=3)
        network = trainer.networks[0]
        before = content(trainer, tmp_path / "before")
        plan = network.plan()
        assert plan is not None
        assert not verify(problem, plan).violations
        assert plan.objective == network.best.latency_ps
        assert network.speedup == network.chip.compiler_ps / plan.objective
        assert_equal(before, content(trainer, tmp_path / "after"))
    assert Trainer(ONE, small_config()).networks[0].plan() is None


def test_a_policy_begins_another_run(tmp_path: Path) -> None:
    first = Trainer(ONE, small_config(evaluations=20), seed=0)
    finished(first)
    weights = first.learner.weights()
    second = Trainer(SEVERAL, small_config(), seed=1, weights=weights)
    assert second.learner.weights().tobytes() == weights.tobytes()
    encoding = second.members[0].encoding
    assert isinstance(encoding, np.ndarray)
    assert encoding.tobytes() == weights.tobytes()
    with pytest.raises(InputError, match=r"found \d+ weights, expected \d+"):
        Trainer(ONE, small_config(hidden=4), weights=weights)


def test_the_policy_is_the_graph_network_of_the_best_maps(tmp_path: Path) -> None:
    for changes in ({}, {"learner": False, "imitation": 0.0}, {"population": 0}):
        trainer = Trainer(SEVERAL, small_config(evaluations=30, **changes, noise=0.05), seed=0)
        finished(trainer)
        before = content(trainer, tmp_path / "before")
        row = trainer.best_policy()
        _, actor = load_policy(save_policy(trainer, tmp_path / "policy"), POLICY)
        assert actor.row.detach().numpy().tobytes() == row.tobytes()
        rows = [member.encoding for member in trainer.members if not member.is_chromosome]
        rows += [trainer.learner.weights()] if trainer.config.learner else []
        best = max(sum(reward(trainer, number, each) for number in range(3)) for each in rows)
        assert sum(reward(trainer, number, row) for number in range(3)) >= best - 1e-9
        assert_equal(before, content(trainer, tmp_path / "after"))
    only = Trainer(ONE, small_config(evaluations=12, learner=False, boltzmann_fraction=1.0, imitation=0.0), seed=0)
    finished(only)
    assert not only.has_network
    with pytest.raises(UsageError, match="chromosomes alone"):
        only.save_policy(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def save_policy(trainer: Trainer, path: Path) -> Path:
    trainer.save_policy(path)
    return path


def reward(trainer: Trainer, number: int, weights: Any) -> float:
    return trainer.networks[number].reward(trainer.learner.posteriors(number, [weights])[0].argmax(-1))


def test_demonstrations_are_learned_from_and_are_no_evaluations() -> None:
    problem = ONE[0]
    trainer = Trainer([problem], small_config(evaluations=14), seed=0)
    network = trainer.networks[0]
    compiler = network.chip.compiler
    trainer.demonstrate(0, network.chip.plan(compiler))
    assert [each.tolist() for each in network.shown] == [np.array(compiler[:2]).T.tolist()]
    assert trainer.replay.state_dict()["added"][0] == 1
    maps, rewards = trainer.replay.sample(0, 1, np.random.default_rng(0))
    assert (maps[0].tolist(), rewards.tolist()) == (network.shown[0].tolist(), [REWARD_SCALE])
    assert (trainer.evaluations, network.chip.evaluations, network.best.points) == (0, 0, [])
    assert network.plan() is None


@pytest.mark.slow
def test_imitation_makes_a_demonstration_likelier() -> None:
    def chance(imitation: float) -> float:
        config = small_config(evaluations=20, imitation=imitation, updates_per_evaluation=4.0, actor_rate=1e-2)
        trainer = Trainer(ONE, config.gradient_only(), seed=0)
        shown = np.array(trainer.networks[0].chip.compiler[:2]).T
        trainer.demonstrate(0, shown)
        finished(trainer)
        tensors = trainer.networks[0].movable
        found = trainer.learner.posterior(0)[tensors[:, 0], tensors[:, 1], shown[tensors[:, 0], tensors[:, 1]]]
        return float(found.mean())

    assert chance(5.0) > chance(0.0) + 0.1


BAD_MAPS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda problem: np.zeros((4, 2), np.int64), r"found tiers of shape \(4, 2\), expected \(5, 2\)"),
    (lambda problem: np.full((5, 2), 3), "found tiers 3 to 3, expected 0 to 2"),
    (lambda problem: np.full((5, 2), -1), "found tiers -1 to -1, expected 0 to 2"),
    (lambda problem: np.full((5, 2), 2), "cannot be executed as it is: .*%"),
    (lambda problem: plan_of(problem, digest="x"), "plan of another problem"),
    (lambda problem: plan_of(problem, count=4), "has not a tier for"),
]


def plan_of(problem: Any, digest: str = "", count: int = 5) -> Plan:
    return Plan(problem=digest or problem.digest, objective=1, weight_tiers=(0,) * count, output_tiers=(0,) * 5)


@pytest.mark.parametrize(("make", "message"), BAD_MAPS)
def test_maps_that_are_none_are_no_demonstrations(make: Callable[[Any], Any], message: str) -> None:
    trainer = Trainer(ONE, small_config(), seed=0)
    with pytest.raises(InputError, match=message):
        trainer.demonstrate(0, make(ONE[0]))
    assert not trainer.networks[0].shown
    assert trainer.replay.state_dict()["added"][0] == 0


def test_without_a_learner_nothing_learns_from_demonstrations() -> None:
    with pytest.raises(UsageError, match="expected a learner"):
        Trainer(ONE, small_config(learner=False)).demonstrate(0, np.zeros((5, 2), np.int64))


@pytest.mark.parametrize("seed", [1.5, "1", True, -1, None])
def test_seeds_are_whole_numbers(seed: Any) -> None:
    with pytest.raises(UsageError, match=r"^found seed "):
        Trainer(ONE, small_config(), seed=seed)


def test_networks_that_cannot_be_learned_on_together_are_refused() -> None:
    with pytest.raises(InputError, match="unlike tiers: 3 for small5, 2 for small4"):
        Trainer([*ONE, small_network(4, tiers=2)], small_config())
    with pytest.raises(UsageError, match="noise"):
        small_config(noise=1.5)


def test_the_paper_s_hyperparameters_are_those_of_table_2() -> None:
    config = EgrlConfig.paper()
    assert (config.hidden, config.depth, config.heads) == (128, 4, 4)
    assert (config.discount, config.population, config.rollouts) == (0.99, 20, 1)
    assert (config.boltzmann_fraction, config.evaluations, config.replay_size) == (0.2, 4_000, 100_000)
    assert (config.critic_rate, config.actor_rate, config.entropy) == (1e-3, 1e-3, 0.05)
    assert (config.target_rate, config.batch_size, config.updates_per_evaluation) == (1e-3, 24, 1.0)
    assert REWARD_SCALE == 5


def test_other_networks_have_other_digests() -> None:
    assert other_digest(ONE[0]).digest != ONE[0].digest
