"""Runs TensorFlow Lite Micro, if its Python package is installed, to measure memory and to compare outputs.

It measures scratch buffers (temporary memory of a *kernel*, the code of an operator) and the smallest arena with which a model
runs. The arena has two parts, which are measured as well: the *head* has activations and scratch buffers, and the *tail* has
persistent data. The *reference kernels* are the runtime's portable implementations of operators. An *inference* is one run of a
model. The runtime runs in a child process (:mod:`stowplan.backends.tflm.child`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.tflm.greedy import preserved_inputs
from stowplan.backends.tflm.inputs import draw_inputs
from stowplan.backends.tflm.scratch import Scratch, of_reference_kernels
from stowplan.backends.tflm.write import one_operator, with_offsets
from stowplan.errors import VerificationError
from stowplan.frontends.tflite.model import ALIGNMENT, AT_RUNTIME, TfliteModel

#: Name of the wheel, and of the Python package that it installs.
WHEEL, _PACKAGE = "tflite-micro", "tflite_micro"

#: Number of the type of resource handles in the TensorFlow Lite schema.
_RESOURCE_TYPE = 13

#: The runtime may end an inference early, and another one is then run instead. In all, at most this many inferences are run for
#: each one that should be completed.
_MAX_TURNS_FACTOR = 16

#: Signals that end a process because of a fault: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
_CRASH_SIGNALS = (4, 6, 7, 8, 11)

#: A message shows at most this many inputs.
_MAX_INPUTS_SHOWN = 6

#: The arena for a first run is this many bytes larger than the sizes of the model's tensors and of its file suggest.
_EXTRA_ARENA_BYTES = 4 << 20


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a model and its plan in the runtime; sizes are in bytes, on this machine."""

    version: str
    """Version of the runtime's wheel."""
    head: int
    """Size of the head with the plan."""
    tail: int
    """Size of the tail, which holds persistent data, with the plan. On 32-bit devices it is smaller, because pointers are
    smaller there."""
    arena: int
    """The smallest arena with which the planned model runs, a multiple of 16."""
    greedy_head: int
    """Size of the head without the plan."""
    greedy_tail: int
    """Size of the tail without the plan."""
    greedy_arena: int
    """The smallest arena with which the model runs without the plan, a multiple of 16."""
    seeds: int
    """How many runs there were, each with a new interpreter and its own inputs."""
    inferences: int
    """How many inferences each run should complete."""
    compared: int
    """How many inferences of all runs were completed, so that their outputs were compared."""
    ended_early: int
    """How many inferences of all runs the runtime ended early, with kTfLiteAbort or an error; these have no outputs."""
    message: str
    """The runtime's message about the last inference that ended with an error; empty if none did."""
    is_undefined: bool
    """Whether the outputs of the model without the plan change if no tensors share bytes, which shows that the model reads
    bytes that were never written. This is tested only if outputs with the plan differ."""
    differs: tuple[int, int] | None
    """The first seed and inference with other outputs or another status; None if all outputs are equal bit by bit, or if
    ``is_undefined``."""


def version() -> str | None:
    """Returns the version of the runtime's wheel; None if the wheel is not installed."""
    return importlib.metadata.version(WHEEL) if importlib.util.find_spec(_PACKAGE) is not None else None


def measured(model: TfliteModel, *, every: bool = False, timeout: float = 120.0) -> Scratch:
    """Measures scratch buffers: the bytes of the head beyond the largest tensor in a model that has only one operator.

    Parameters
    ----------
    every
        Whether all operators are measured. By default an operator is measured only if its reference kernel requests scratch
        memory, or if that is not known. Operators that cannot run alone are never measured: those that call subgraphs, use
        resources, or read a tensor whose shape a kernel computes.
    timeout
        Seconds after which the runtime's process is ended.

    Returns
    -------
    Scratch
        For each measured operator, one size in bytes, which is the sum of its scratch buffers, or no size if it has none.

    Raises
    ------
    UnsupportedError
        The runtime is not installed, does not support an operator, or takes longer than the timeout.
    """
    known, unknown = of_reference_kernels(model)
    places = [
        (graph, position)
        for graph, subgraph in enumerate(model.subgraphs)
        for position, operator in enumerate(subgraph.operators)
        # A resource handle would have to come from another operator; operators on handles need no scratch memory. An operator
        # on a tensor that is resized at run time would see the declared shape in a model of its own.
        if not operator.calls
        and not any(model.tensors[number].is_resized for number in operator.reads)
        and all(model.tensors[number].kind != _RESOURCE_TYPE for number in (*operator.reads, *operator.writes))
    ]
    if not every:
        places = [place for place in places if place in known or place in unknown]
    if not places:
        return {}
    models = {f"{graph}.{position}": one_operator(model, graph, position) for graph, position in places}
    heads = _run_child(model, models, timeout)
    sizes_of = {}
    for graph, position in places:
        operator = model.subgraphs[graph].operators[position]
        tensors = (model.tensors[number] for number in (*operator.reads, *operator.writes))
        largest = max((tensor.size for tensor in tensors if tensor.is_planned), default=0)
        size = heads[f"{graph}.{position}"] - largest
        sizes_of[graph, position] = (size,) if size > 0 else ()
    return sizes_of


