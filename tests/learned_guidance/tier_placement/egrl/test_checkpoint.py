"""Files that are damaged, foreign or of other networks are refused in one line, and run no code."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from stowplan.errors import InputError
from stowplan.learned_guidance.tier_placement.egrl import checkpoint, workload
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import CHECKPOINT, POLICY
from stowplan.learned_guidance.tier_placement.egrl.network import Shape
from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer
from stowplan.learned_guidance.training.checkpoint import FILE_VERSION, load, load_policy, save
from stowplan.learned_guidance.training.run import run
from tests.learned_guidance.tier_placement.egrl.networks import other_digest, small_config, small_network

NETWORKS = [small_network(4), small_network(3, seed=1)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint and a policy."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "NODES_AT_ONCE", 4)
        return train(folder)


def train(folder: Path) -> Path:
    trainer = Trainer(NETWORKS, small_config(evaluations=27, noise=0.05), seed=0)
    trainer.demonstrate(0, np.zeros((4, 2), np.int64))
    run(trainer, should_stop=lambda: trainer.evaluations >= 12)
    trainer.save(folder / "checkpoint.pt")
    trainer.save_policy(folder / "policy.pt")
    return folder


class Trap:
    """Code that unpickling would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch trapped",)


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
    "truncated": lambda data: data[: len(data) // 2],
    "pickle": lambda _: pickle.dumps({"format": CHECKPOINT.name}),
    "code": trap,
    "format": repacked(lambda values: values | {"format": "another"}),
    "version": repacked(lambda values: values | {"version": 99}),
    "config": repacked(lambda values: values | {"config": '{"batch_size": 0}'}),
    "unknown field": repacked(lambda values: values | {"config": '{"batch": 3}'}),
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
        load_policy(path, POLICY) if kind == "policy" else Trainer.resume(path, NETWORKS)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "trapped").exists()


def test_one_kind_of_file_is_not_taken_for_the_other(trained: Path) -> None:
    with pytest.raises(InputError, match=f"expected '{POLICY.name}'"):
        load_policy(trained / "checkpoint.pt", POLICY)
    with pytest.raises(InputError, match=f"expected '{CHECKPOINT.name}'"):
        Trainer.resume(trained / "policy.pt", NETWORKS)
    with pytest.raises(InputError, match="cannot read"):
        load_policy(trained / "missing.pt", POLICY)


PARTS = (
    "counters", "due", "seconds", "members", "set_aside", "best_network", "replay",
    "learner", "generators", "networks",
)  # fmt: skip


def changed(trained: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    def apply(values: dict[str, Any]) -> dict[str, Any]:
        change(values["values"])
        return values

    path.write_bytes(repacked(apply)((trained / "checkpoint.pt").read_bytes()))
    return path


def test_the_parts_are_all_of_a_checkpoint(trained: Path) -> None:
    assert load(trained / "checkpoint.pt", CHECKPOINT).values.keys() == {*PARTS}
    Trainer.resume(changed(trained, trained / "same.pt", lambda values: None), NETWORKS)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("how", ["missing", "wrong"])
def test_a_checkpoint_that_lacks_a_part_is_damaged(trained: Path, tmp_path: Path, name: str, how: str) -> None:
    def change(values: dict[str, Any]) -> None:
        if how == "missing":
            del values[name]
        else:
            values[name] = {"a": [1]}

    with pytest.raises(InputError, match=r"bad\.pt: damaged checkpoint"):
        Trainer.resume(changed(trained, tmp_path / "bad.pt", change), NETWORKS)


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "weights": lambda values: values["members"][0].update(weights=torch.zeros(3)),
    "chromosome": lambda values: values["members"][-1].update(prior=torch.zeros(4, 2, 2)),
    "chromosome of another network": lambda values: values["set_aside"].reverse(),
    "replay": lambda values: values["replay"].update(added=[1, 1]),
    "shown": lambda values: values["networks"][0].update(shown=[torch.zeros(9, 2, dtype=torch.int8)]),
    "best": lambda values: values["networks"][0].update(best_tiers=[torch.zeros(4, 2)]),
    "counters": lambda values: values.update(counters=[-1, 0]),
}


@pytest.mark.parametrize("name", [*WRONG])
def test_a_checkpoint_whose_parts_do_not_fit_is_damaged(trained: Path, tmp_path: Path, name: str) -> None:
    def change(values: dict[str, Any]) -> None:
        WRONG[name](values)

    with pytest.raises(InputError, match=r"bad\.pt: damaged checkpoint"):
        Trainer.resume(changed(trained, tmp_path / "bad.pt", change), NETWORKS)


def test_a_checkpoint_belongs_to_its_networks(trained: Path) -> None:
    path = trained / "checkpoint.pt"
    for networks in (NETWORKS[:1], NETWORKS[::-1], [NETWORKS[0], other_digest(NETWORKS[1])]):
        with pytest.raises(InputError, match=r"made with other problems \(small4, small3\)"):
            Trainer.resume(path, networks)


def test_a_policy_knows_where_it_is_from(trained: Path) -> None:
    content, actor = load_policy(trained / "policy.pt", POLICY)
    found = content.provenance
    assert found.programs == ("small4", "small3")
    assert found.digests == tuple(problem.digest for problem in NETWORKS)
    assert found.games >= 12
    assert found.moves > found.games
    assert content.config == small_config(evaluations=27, noise=0.05)
    assert actor.shape.tiers == 3
    assert Shape(**content.values["shape"]).hidden == 8
    digest = save(trained / "again.pt", POLICY, content.config, found, content.values)
    assert digest == content.digest


def test_weights_of_another_network_are_refused(trained: Path, tmp_path: Path) -> None:
    content, _ = load_policy(trained / "policy.pt", POLICY)
    weights, shape = content.values["weights"], content.values["shape"]
    for name, values in (
        ("fewer", {"weights": dict([*weights.items()][:-1]), "shape": shape}),
        ("other sizes", {"weights": weights, "shape": shape | {"hidden": 4}}),
        ("no sizes", {"weights": weights}),
        ("no size", {"weights": weights, "shape": shape | {"hidden": "4"}}),
        ("no heads", {"weights": weights, "shape": shape | {"heads": 0}}),
    ):
        save(tmp_path / name, POLICY, content.config, content.provenance, values)
        with pytest.raises(InputError, match="weights do not fit"):
            load_policy(tmp_path / name, POLICY)


def test_members_and_maps_survive_being_packed() -> None:
    members = Trainer(NETWORKS, small_config(), seed=0).members
    weights = len(next(each.encoding for each in members if isinstance(each.encoding, np.ndarray)))
    again = checkpoint.unpack_members(checkpoint.pack_members(members), weights, (4, 2, 3))
    for one, other in zip(members, again, strict=True):
        assert (one.fitness, one.is_judged, one.is_chromosome) == (other.fitness, other.is_judged, other.is_chromosome)
    assert any(member.is_chromosome for member in again)
    maps = [np.array([[0, 1], [2, 0]])]
    assert [each.tolist() for each in checkpoint.unpack_maps(checkpoint.pack_maps(maps), 2)] == [maps[0].tolist()]
    with pytest.raises(ValueError, match="shape"):
        checkpoint.unpack_maps(checkpoint.pack_maps(maps), 3)
