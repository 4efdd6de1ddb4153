"""An agent of a few lines gets run loop, limits, curve, checkpoints, resuming and Ctrl-C from the shared core alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import stowplan
from stowplan.cli import event_on_interrupt
from stowplan.errors import InputError
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.checkpoint import Content, FileFormat
from stowplan.learned_guidance.training.curve import CurveFile
from stowplan.learned_guidance.training.run import Allowance, BaseTrainer, Counts, InterruptedIterationError, run


@dataclass(frozen=True)
class ToyConfig:
    rate: float = 0.05
    steps: int = 40


FORMAT = FileFormat("stowplan.toy.checkpoint", ToyConfig)
COLUMNS = ("iteration", "loss")


class ToyProblem(NamedTuple):
    digest: str = "digest"
    name: str = "toy"


class ToyAgent(BaseTrainer[ToyConfig, list[str]]):
    """Learns by two weights that a coin of 7 is drawn, whatever noise there is on it."""

    CHECKPOINT = POLICY = FORMAT
    COLUMNS = COLUMNS

    def __init__(
        self,
        problems: Sequence[ToyProblem],
        config: ToyConfig,
        *,
        seed: int = 0,
        clock: Callable[[], float] = lambda: 0.0,
    ):
        super().__init__(problems, config, seed=seed, clock=clock)
        self.steps, self.loss = 0, 0.0
        self.weights = torch.zeros(2, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.weights], lr=config.rate)
        self.rng = np.random.default_rng(seed)

    @property
    def done(self) -> bool:
        return self.steps >= self.config.steps

    @property
    def iteration(self) -> int:
        return self.steps // 4

    @property
    def counts(self) -> Counts:
        return Counts(self.steps, 0, 0)

    def demonstrate(self, number: int, plan: Any) -> None:
        raise NotImplementedError

    def plan(self, number: int) -> Any:
        raise NotImplementedError

    def policy_values(self) -> dict[str, Any]:
        return {"weights": self.weights.detach()}

    def _iterate(self, allowance: Allowance) -> list[str]:
        for _ in range(4):
            allowance.check()
            self.step()
        return [str(self.steps // 4), f"{self.loss:.6g}"]

    def step(self) -> None:
        loss = (self.weights.sum() - 7.0 - float(self.rng.normal())) ** 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps, self.loss = self.steps + 1, float(loss.detach())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "weights": self.weights.detach(),
            "optimizer": self.optimizer.state_dict(),
            "rng": checkpoint.pack_generator(self.rng),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        with torch.no_grad():
            self.weights.copy_(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng, self.steps = checkpoint.unpack_generator(state["rng"]), state["steps"]


def toy(config: ToyConfig, seed: int = 0) -> ToyAgent:
    return ToyAgent([ToyProblem()], config, seed=seed)


def resumed(path: Path, digest: str = "digest") -> ToyAgent:
    return ToyAgent.resume(path, [ToyProblem(digest)])


def content(path: Path) -> Content[ToyConfig]:
    return checkpoint.load(path, FORMAT)


def test_it_learns_and_says_that_it_is_done() -> None:
    agent = toy(ToyConfig(rate=0.2, steps=200))
    assert run(agent) == "steps_done"
    assert float(agent.weights.detach().sum()) == pytest.approx(7.0, abs=1.0)


def stopped_at(agent: ToyAgent, steps: int, path: Path) -> ToyAgent:
    run(agent, should_stop=lambda: agent.steps >= steps, save=lambda: agent.save(path))
    return resumed(path)


@pytest.mark.parametrize("stops", [(3, 9, 17), (1, 2, 39), (40,)])
def test_a_resumed_run_is_the_same_run_bit_for_bit(tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Stopped within an iteration it goes on from the end of the one before, which is kept while that takes no time."""
    straight = toy(ToyConfig(), seed=5)
    run(straight)
    straight.save(tmp_path / "straight")

    agent = toy(ToyConfig(), seed=5)
    for stop in stops:
        agent = stopped_at(agent, stop, tmp_path / "part")
        assert agent.steps == stop - stop % 4
    run(agent)
    agent.save(tmp_path / "resumed")
    assert (tmp_path / "straight").read_bytes() == (tmp_path / "resumed").read_bytes()


class Clock:
    """So many seconds pass with each look."""

    def __init__(self, step: float = 1.0):
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_limits_stop_it_and_say_so() -> None:
    for options, outcome in (
        ({"should_stop": lambda: True}, "stopped"),
        ({"max_reports": 0}, "stopped"),
        ({"time_limit": 0.0}, "time_limit"),
    ):
        agent = toy(ToyConfig())
        assert run(agent, **options) == outcome  # type: ignore[arg-type]
        assert agent.steps == 0
    agent = toy(ToyConfig())
    assert run(agent, max_reports=2) == "stopped"
    assert agent.steps == 8
    agent = toy(ToyConfig())
    # The limit is looked at once before each iteration, and once before each of its four steps.
    assert run(agent, time_limit=10.0, clock=Clock()) == "time_limit"
    assert agent.steps == 6


def test_states_are_kept_as_far_as_that_takes_little_time(tmp_path: Path) -> None:
    """One takes some seconds of this clock, so that the next is kept after more than a hundred."""
    clock = Clock()
    agent = ToyAgent([ToyProblem()], ToyConfig(steps=1000), clock=clock)
    looks = iter(range(5))
    for _ in range(3):
        agent.iterate()
    assert agent.iterate(Allowance(should_stop=lambda: next(looks, 2) == 2)) is None
    agent.save(tmp_path / "x")
    assert (agent.steps, resumed(tmp_path / "x").steps) == (14, 0)
    agent.iterate()
    clock.now += 1000.0
    agent.iterate()
    agent.iterate(Allowance(should_stop=lambda: True))
    agent.save(tmp_path / "x")
    assert (agent.steps, resumed(tmp_path / "x").steps) == (22, 18)


