"""Fitted speeds: those that measurements were made with are found again, with few measurements."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.llama.architectures import SHAPES
from stowplan.backends.llama import calibration
from stowplan.backends.llama.calibration import Measurement
from stowplan.backends.llama.machine import Machine
from stowplan.backends.llama.model import LanguageModel, read_model
from stowplan.errors import InputError, UsageError
from tests.backends.llama.cases import DENSE, EXPERTS, device, machine, write

HOP = 5e-5
SPEEDS = {"CPU": (4e9, 0.5e9, 1e11, 2e-5), "CUDA0": (800e9, 400e9, 6e13, 1e-5), "CUDA1": (100e9, 90e9, 1e13, 1e-5)}


def _machine() -> tuple[Machine, Machine]:
    """A machine without speeds; the same as it is."""
    rows = [device("CUDA0", 6000, 1.0), device("CUDA1", 2000, 1.0)]
    blank = [{key: value for key, value in row.items() if key not in ("weight_gbs", "tflops")} for row in rows]
    return machine(*blank, error=None), machine(*rows)


def _timed(model: LanguageModel, there: Machine, wanted: Measurement, noise: float, chance: random.Random) -> Measurement:
    placed = calibration._placed(model, there, wanted)
    amounts = calibration.terms_of(model, placed, wanted)
    seconds = 0.0
    for (name, term), amount in amounts.items():
        weight, cache, flops, layer = SPEEDS[name]
        seconds += amount * {"weight": 1 / weight, "cache": 1 / cache, "prompt": 1 / flops, "layer": layer, "hop": HOP}[term]
    return replace(wanted, rate=1.0 / (seconds * (1 + chance.uniform(-noise, noise))))


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_speeds_are_found_again(tmp_path: Path, noise: float) -> None:
    model, (blank, _), chance = read_model(write(SHAPES["llama-3-8b"], tmp_path)), _machine(), random.Random(1)
    told: list[str] = []
    found, done = calibration.calibrate(
        model, blank, lambda wanted: _timed(model, blank, wanted, noise, chance), context=4096, most=20, on_progress=told.append
    )
    assert 5 <= len(done) <= 20
    assert len(told) == len(done)
    assert found.error is not None
    assert calibration.LEAST_ERROR <= found.error <= (calibration.LEAST_ERROR if noise == 0 else 0.2)
    assert found.unmeasured == []
    if noise == 0:
        assert found.host.weight_rate == pytest.approx(4e9, rel=0.02)
        assert found.devices[0].weight_rate == pytest.approx(800e9, rel=0.1)
        assert found.devices[1].cache_rate == pytest.approx(90e9, rel=0.1)
    # What is not measured is predicted as well.
    for choice in calibration.choices_of(model, blank, 4096):
        true = _timed(model, blank, choice, 0.0, chance)
        fitted = calibration.fit(model, blank, done)
        amounts = calibration.terms_of(model, calibration._placed(model, blank, choice), choice)
        predicted = sum(amount * fitted.seconds.get(key, 0.0) for key, amount in amounts.items())
        assert abs(predicted * true.rate - 1) <= 2 * found.error, choice


def test_a_token_reads_a_share_of_chunked_experts(tmp_path: Path) -> None:
    # Two of sixteen experts compute each token. Files name the matrices of experts ``exps``, or ``chexps`` if they are chunked.
    model, (blank, _) = read_model(write(EXPERTS, tmp_path)), _machine()
    chunked = replace(
        model,
        layers=tuple(
            replace(layer, tensors=tuple(each._replace(name=each.name.replace("_exps", "_chexps")) for each in layer.tensors))
            for layer in model.layers
        ),
    )
    assert chunked != model
    for wanted in (Measurement(("-ngl", "0"), 0, 32, 0, 0.0), Measurement(("-ngl", "0"), 512, 0, 0, 0.0)):
        found, expected = (
            calibration.terms_of(each, calibration._placed(each, blank, wanted), wanted) for each in (chunked, model)
        )
        assert found == expected


def test_rows_of_llama_bench(tmp_path: Path) -> None:
    row = {"n_gpu_layers": 99, "n_prompt": 0, "n_gen": 32, "n_depth": 512, "avg_ts": 12.5, "devices": "CUDA0/CUDA1"}
    row |= {"tensor_split": "3.00/1.00", "tensor_buft_overrides": "blk=CPU"}
    (found,) = calibration.read_bench(json.dumps([row, row | {"avg_ts": 0.0}]), "bench.json")
    assert found.words == ("-ngl", "99", "-dev", "CUDA0,CUDA1", "-ts", "3.00,1.00", "-ot", "blk=CPU")
    assert (found.depth, found.rate) == (512, 12.5)
    for text in ("", "{}", '[{"n_gen": 1}]', "[3]"):
        with pytest.raises(InputError, match="expected what llama-bench -o json prints"):
            calibration.read_bench(text, "bench.json")


def test_no_measurement_is_no_fit(tmp_path: Path) -> None:
    model, (blank, _) = read_model(write(DENSE, tmp_path)), _machine()
    with pytest.raises(UsageError, match="found no measurement"):
        calibration.fit(model, blank, [])


def test_a_benchmark_that_fails_is_named(tmp_path: Path) -> None:
    from stowplan.errors import StowplanError

    model, (blank, _) = read_model(write(DENSE, tmp_path)), _machine()
    wanted = calibration.choices_of(model, blank, 4096)[0]
    with pytest.raises(StowplanError, match="no-such-bench: cannot be run"):
        calibration.measure("no-such-bench", model, wanted)
    script = tmp_path / "bench"
    row = {"n_gpu_layers": 0, "n_prompt": 0, "n_gen": 32, "n_depth": 0, "avg_ts": 3.5}
    script.write_text(f"#!/bin/sh\necho '{json.dumps([row])}'\n")
    script.chmod(0o755)
    assert calibration.measure(script, model, wanted).rate == 3.5
