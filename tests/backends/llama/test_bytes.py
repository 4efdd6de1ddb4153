"""Bytes of weights and caches against those that the runtime itself reported, recorded for random placements of 17 models.

``python -m benchmarks.llama.bytes BUILD ORACLE --placements 8 --seed 5 --record tests/data/llama_bytes.json`` recorded them,
with llama.cpp as of llama_cpp_python 0.3.36. If STOWPLAN_LLAMA_BUILD and STOWPLAN_LLAMA_ORACLE name a build of it, new
placements are drawn.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.llama.architectures import MAKERS, write_model
from stowplan.backends.llama.flags import placement_of
from stowplan.backends.llama.model import ARCHITECTURES, read_model
from tests.paths import DATA

RECORDED = json.loads((DATA / "llama_bytes.json").read_text())
NAMES = ["RPC0", "RPC1", "RPC2"]


@pytest.mark.parametrize("name", MAKERS)
def test_bytes_are_those_of_the_runtime(name: str, tmp_path: Path) -> None:
    model = read_model(write_model(name, tmp_path))
    assert len(RECORDED[name]) == 8
    for record in RECORDED[name]:
        meant = placement_of(model, record["options"], NAMES, [1, 1, 1])
        for device, (weights, caches) in record["bytes"].items():
            assert (meant.weights[device], meant.caches[device]) == (weights, caches), (device, record["options"])


def test_every_architecture_was_compared(tmp_path: Path) -> None:
    assert {read_model(write_model(name, tmp_path)).architecture for name in MAKERS} == {*ARCHITECTURES}


@pytest.mark.slow
def test_new_placements_with_the_runtime(tmp_path: Path) -> None:
    build, oracle = (os.environ.get(f"STOWPLAN_LLAMA_{name}") for name in ("BUILD", "ORACLE"))
    if not build or not oracle:
        pytest.skip("STOWPLAN_LLAMA_BUILD and STOWPLAN_LLAMA_ORACLE name no build of llama.cpp")
    from benchmarks.llama.bytes import compare
    from benchmarks.llama.rig import Rig
    from stowplan.backends.llama.oracle import Oracle

    with Rig(Path(build), [{}, {}, {}]) as rig:
        for name in MAKERS:
            path = write_model(name, tmp_path)
            row, _ = compare(read_model(path), Oracle(Path(oracle), path, rig.servers), rig, 10, 11)
            assert (row[3], row[5]) == ("0", "0"), row