def run(
    model: TfliteModel,
    planned: bytes,
    *,
    keep: Sequence[str] = (),
    seeds: int = 3,
    inferences: int = 5,
    given: tuple[Mapping[int, Any], int | None] = ({}, None),
    timeout: float = 600.0,
) -> Run:
    """Measures the smallest arena of a model and of its planned version, and compares their outputs.

    Inferences that the runtime ends early are not compared; up to a limit, further inferences are run instead.

    Parameters
    ----------
    model, planned
        The model, and the contents of its planned file.
    keep
        Names of inputs that the plan preserves: with the plan they are set only before the first inference.
    seeds
        How many sets of random inputs to run, each in a new interpreter. If the user gives all inputs, one is enough.
    inferences
        How many inferences to run in each interpreter. Models with a state need several.
    given
        Inputs of the user and their number of inferences, from :func:`~stowplan.backends.tflm.inputs.read_inputs`. Other inputs
        are drawn at random.
    timeout
        Seconds after which the runtime's process is ended.

    Raises
    ------
    UnsupportedError
        One of these:

        - the runtime is not installed
        - it does not support the model, fails on it, or takes longer than the timeout
        - a kernel computes the shape of an output and ignores the declared shape
    InputError
        A name of ``keep`` is the name of no input, of several inputs, or of an input whose offset in the file must stay.
    VerificationError
        The runtime's process crashes while it runs the planned model.
    """
    if any(model.tensors[number].is_resized for number in model.subgraphs[0].outputs):
        # The runtime's Python interface reads as many bytes as the declared shape has.
        raise UnsupportedError(
            "an output has another shape than the declared one, by which the runtime's Python package reads it"
        )
    numbers, (user_inputs, count) = model.subgraphs[0].inputs, given
    kept_numbers = preserved_inputs(model, keep)
    kept = [at for at, number in enumerate(numbers) if number in kept_numbers]
    seeds = 1 if len(user_inputs) == len(numbers) else seeds
    inputs = draw_inputs(model, seeds, count or inferences, kept, user_inputs)
    # A sequence of inferences that a user gives is not extended.
    turns = count or _MAX_TURNS_FACTOR * inferences
    job = {"runs": seeds, "inferences": count or inferences, "turns": turns, "kept": kept}
    models = {"source": model.data, "planned": planned, "apart": _without_sharing(model)}
    answer = _run_child(model, models, timeout, job, inputs)
    return msgspec.convert({"version": version(), "seeds": seeds, "inferences": count or inferences, **answer}, Run)


def _without_sharing(model: TfliteModel) -> bytes:
    """Returns the model file with a plan in which no two tensors share bytes, except tensors with fixed offsets."""
    tensors, fixed = model.tensors, model.fixed
    end_of_fixed = max((model.offsets[number] + tensors[number].size for number in fixed), default=0)
    starts = itertools.accumulate((tensor.size for tensor in tensors), initial=-(-end_of_fixed // ALIGNMENT) * ALIGNMENT)
    # Offsets of 2 GiB and more are not possible in a plan, so the runtime places these tensors.
    places = [at if tensor.is_planned and at < 1 << 31 else AT_RUNTIME for tensor, at in zip(tensors, starts, strict=False)]
    return with_offsets(model.data, [model.offsets[number] if number in fixed else at for number, at in enumerate(places)])


def _run_child(
    model: TfliteModel,
    models: Mapping[str, bytes],
    timeout: float,
    job: Mapping[str, Any] = MappingProxyType({}),
    inputs: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Starts :mod:`stowplan.backends.tflm.child` with some models, by name, and inputs; returns its answer.

    The answer gets a field ``message`` with the runtime's last message about an inference that failed. Raises UnsupportedError
    or VerificationError as :func:`run` does.
    """
    plenty = _EXTRA_ARENA_BYTES + 2 * len(model.data) + sum(tensor.size for tensor in model.tensors)
    with tempfile.TemporaryDirectory(prefix="stowplan-tflm-") as name:
        folder = Path(name)
        for label, data in models.items():
            (folder / label).write_bytes(data)
        (folder / "job.json").write_text(json.dumps({"models": list(models), "plenty": plenty, **job}), encoding="utf-8")
        np.savez(folder / "inputs.npz", **inputs)
        command = [sys.executable, "-P", str(Path(__file__).with_name("child.py")), name]
        try:
            child = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise UnsupportedError(
                f"the runtime took more than {timeout:g} s{_describe_inference(model, folder, inputs)[1]}"
            ) from None
        try:
            answer: dict[str, Any] = json.loads(child.stdout)
        except ValueError:
            label, description = _describe_inference(model, folder, inputs)
            message = (
                f"the runtime ended with code {child.returncode}{description}: "
                f"{_last_line(child.stderr) or 'without a message'}"
            )
            if label == "planned" and -child.returncode in _CRASH_SIGNALS:
                raise VerificationError(f"{message}; without the plan it does not, so do not use the plan") from None
            raise UnsupportedError(message) from None
    lines = child.stderr.decode(errors="replace").splitlines()
    answer["message"] = next((line for line in reversed(lines) if "failed to invoke" in line), "")
    if "error" in answer:
        raise UnsupportedError(f"the runtime does not take the model: {_last_line(child.stderr) or answer['error']}")
    return answer


def _describe_inference(model: TfliteModel, folder: Path, inputs: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the name of the model that was running, and a phrase about the inference; both are empty if none was running."""
    if not (folder / "progress").exists():
        return "", ""
    label, seed, at = (folder / "progress").read_text(encoding="utf-8").split()
    values = []
    for place, number in [*enumerate(model.subgraphs[0].inputs)][:_MAX_INPUTS_SHOWN]:
        array = inputs[f"{seed}.{at}.{place}"]
        extent = f" from {array.min()} to {array.max()}" if array.size else ""
        values.append(f"{model.tensors[number].own_name}: {array.dtype} {[*array.shape]}{extent}")
    description = f"which was fed {', '.join(values) or 'no inputs'} (--inputs FILE.npz gives others)"
    return label, f" in inference {at} of seed {seed} of the {label} model, {description}"


def _last_line(text: bytes) -> str:
    """Returns the last line of a process's output."""
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