def test_long_iterations_can_ask_what_is_left() -> None:
    allowance = Allowance(10.0, clock=Clock())
    assert [allowance.used for _ in range(3)] == [0.1, 0.2, 0.3]
    assert not allowance.is_over()
    allowance.check()
    with pytest.raises(InterruptedIterationError):
        Allowance(0.0).check()
    assert Allowance(2.0, clock=Clock(step=2.0)).outcome == "time_limit"
    assert Allowance(should_stop=lambda: True).outcome == "stopped"
    assert (Allowance().used, Allowance().outcome) == (0.0, None)
    assert Allowance(0.0).is_over()


def test_checkpoints_are_written_as_often_as_asked() -> None:
    for every, expected in ((0.0, [4, 8, 12, 16, 20, 20]), (1e9, [20])):
        agent, written = toy(ToyConfig(steps=20)), []
        run(agent, save=lambda: written.append(agent.steps), save_every=every)  # noqa: B023
        assert written == expected


def test_its_curve_has_its_columns_and_goes_on_where_it_was_resumed(tmp_path: Path) -> None:
    path, agent = tmp_path / "curve.csv", toy(ToyConfig())
    run(agent, max_reports=4, on_progress=CurveFile(path, COLUMNS).append)
    before = path.read_text().splitlines()
    assert before[0] == "iteration,loss"
    assert [row.split(",")[0] for row in before[1:]] == ["1", "2", "3", "4"]
    run(agent, max_reports=1, on_progress=CurveFile(path, COLUMNS, after=2).append)
    assert [row.split(",")[0] for row in path.read_text().splitlines()[1:]] == ["1", "2", "5"]
    with pytest.raises(InputError, match="line 1: not a training curve"):
        CurveFile(path, ("iteration", "reward"), after=2)
    path.write_text("iteration,loss\n1,2,3\n")
    with pytest.raises(InputError, match="line 2: not a row"):
        CurveFile(path, COLUMNS, after=1)


def test_an_interrupt_ends_the_run_within_an_iteration_and_keeps_those_before(tmp_path: Path) -> None:
    class Interrupted(ToyAgent):
        def step(self) -> None:
            super().step()
            if self.steps == 6:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    agent = Interrupted([ToyProblem()], ToyConfig())
    with event_on_interrupt() as event:
        assert run(agent, should_stop=event.is_set, save=lambda: agent.save(tmp_path / "x")) == "stopped"
        assert event.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert (agent.steps, agent.is_whole) == (6, False)
    assert resumed(tmp_path / "x").steps == 4


def test_its_files_have_its_format_version_configuration_and_origin(tmp_path: Path) -> None:
    path, agent = tmp_path / "x", toy(ToyConfig(rate=0.5), seed=9)
    digest = agent.save(path)
    found = content(path)
    assert (found.config, found.digest, found.provenance.seed) == (ToyConfig(rate=0.5), digest, 9)
    assert {"stowplan", "torch"} <= found.provenance.versions.keys()
    with pytest.raises(InputError, match=r"found format 'stowplan.toy.checkpoint', expected 'stowplan.other'"):
        checkpoint.load(path, FileFormat("stowplan.other", ToyConfig))
    with pytest.raises(InputError, match="made with other problems"):
        resumed(path, "another")


def test_a_checkout_that_is_not_installed_can_keep_what_it_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = metadata.version

    def version(name: str) -> str:
        if name == "stowplan":
            raise metadata.PackageNotFoundError(name)
        return asked(name)

    monkeypatch.setattr(metadata, "version", version)
    toy(ToyConfig(), seed=1).save(tmp_path / "x")
    assert content(tmp_path / "x").provenance.versions["stowplan"] == stowplan.__version__


def changed(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    torch.save(change(torch.load(path, weights_only=True)), path)


def test_files_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    toy(ToyConfig()).save(path)
    changed(path, lambda values: values | {"version": 2})
    with pytest.raises(InputError, match=rf"found version 2, expected {checkpoint.FILE_VERSION} \(train it anew\)"):
        content(path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", 3, "3", '{"rate": ' + "7" * 5000 + "}"])
def test_a_configuration_that_is_none_is_bad_input(tmp_path: Path, text: object) -> None:
    path = tmp_path / "x"
    toy(ToyConfig()).save(path)
    changed(path, lambda values: values | {"config": text})
    with pytest.raises(InputError, match="config: "):
        content(path)


@pytest.mark.parametrize("name", ["weights", "optimizer", "rng", "steps", "seconds"])
def test_a_state_that_lacks_a_part_is_damaged(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x"
    toy(ToyConfig()).save(path)
    changed(path, lambda values: values | {"values": {key: each for key, each in values["values"].items() if key != name}})
    with pytest.raises(InputError, match="damaged checkpoint"):
        resumed(path)


def test_nothing_is_left_of_a_write_that_failed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        toy(ToyConfig()).save(tmp_path / "no folder" / "x.pt")
    assert not [*tmp_path.iterdir()]


def test_generators_and_arrays_survive_being_packed() -> None:
    generator = np.random.default_rng(7)
    generator.random(5)
    again = checkpoint.unpack_generator(checkpoint.pack_generator(generator))
    assert again.random(4).tolist() == generator.random(4).tolist()
    arrays = [np.arange(3, dtype=np.float32), np.empty(0, np.float32), np.ones(2, np.float32)]
    assert [each.tolist() for each in checkpoint.unpack_arrays(checkpoint.pack_arrays(arrays))] == [[0, 1, 2], [], [1, 1]]
    assert checkpoint.unpack_arrays(checkpoint.pack_arrays([])) == []
