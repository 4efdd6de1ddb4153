"""Speeds of a machine from runs of ``llama-bench``: few parameters, fitted to measured rates, with their error.

Each measurement is one placement with its rate of generation at a depth (tokens before) or of a prompt. By the model, a
placement takes a sum of terms, each a known number of bytes, operations or layers over an unknown rate; the inverse rates are
fitted by non-negative least squares of relative errors (Lawson and Hanson 1974). The next measurement is the one whose
predicted time varies most over the fits that leave one measurement out (a query by committee, Seung et al. 1992).
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stowplan.backends.llama.flags import CPU, Placement, placement_of
from stowplan.backends.llama.machine import MIB, Machine, MachineDevice
from stowplan.backends.llama.model import LanguageModel, read_bytes, spilled_parts
from stowplan.errors import InputError, StowplanError, UsageError

#: Parameters of each device, the most important first: inverse rates of weights, of the cache, and of prompts; the time of one
#: transfer between it and the host; a fixed time of each layer. Those that the measurements cannot tell from others before them
#: are not fitted.
TERMS = ("weight", "cache", "prompt", "hop", "layer")

#: Smallest singular value, relative to the largest, of measurements that tell terms apart.
APART = 1e-3

#: Two depths at which generation is measured, as parts of the context.
DEPTHS = (0.0, 0.9)

#: Tokens that one measurement of generation generates, and that one of a prompt has.
GENERATED, PROMPT = 32, 512

#: Relative error below which more measurements are not worth their time.
ENOUGH = 0.05

#: Rate of what takes no time beside the rest.
UNSEEN = 10**17

#: Times that the largest error of a fit is multiplied by for predictions of other placements; the least error that is stated;
#: that of a fit without a measurement to spare, which has no error of its own.
CAUTION, LEAST_ERROR, UNCHECKED_ERROR = 1.5, 0.05, 0.15


@dataclass(frozen=True)
class Measurement:
    """One rate of ``llama-bench``."""

    words: tuple[str, ...]
    """Options that place the model: ``-ngl``, ``-ts``, ``-ot``, ``-dev``."""
    prompt: int
    """Tokens of the prompt; 0 where generation is measured."""
    generated: int
    depth: int
    """Tokens before."""
    rate: float
    """Tokens in a second."""


@dataclass(frozen=True)
class Fit:
    """Fitted speeds."""

    seconds: dict[tuple[str, str], float]
    """By device and term: seconds for a byte, an operation, or a layer."""
    error: float
    """The largest relative error of a measurement."""
    has_spare: bool
    """Whether there are more measurements than fitted terms, so that the error says something."""


def terms_of(model: LanguageModel, placed: Placement, measurement: Measurement) -> dict[tuple[str, str], float]:
    """Amounts for one token of generation, or of the prompt, by device and term."""
    amounts: dict[tuple[str, str], float] = {}

    def add(device: str, term: str, amount: float) -> None:
        amounts[device, term] = amounts.get((device, term), 0.0) + amount

    share = model.experts_used / model.experts if model.experts else 1.0
    for layer, device in zip(model.layers, placed.layers, strict=True):
        add(device, "layer", 1.0 / max(1, measurement.prompt))
        if not measurement.prompt:
            add(device, "cache", read_bytes(layer, placed.context, measurement.depth + measurement.generated // 2))
            # A recurrent state is read and written like weights.
            add(device, "weight", 2 * layer.cache.state_bytes)
            if device != CPU and any(placed.tensors[tensor.name] == CPU for tensor in layer.tensors):
                add(device, "hop", 2)
        for tensor in layer.tensors:
            used = share if "_exps" in tensor.name else 1.0
            where = placed.tensors[tensor.name]
            if measurement.prompt:
                add(where, "prompt", 2.0 * tensor.values * used)
            else:
                add(where, "weight", tensor.bytes * used)
    if not measurement.prompt:
        used_devices = [device for device in dict.fromkeys(placed.layers) if device != CPU]
        for number, device in enumerate(used_devices):
            # Activations come to each device, and go on from all but the last.
            add(device, "hop", 1 if number == len(used_devices) - 1 else 2)
    return amounts


def fit(model: LanguageModel, machine: Machine, measurements: Sequence[Measurement]) -> Fit:
    """Fit the speeds of the devices that the measurements use.

    Raises
    ------
    UsageError
        There is no measurement.
    """
    if not measurements:
        raise UsageError("found no measurement, expected at least one of generation")
    rows = [_amounts(model, machine, one) for one in measurements]
    return _fit_rows(rows, np.array([1.0 / one.rate for one in measurements]))


def _fit_rows(rows: Sequence[Mapping[tuple[str, str], float]], measured: Any) -> Fit:
    """Fit the speeds to measurements with these amounts and seconds for a token."""
    names, matrix = _told_apart(rows, measured)
    scale = np.maximum(matrix.max(axis=0), 1e-30)
    # Not at the top: it takes long to import.
    from scipy.optimize import nnls

    solution, _ = nnls(matrix / measured[:, None] / scale, np.ones(len(rows)))
    seconds = dict(zip(names, (solution / scale).tolist(), strict=True))
    errors = matrix @ (solution / scale) / measured - 1.0
    return Fit(seconds, float(np.abs(errors).max()), len(rows) > len(names))


def _told_apart(rows: Sequence[Mapping[tuple[str, str], float]], measured: Any) -> tuple[list[tuple[str, str]], Any]:
    """Terms that the measurements tell apart, the most important first, and their amounts, ``[measurements, terms]``."""
    names: list[tuple[str, str]] = []
    matrix = np.zeros((len(rows), 0))
    for name in sorted({key for row in rows for key in row}, key=lambda key: (TERMS.index(key[1]), key)):
        column = np.array([[row.get(name, 0.0)] for row in rows])
        wider = np.hstack([matrix, column])
        relative = wider / measured[:, None]
        relative /= np.maximum(np.linalg.norm(relative, axis=0), 1e-30)
        values = np.linalg.svd(relative, compute_uv=False)
        if wider.shape[1] <= len(rows) and values[-1] > APART * values[0]:
            names.append(name)
            matrix = wider
    return names, matrix


def calibrated(machine: Machine, found: Fit) -> Machine:
    """The machine with fitted speeds; what was not measured stays as it is."""

    def device(one: MachineDevice) -> MachineDevice:
        def rate(term: str, known: int | None) -> int | None:
            seconds = found.seconds.get((one.name, term))
            if seconds is None:
                return known
            # What is fitted as nothing is too fast to be seen beside the rest.
            return UNSEEN if seconds * UNSEEN < 1.0 else max(1, round(1.0 / seconds))

        weights = rate("weight", one.weight_rate)
        layer = found.seconds.get((one.name, "layer"), one.layer_ps / 1e12)
        hop = found.seconds.get((one.name, "hop"), one.link_ps / 1e12)
        return replace(
            one,
            weight_rate=weights,
            cache_rate=rate("cache", one.cache_rate) or weights,
            compute_rate=rate("prompt", one.compute_rate),
            link_ps=round(hop * 1e12),
            layer_ps=round(layer * 1e12),
        )

    error = max(CAUTION * found.error, LEAST_ERROR if found.has_spare else UNCHECKED_ERROR)
    return replace(machine, host=device(machine.host), devices=tuple(map(device, machine.devices)), error=round(error, 4))


def machine_text(machine: Machine) -> str:
    """A machine as its TOML file."""

    def table(head: str, one: MachineDevice) -> list[str]:
        lines = [head, f'name = "{one.name}"'] if head == "[[device]]" else [head]
        lines.append(f"free_mib = {one.free / MIB:.10g}")
        lines.append(f"margin_mib = {one.margin / MIB:.10g}")
        if one.compute is not None:
            lines.append(f"compute_mib = {one.compute / MIB:.10g}")
        for key, value, unit in (
            ("weight_gbs", one.weight_rate, 1e9),
            ("cache_gbs", one.cache_rate, 1e9),
            ("tflops", one.compute_rate, 1e12),
            ("link_gbs", one.link_rate, 1e9),
        ):
            if value is not None:
                lines.append(f"{key} = {value / unit:.6g}")
        lines.append(f"link_us = {one.link_ps / 1e6:.6g}")
        lines.append(f"layer_us = {one.layer_ps / 1e6:.6g}")
        lines.append(f"copies_weights = {str(one.copies_weights).lower()}")
        return [*lines, ""]

    lines = [f'name = "{machine.name}"', "", *table("[host]", machine.host)]
    for device in machine.devices:
        lines += table("[[device]]", device)
    if machine.error is not None:
        lines += ["[calibration]", f"error = {machine.error:.4g}", ""]
    return "\n".join(lines)


def placements(model: LanguageModel, machine: Machine) -> list[tuple[str, ...]]:
    """Placements that tell speeds apart: all on the host; on each device alone as many layers as it holds, half of them, and as
    many with their feed-forward parts on the host.
    """
    count = len(model.layers)
    found: list[tuple[str, ...]] = [("-ngl", "0", "-dev", "none")]
    spilled = r"\.ffn_(down|gate|up|gate_up)" + ("_(ch)?exps" if model.experts else "") + r"\.weight=CPU"
    for device in machine.devices:
        room = device.free - device.margin - (512 << 20)
        layers, size = 0, 0
        for layer in reversed(model.layers):
            size += layer.bytes
            if size > room:
                break
            layers += 1
        parts = sorted({layers, layers // 2} - {0}, reverse=True)
        found += [("-ngl", str(min(part, count)), "-dev", device.name) for part in parts]
        if parts and any(spilled_parts(layer, model.experts) for layer in model.layers):
            found.append(("-ngl", str(min(parts[0], count)), "-dev", device.name, "-ot", spilled))
    return found


def next_measurement(
    model: LanguageModel, machine: Machine, done: Sequence[Measurement], choices: Sequence[Measurement]
) -> Measurement | None:
    """The measurement, of those that could be made, on which fits that leave out one of those done agree least.

    None where they agree within :data:`ENOUGH`, or nothing is left to measure.
    """
    left = [choice for choice in choices if not any(_is_same(choice, one) for one in done)]
    if not left:
        return None
    rows = [_amounts(model, machine, one) for one in done]
    seconds = [1.0 / one.rate for one in done]
    apart = len(_told_apart(rows, np.array(seconds))[0]) if rows else 0
    typical = float(np.median(seconds)) if seconds else 1.0
    others = [_amounts(model, machine, choice) for choice in left]
    for choice, more in zip(left, others, strict=True):
        # A speed that no measurement tells from the others comes first.
        if len(_told_apart([*rows, more], np.array([*seconds, typical]))[0]) > apart:
            return choice
    fits = []
    if len(done) > 1:
        fits = [_fit_rows([*rows[:at], *rows[at + 1 :]], np.delete(seconds, at)) for at in range(len(done))]
    spread = [_spread(amounts, fits) for amounts in others]
    best = max(range(len(left)), key=lambda at: spread[at])
    return left[best] if spread[best] > ENOUGH else None


def _spread(amounts: Mapping[tuple[str, str], float], fits: Iterable[Fit]) -> float:
    """Relative standard deviation of what fits predict."""
    times = [sum(amount * found.seconds.get(key, 0.0) for key, amount in amounts.items()) for found in fits]
    mean = sum(times) / len(times) if times else 0.0
    if not mean:
        return math.inf
    return math.sqrt(sum((time - mean) ** 2 for time in times) / len(times)) / mean


def _is_same(one: Measurement, other: Measurement) -> bool:
    return (one.words, one.prompt, one.depth) == (other.words, other.prompt, other.depth)


def choices_of(model: LanguageModel, machine: Machine, context: int) -> list[Measurement]:
    """All measurements that a calibration may make: each placement at two depths, and a prompt."""
    found = []
    for words in placements(model, machine):
        for part in DEPTHS:
            depth = int(part * max(0, context - GENERATED - 1))
            found.append(Measurement(words, 0, GENERATED, depth, 0.0))
        found.append(Measurement(words, min(PROMPT, context), 0, 0, 0.0))
    return found


def measure(program: str | Path, model: LanguageModel, wanted: Measurement, patience: float = 1800.0) -> Measurement:
    """Run ``llama-bench`` for one measurement; raises StowplanError where it fails."""
    value = dict(zip(wanted.words, [*wanted.words[1:], ""], strict=True))
    words = [str(program), "-m", str(model.path), "-o", "json", "-fa", "1", "-r", "3", "-ngl", value.get("-ngl", "99")]
    words += ["-p", str(wanted.prompt), "-n", str(wanted.generated), "-d", str(wanted.depth)]
    for flag, separator in (("-dev", "/"), ("-ts", "/"), ("-ot", ";")):
        if flag in value:
            words += [flag, value[flag].replace(",", separator)]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=patience, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StowplanError(f"{program}: cannot be run: {error}") from None
    rows = read_bench(answer.stdout, str(program))
    if not rows:
        raise StowplanError(f"{program}: measured nothing: {answer.stderr.strip()[-200:]}")
    return replace(rows[-1], words=wanted.words)


def read_bench(data: str | bytes, source: str) -> list[Measurement]:
    """What ``llama-bench -o json`` printed; raises InputError where it is something else."""
    expected = "expected what llama-bench -o json prints"
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"found no JSON, {expected}", source=source) from None
    found = []
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        try:
            found.append(_row(row))
        except KeyError as error:
            raise InputError(f"found a row without {error}, {expected}", source=source, place=f"row {number}") from None
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            reason = f"found a row that cannot be read ({error}), {expected}"
            raise InputError(reason, source=source, place=f"row {number}") from None
    return [one for one in found if one.rate > 0]


def _row(row: Mapping[str, Any]) -> Measurement:
    words = ["-ngl", str(int(row["n_gpu_layers"]))]
    devices, shares, overrides = row.get("devices", "auto"), row.get("tensor_split", ""), row.get("tensor_buft_overrides", "")
    if devices not in ("auto", "", None):
        words += ["-dev", str(devices).replace("/", ",")]
    if shares and any(float(share) for share in str(shares).split("/")):
        words += ["-ts", str(shares).replace("/", ",")]
    if overrides not in ("", "none", None):
        words += ["-ot", str(overrides).replace(";", ",")]
    for flag, key in (("-ctk", "type_k"), ("-ctv", "type_v"), ("-sm", "split_mode")):
        if row.get(key, "f16") not in ("f16", "layer", "none"):
            words += [flag, str(row[key])]
    prompt, generated, depth, rate = int(row["n_prompt"]), int(row["n_gen"]), int(row.get("n_depth", 0)), float(row["avg_ts"])
    if not math.isfinite(rate) or not all(0 <= size < 1 << 31 for size in (prompt, generated, depth)):
        raise ValueError("n_prompt, n_gen, n_depth or avg_ts is negative or too large")
    return Measurement(tuple(words), prompt, generated, depth, rate)


def calibrate(
    model: LanguageModel,
    machine: Machine,
    run: Callable[[Measurement], Measurement],
    *,
    context: int,
    most: int = 16,
    known: Sequence[Measurement] = (),
    on_progress: Callable[[str], None] = lambda text: None,
) -> tuple[Machine, list[Measurement]]:
    """Measure until the fits agree, or ``most`` measurements are made; the machine with its speeds, and all measurements."""
    done, choices = [*known], choices_of(model, machine, context)
    while len(done) < most:
        wanted = next_measurement(model, machine, done, choices)
        if wanted is None:
            break
        what = f"prompt of {wanted.prompt}" if wanted.prompt else f"generation at depth {wanted.depth}"
        on_progress(f"measurement {len(done) + 1} of at most {most}: {' '.join(wanted.words)}, {what}")
        done.append(run(wanted))
    return calibrated(machine, fit(model, machine, done)), done


def _amounts(model: LanguageModel, machine: Machine, one: Measurement) -> dict[tuple[str, str], float]:
    return terms_of(model, _placed(model, machine, one), one)


def _placed(model: LanguageModel, machine: Machine, one: Measurement) -> Placement:
    names = [device.name for device in machine.devices]
    tokens = max(256, one.depth + one.prompt + one.generated)
    placed = placement_of(model, one.words, names, [device.free for device in machine.devices])
    placed.context = replace(placed.context, tokens=tokens)
    assert CPU not in names
    return placed
