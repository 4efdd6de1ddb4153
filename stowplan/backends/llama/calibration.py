"""Speeds of a machine from runs of ``llama-bench``: a few parameters that are fitted to measured rates, and their error.

A *placement* says which layers of a language model are on which device, as options of llama.cpp. For each measurement,
``llama-bench`` either generates tokens with a placement after a number of earlier tokens, the *depth*, or computes a prompt.
The result is a rate in tokens per second. By the model, the time for a token is a sum of terms. Each term is an *amount*, a
known number of bytes, operations, transfers or layers, divided by an unknown rate. The inverse rates are fitted by non-negative
least squares of relative errors (Lawson and Hanson 1974). The next measurement is the one whose predicted time varies most over
the fits that leave one measurement out (a query by committee, Seung et al. 1992).
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
from stowplan.backends.llama.model import LanguageModel, is_of_experts, read_bytes, spilled_parts
from stowplan.errors import InputError, StowplanError, UsageError

#: Terms of each device, the most important first. A term that the measurements cannot distinguish from the terms before it is
#: not fitted. The parameter of a term is a number of seconds:
#:
#: - ``weight``, ``cache``: for reading a byte of the weights, or of the key-value cache, while tokens are generated
#: - ``prompt``: for a floating-point operation while a prompt is computed
#: - ``hop``: for a transfer between the device and the host
#: - ``layer``: for a layer
TERMS = ("weight", "cache", "prompt", "hop", "layer")

#: Measurements distinguish terms if the smallest singular value of the matrix of amounts, whose columns are normalized, is more
#: than this times the largest.
APART = 1e-3

#: The two depths at which generation is measured, as shares of the context.
DEPTHS = (0.0, 0.9)

#: Number of tokens that a measurement of generation generates, and of tokens in a measured prompt.
GENERATED, PROMPT = 32, 512

#: If the times that the fits predict for a measurement vary by no more than this share, it is not worth its time.
ENOUGH = 0.05

#: Rate, in bytes or operations per second, of a term whose fitted time is zero or too short to be measured.
UNSEEN = 10**17

#: The relative error that is stated for predictions of other placements is ``CAUTION`` times the largest error of the fit, and
#: at least ``LEAST_ERROR``. It is at least ``UNCHECKED_ERROR`` if there are only as many measurements as fitted terms, because
#: such a fit has hardly any error at the measurements.
CAUTION, LEAST_ERROR, UNCHECKED_ERROR = 1.5, 0.05, 0.15


@dataclass(frozen=True)
class Measurement:
    """One rate of ``llama-bench``."""

    words: tuple[str, ...]
    """Options that place the model: ``-ngl``, ``-ts``, ``-ot``, ``-dev``."""
    prompt: int
    """Number of tokens of the prompt; 0 if generation is measured."""
    generated: int
    """Number of tokens that are generated; 0 if a prompt is measured."""
    depth: int
    """Number of tokens that are in the cache when the measurement begins."""
    rate: float
    """Tokens in a second; 0 before the measurement."""


@dataclass(frozen=True)
class Fit:
    """Fitted speeds."""

    seconds: dict[tuple[str, str], float]
    """By the name of the device and the term (see :data:`TERMS`): seconds for a byte, an operation, a transfer, or a layer. A
    term that was not fitted is missing."""
    error: float
    """The largest relative error of a predicted time over all measurements."""
    has_spare: bool
    """Whether there are more measurements than fitted terms. Otherwise ``error`` says nothing about other placements."""


def terms_of(model: LanguageModel, placed: Placement, measurement: Measurement) -> dict[tuple[str, str], float]:
    """Returns the amounts for one token that is generated, or for one token of the prompt.

    Parameters
    ----------
    model
        The model that is measured.
    placed
        The placement that the options of the measurement have as a result.
    measurement
        The measurement; its rate is not used.

    Returns
    -------
    dict
        By the name of the device and the term (see :data:`TERMS`): bytes, operations, transfers or layers.
    """
    amounts: dict[tuple[str, str], float] = {}

    def add(device: str, term: str, amount: float) -> None:
        amounts[device, term] = amounts.get((device, term), 0.0) + amount

    share = model.experts_used / model.experts if model.experts else 1.0
    for layer, device in zip(model.layers, placed.layers, strict=True):
        add(device, "layer", 1.0 / max(1, measurement.prompt))
        if not measurement.prompt:
            add(device, "cache", read_bytes(layer, placed.context, measurement.depth + measurement.generated // 2))
            # A recurrent state is read and written at the rate of weights.
            add(device, "weight", 2 * layer.cache.state_bytes)
            if device != CPU and any(placed.tensors[tensor.name] == CPU for tensor in layer.tensors):
                add(device, "hop", 2)
        for tensor in layer.tensors:
            used = share if is_of_experts(tensor) else 1.0
            memory = placed.tensors[tensor.name]
            if measurement.prompt:
                add(memory, "prompt", 2.0 * tensor.values * used)
            else:
                add(memory, "weight", tensor.bytes * used)
    if not measurement.prompt:
        used_devices = [device for device in dict.fromkeys(placed.layers) if device != CPU]
        for number, device in enumerate(used_devices):
            # Activations are transferred to each device, and from each device but the last one.
            add(device, "hop", 1 if number == len(used_devices) - 1 else 2)
    return amounts


def fit(model: LanguageModel, machine: Machine, measurements: Sequence[Measurement]) -> Fit:
    """Fits the speeds of the devices that the measurements use; the rates of the measurements must not be 0.

    Raises
    ------
    UsageError
        There is no measurement, or :func:`~stowplan.backends.llama.flags.placement_of` does not accept its options.
    """
    if not measurements:
        raise UsageError("found no measurement, expected at least one of generation")
    rows = [_amounts(model, machine, measurement) for measurement in measurements]
    return _fit_rows(rows, np.array([1.0 / measurement.rate for measurement in measurements]))


def _fit_rows(rows: Sequence[Mapping[tuple[str, str], float]], measured: Any) -> Fit:
    """Fits the speeds to measurements; ``measured`` are their seconds for a token."""
    names, matrix = _distinguished(rows, measured)
    scale = np.maximum(matrix.max(axis=0), 1e-30)
    # SciPy takes long to import, so it is imported only here.
    from scipy.optimize import nnls

    solution, _ = nnls(matrix / measured[:, None] / scale, np.ones(len(rows)))
    seconds = dict(zip(names, (solution / scale).tolist(), strict=True))
    errors = matrix @ (solution / scale) / measured - 1.0
    return Fit(seconds, float(np.abs(errors).max()), len(rows) > len(names))


def _distinguished(rows: Sequence[Mapping[tuple[str, str], float]], measured: Any) -> tuple[list[tuple[str, str]], Any]:
    """Returns the terms that the measurements distinguish, the most important first, and their amounts.

    Each row has the amounts of one measurement, by device and term, and ``measured`` are its seconds for a token. The returned
    array of amounts has the shape [measurements, terms].
    """
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
    """Returns the machine with the fitted speeds and the error of predictions; a speed that was not fitted is not changed."""

    def device(old: MachineDevice) -> MachineDevice:
        def rate(term: str, old_rate: int | None) -> int | None:
            seconds = found.seconds.get((old.name, term))
            if seconds is None:
                return old_rate
            # The term takes so little time that measurements do not show it.
            return UNSEEN if seconds * UNSEEN < 1.0 else max(1, round(1.0 / seconds))

        weights = rate("weight", old.weight_rate)
        layer = found.seconds.get((old.name, "layer"), old.layer_ps / 1e12)
        hop = found.seconds.get((old.name, "hop"), old.link_ps / 1e12)
        return replace(
            old,
            weight_rate=weights,
            cache_rate=rate("cache", old.cache_rate) or weights,
            compute_rate=rate("prompt", old.compute_rate),
            link_ps=round(hop * 1e12),
            layer_ps=round(layer * 1e12),
        )

    error = max(CAUTION * found.error, LEAST_ERROR if found.has_spare else UNCHECKED_ERROR)
    return replace(machine, host=device(machine.host), devices=tuple(map(device, machine.devices)), error=round(error, 4))


def machine_text(machine: Machine) -> str:
    """Returns the text of a machine file, which :func:`~stowplan.backends.llama.machine.read_machine` reads."""

    def table(head: str, row: MachineDevice) -> list[str]:
        lines = [head, f'name = "{row.name}"'] if head == "[[device]]" else [head]
        lines.append(f"free_mib = {row.free / MIB:.10g}")
        lines.append(f"margin_mib = {row.margin / MIB:.10g}")
        if row.compute is not None:
            lines.append(f"compute_mib = {row.compute / MIB:.10g}")
        for key, value, unit in (
            ("weight_gbs", row.weight_rate, 1e9),
            ("cache_gbs", row.cache_rate, 1e9),
            ("tflops", row.compute_rate, 1e12),
            ("link_gbs", row.link_rate, 1e9),
        ):
            if value is not None:
                lines.append(f"{key} = {value / unit:.6g}")
        lines.append(f"link_us = {row.link_ps / 1e6:.6g}")
        lines.append(f"layer_us = {row.layer_ps / 1e6:.6g}")
        lines.append(f"copies_weights = {str(row.copies_weights).lower()}")
        return [*lines, ""]

    lines = [f'name = "{machine.name}"', "", *table("[host]", machine.host)]
    for device in machine.devices:
        lines += table("[[device]]", device)
    if machine.error is not None:
        lines += ["[calibration]", f"error = {machine.error:.4g}", ""]
    return "\n".join(lines)


def placements(model: LanguageModel, machine: Machine) -> list[tuple[str, ...]]:
    """Returns placements whose rates distinguish the speeds of devices, as options of llama.cpp.

    The first has the whole model on the host, the CPU with its RAM. Up to three more follow for each device:

    - as many layers on the device as it has memory for
    - half as many layers
    - as many layers as in the first of these, but with their feed-forward networks or experts on the host
    """
    count = len(model.layers)
    all_words: list[tuple[str, ...]] = [("-ngl", "0", "-dev", "none")]
    spilled = r"\.ffn_(down|gate|up|gate_up)" + ("_(ch)?exps" if model.experts else "") + r"\.weight=CPU"
    for device in machine.devices:
        # Half a GiB is left for buffers of intermediate results.
        capacity = device.free - device.margin - (512 << 20)
        layers, size = 0, 0
        for layer in reversed(model.layers):
            size += layer.bytes
            if size > capacity:
                break
            layers += 1
        parts = sorted({layers, layers // 2} - {0}, reverse=True)
        all_words += [("-ngl", str(min(part, count)), "-dev", device.name) for part in parts]
        if parts and any(spilled_parts(layer, model.experts) for layer in model.layers):
            all_words.append(("-ngl", str(min(parts[0], count)), "-dev", device.name, "-ot", spilled))
    return all_words


def next_measurement(
    model: LanguageModel, machine: Machine, done: Sequence[Measurement], choices: Sequence[Measurement]
) -> Measurement | None:
    """Returns the measurement that tells most about the speeds.

    If there are measurements that would distinguish one more term, the first of them is returned. Otherwise the speeds are
    fitted several times, each time without one of the measurements that were made. The measurement on whose time these fits
    agree least is returned; or None, if they agree on each time within :data:`ENOUGH`, or if no measurement is left.

    Parameters
    ----------
    model, machine
        The model that is measured, and the machine; only names and free memory of its devices are used.
    done
        The measurements that were made.
    choices
        The measurements that can be made; those that are in ``done`` are ignored.

    Raises
    ------
    UsageError
        :func:`~stowplan.backends.llama.flags.placement_of` does not accept the options of a measurement.
    """
    remaining = [choice for choice in choices if not any(_is_same(choice, measurement) for measurement in done)]
    if not remaining:
        return None
    rows = [_amounts(model, machine, measurement) for measurement in done]
    seconds = [1.0 / measurement.rate for measurement in done]
    term_count = len(_distinguished(rows, np.array(seconds))[0]) if rows else 0
    typical = float(np.median(seconds)) if seconds else 1.0
    others = [_amounts(model, machine, choice) for choice in remaining]
    for choice, more in zip(remaining, others, strict=True):
        if len(_distinguished([*rows, more], np.array([*seconds, typical]))[0]) > term_count:
            return choice
    fits = []
    if len(done) > 1:
        fits = [_fit_rows([*rows[:at], *rows[at + 1 :]], np.delete(seconds, at)) for at in range(len(done))]
    spread = [_spread(amounts, fits) for amounts in others]
    best = max(range(len(remaining)), key=lambda at: spread[at])
    return remaining[best] if spread[best] > ENOUGH else None


def _spread(amounts: Mapping[tuple[str, str], float], fits: Iterable[Fit]) -> float:
    """Relative standard deviation of the times that fits predict for these amounts; infinite if they predict no time."""
    times = [sum(amount * each.seconds.get(key, 0.0) for key, amount in amounts.items()) for each in fits]
    mean = sum(times) / len(times) if times else 0.0
    if not mean:
        return math.inf
    return math.sqrt(sum((time - mean) ** 2 for time in times) / len(times)) / mean


def _is_same(one: Measurement, other: Measurement) -> bool:
    """Whether two measurements are of the same placement, prompt and depth."""
    return (one.words, one.prompt, one.depth) == (other.words, other.prompt, other.depth)


def choices_of(model: LanguageModel, machine: Machine, context: int) -> list[Measurement]:
    """Returns all measurements that a calibration may make: for each placement, generation at two depths, and a prompt.

    ``context`` is the number of tokens of the largest context, which limits the depths and the prompt.
    """
    choices = []
    for words in placements(model, machine):
        for part in DEPTHS:
            depth = int(part * max(0, context - GENERATED - 1))
            choices.append(Measurement(words, 0, GENERATED, depth, 0.0))
        choices.append(Measurement(words, min(PROMPT, context), 0, 0, 0.0))
    return choices


def measure(program: str | Path, model: LanguageModel, wanted: Measurement, patience: float = 1800.0) -> Measurement:
    """Runs ``llama-bench`` for one measurement; returns the measurement with its rate.

    Parameters
    ----------
    program
        Path of ``llama-bench``.
    model
        The model; ``llama-bench`` reads its file.
    wanted
        The measurement to make; its rate is ignored.
    patience
        Time limit in seconds.

    Raises
    ------
    StowplanError
        The program cannot be run, takes too long, prints no output of ``llama-bench`` (InputError), or measures nothing.
    """
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
    """Reads the output of ``llama-bench -o json``; rows without a positive rate are left out.

    Parameters
    ----------
    data
        The text that the program has printed.
    source
        Name of the file or program that it comes from, for messages.

    Raises
    ------
    InputError
        The text is no output of ``llama-bench``.
    """
    expected = "expected what llama-bench -o json prints"
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"found no JSON, {expected}", source=source) from None
    measurements = []
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        try:
            measurements.append(_row(row))
        except KeyError as error:
            raise InputError(f"found a row without {error}, {expected}", source=source, place=f"row {number}") from None
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            reason = f"found a row that cannot be read ({error}), {expected}"
            raise InputError(reason, source=source, place=f"row {number}") from None
    return [measurement for measurement in measurements if measurement.rate > 0]


def _row(row: Mapping[str, Any]) -> Measurement:
    """Returns the measurement in one row of the output, with its options as llama.cpp's other programs take them.

    A row that is not valid raises KeyError, TypeError, ValueError, AttributeError or ArithmeticError.
    """
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
    """Measures until the fits agree or ``most`` measurements are made.

    Parameters
    ----------
    model
        The model that is measured.
    machine
        The machine, with the names and the free memory of its devices.
    run
        Makes a measurement and returns it with its rate, for example by :func:`measure`.
    context
        Number of tokens of the largest context, which limits the depths.
    most
        Maximum number of measurements, including those in ``known``.
    known
        Measurements that were made before. If there are ``most`` or more, nothing is measured.
    on_progress
        Is called with a line before each measurement.

    Returns
    -------
    (Machine, list of Measurement)
        The machine with fitted speeds and their error, and all measurements.

    Raises
    ------
    UsageError
        There is no measurement, or :func:`~stowplan.backends.llama.flags.placement_of` does not accept the options of a known
        one. Errors of ``run`` are raised as well.
    """
    done, choices = [*known], choices_of(model, machine, context)
    while len(done) < most:
        wanted = next_measurement(model, machine, done, choices)
        if wanted is None:
            break
        quantity = f"prompt of {wanted.prompt}" if wanted.prompt else f"generation at depth {wanted.depth}"
        on_progress(f"measurement {len(done) + 1} of at most {most}: {' '.join(wanted.words)}, {quantity}")
        done.append(run(wanted))
    return calibrated(machine, fit(model, machine, done)), done


def _amounts(model: LanguageModel, machine: Machine, one: Measurement) -> dict[tuple[str, str], float]:
    """Returns the amounts of a measurement, by device and term."""
    return terms_of(model, _placed(model, machine, one), one)


def _placed(model: LanguageModel, machine: Machine, one: Measurement) -> Placement:
    """Returns the placement of a measurement, with a context that is as long as the measurement needs."""
    names = [device.name for device in machine.devices]
    tokens = max(256, one.depth + one.prompt + one.generated)
    placed = placement_of(model, one.words, names, [device.free for device in machine.devices])
    placed.context = replace(placed.context, tokens=tokens)
    assert CPU not in names
    return placed
