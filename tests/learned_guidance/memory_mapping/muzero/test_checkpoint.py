"""Files that are damaged, foreign, of another version or of other programs are refused in one line, and run no code."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

import torch

from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.muzero import checkpoint
from stowplan.learned_guidance.memory_mapping.muzero.checkpoint import CHECKPOINT, POLICY
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
from stowplan.learned_guidance.training.checkpoint import FILE_VERSION, load, load_policy, save
from stowplan.learned_guidance.training.run import run
from tests.learned_guidance.memory_mapping.muzero.programs import SMALL_NETWORK, other_program, small_config, small_program

PROGRAMS = [small_program()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint and a policy of two training steps."""
    folder = tmp_path_factory.mktemp("trained")
    trainer = Trainer(PROGRAMS, small_config(training_steps=2), seed=0)
    run(trainer, save=lambda: trainer.save(folder / "checkpoint.pt"))
    trainer.save_policy(folder / "policy.pt")
    return folder


class Trap:
    """Code that unpickling would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch trapped",)


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def trap(_: bytes) -> bytes:
    stream = io.BytesIO()
    torch.save({"format": POLICY.name, "version": FILE_VERSION, "config": Trap()}, stream)
    return stream.getvalue()


def repacked(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        values = torch.load(io.BytesIO(data), weights_only=True)
        stream = io.BytesIO()
        torch.save(change(values), stream)
        return stream.getvalue()

    return apply


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": truncated,
    "text": lambda _: b"{}",
    "pickle": lambda _: pickle.dumps({"format": CHECKPOINT.name}),
    "code": trap,
    "list": repacked(lambda values: list(values)),
    "format": repacked(lambda values: values | {"format": "another"}),
    "version": repacked(lambda values: values | {"version": 99}),
    "config": repacked(lambda values: values | {"config": '{"batch_size": 0}'}),
    "config type": repacked(lambda values: values | {"config": 3}),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", [*DAMAGE])
@pytest.mark.parametrize("kind", ["checkpoint", "policy"])
def test_bad_files_are_refused_in_one_line(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.pt"
    path.write_bytes(DAMAGE[name]((trained / f"{kind}.pt").read_bytes()))
    with pytest.raises(InputError) as caught:
        Policy.load(path) if kind == "policy" else Trainer.resume(path, PROGRAMS)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "trapped").exists()


def test_one_kind_of_file_is_not_taken_for_the_other(trained: Path) -> None:
    with pytest.raises(InputError, match=f"expected '{POLICY.name}'"):
        Policy.load(trained / "checkpoint.pt")
    with pytest.raises(InputError, match=f"expected '{CHECKPOINT.name}'"):
        Trainer.resume(trained / "policy.pt", PROGRAMS)
    with pytest.raises(InputError, match="cannot read"):
        Policy.load(trained / "missing.pt")


@pytest.mark.parametrize(
    "name", ["network", "optimizer", "generators", "recent", "priorities", "elite", "episodes", "best", "counters"]
)
@pytest.mark.parametrize("how", ["missing", "wrong"])
def test_a_checkpoint_that_lacks_a_part_is_damaged(trained: Path, tmp_path: Path, name: str, how: str) -> None:
    def change(values: dict[str, Any]) -> dict[str, Any]:
        if how == "missing":
            del values["values"][name]
        else:
            values["values"][name] = {"a": [1]}
        return values

    path = tmp_path / "bad.pt"
    path.write_bytes(repacked(change)((trained / "checkpoint.pt").read_bytes()))
    with pytest.raises(InputError, match="damaged checkpoint"):
        Trainer.resume(path, PROGRAMS)


def test_a_checkpoint_belongs_to_its_programs(trained: Path) -> None:
    with pytest.raises(InputError, match="other problems"):
        Trainer.resume(trained / "checkpoint.pt", [other_program()])
    with pytest.raises(InputError, match="other problems"):
        Trainer.resume(trained / "checkpoint.pt", [*PROGRAMS, *PROGRAMS])


def test_a_resumed_run_may_train_longer(trained: Path) -> None:
    trainer = Trainer.resume(trained / "checkpoint.pt", PROGRAMS, changes={"training_steps": 4})
    assert trainer.learner.steps == 2
    assert run(trainer) == "steps_done"
    assert trainer.learner.steps == 4


def test_a_policy_knows_where_it_is_from(trained: Path) -> None:
    policy = load(trained / "policy.pt", POLICY)
    assert policy.config.network == SMALL_NETWORK
    found = policy.provenance
    assert (found.programs, found.digests) == (("test",), (PROGRAMS[0].digest,))
    assert (found.seed, found.training_steps) == (0, 2)
    assert found.games > 0
    assert {"stowplan", "torch"} <= found.versions.keys()
    assert len(policy.digest) == 64


def test_equal_policies_are_equal_files(trained: Path, tmp_path: Path) -> None:
    policy = load(trained / "policy.pt", POLICY)
    digest = save(tmp_path / "again.pt", POLICY, policy.config, policy.provenance, policy.values)
    assert (tmp_path / "again.pt").read_bytes() == (trained / "policy.pt").read_bytes()
    assert digest == policy.digest


def test_weights_of_another_network_are_refused(trained: Path, tmp_path: Path) -> None:
    policy = load(trained / "policy.pt", POLICY)
    for name, weights in (
        ("fewer", dict([*policy.values["weights"].items()][:-1])),
        ("other shape", policy.values["weights"] | {"action.weight": torch.zeros(2, 2)}),
    ):
        save(tmp_path / name, POLICY, policy.config, policy.provenance, {"weights": weights})
        with pytest.raises(InputError, match="do not fit"):
            Policy.load(tmp_path / name)


def test_no_memory_is_taken_for_sizes_that_the_weights_do_not_have(trained: Path, tmp_path: Path) -> None:
    policy = load(trained / "policy.pt", POLICY)
    network = msgspec.structs.replace(policy.config.network, id_embedding=10**7)
    config = msgspec.structs.replace(policy.config, network=network)
    save(tmp_path / "large.pt", POLICY, config, policy.provenance, policy.values)
    devices = []

    def made(content: Any) -> Any:
        devices.append(torch.get_default_device().type)
        return POLICY.network(content)

    with pytest.raises(InputError, match="do not fit"):
        load_policy(tmp_path / "large.pt", replace(POLICY, network=made))
    assert devices == ["meta"]


def test_games_survive_being_packed() -> None:
    trainer = Trainer(PROGRAMS, small_config(training_steps=4), seed=0)
    run(trainer)
    games = trainer.replay.recent
    again = checkpoint.unpack_games(checkpoint.pack_games(games), small_config().discount)
    assert [game.actions.tolist() for game in again] == [game.actions.tolist() for game in games]
    assert [game.return_ps for game in again] == [game.return_ps for game in games]
    assert checkpoint.unpack_games(checkpoint.pack_games([]), 1.0) == []


@pytest.mark.parametrize("version", [1, 4])
def test_a_file_of_an_earlier_version_is_refused_in_one_line(trained: Path, tmp_path: Path, version: int) -> None:
    said = rf"old\.pt: version: found version {version}, expected {FILE_VERSION} \(train it anew\)$"
    earlier = repacked(lambda values: values | {"version": version})
    path = tmp_path / "old.pt"
    path.write_bytes(earlier((trained / "policy.pt").read_bytes()))
    with pytest.raises(InputError, match=said):
        Policy.load(path)
    path.write_bytes(earlier((trained / "checkpoint.pt").read_bytes()))
    with pytest.raises(InputError, match=said):
        Trainer.resume(path, PROGRAMS)


def test_a_field_that_is_no_longer_there_is_refused(trained: Path, tmp_path: Path) -> None:
    """What it asked for is not done, so that the file is not what it says."""

    def earlier(values: dict[str, Any]) -> dict[str, Any]:
        return values | {"config": json.dumps(json.loads(values["config"]) | {"use_search": False})}

    path = tmp_path / "x.pt"
    path.write_bytes(repacked(earlier)((trained / "policy.pt").read_bytes()))
    with pytest.raises(InputError, match=r"x\.pt: config: .*use_search"):
        Policy.load(path)
