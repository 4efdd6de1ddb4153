"""TensorFlow Lite Micro itself, where its wheel is installed: scratch memory, head, tail, the least arena, and outputs."""

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
from stowplan.backends.tflm.greedy import kept_inputs
from stowplan.backends.tflm.inputs import drawn
from stowplan.backends.tflm.scratch import Scratch, of_reference_kernels
from stowplan.backends.tflm.write import one_operator, with_offsets
from stowplan.errors import VerificationError
from stowplan.frontends.tflite.model import ALIGNMENT, AT_RUNTIME, TfliteModel

#: Name of the wheel, and of its package.
WHEEL, _PACKAGE = "tflite-micro", "tflite_micro"

#: Type of a handle.
_RESOURCE = 13

#: Inferences that are run to see as many as were asked for come to their end, at most, for each of these.
_TURNS = 16

#: Signals of a process that does what it must not: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
_CRASHES = (4, 6, 7, 8, 11)

#: Inputs that a message shows, at most.
_SHOWN = 6

#: Bytes of an arena beside what a model's size says: most of it is for tensors.
_BESIDE = 4 << 20


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime made of a model and of its plan; sizes in bytes, of this machine."""

    version: str
    head: int
    tail: int
    """Persistent: pointers are smaller on 32-bit devices."""
    arena: int
    """The least, in steps of 16."""
    greedy_head: int
    greedy_tail: int
    greedy_arena: int
    seeds: int
    """Runs, each of a new interpreter on inputs of its own."""
    inferences: int
    """Inferences of a run that were to come to their end."""
    compared: int
    """Inferences over all runs that came to their end, so that their outputs were compared."""
    ended_early: int
    """Inferences over all runs that the runtime ended early, with kTfLiteAbort or an error: those have no outputs."""
    message: str
    """What the runtime said of the last inference that ended with an error; empty where none did."""
    is_undefined: bool
    """Whether the model's own outputs change where no tensors share bytes: it reads bytes that no operator has written."""
    differs: tuple[int, int] | None
    """First seed and inference with other outputs or another end; None: all are equal, bit by bit."""


def version() -> str | None:
    """Version of the wheel, None where it is not installed."""
    return importlib.metadata.version(WHEEL) if importlib.util.find_spec(_PACKAGE) is not None else None


def measured(model: TfliteModel, *, every: bool = False, timeout: float = 120.0) -> Scratch:
    """Bytes that operators ask for, measured: what a model of that operator alone takes beside its largest tensor.

    Parameters
    ----------
    every
        All operators, not only those that are known to ask for something, or not known.

    Raises
    ------
    UnsupportedError
        The runtime does not take an operator.
    """
    known, unknown = of_reference_kernels(model)
    places = [
        (graph, position)
        for graph, subgraph in enumerate(model.subgraphs)
        for position, operator in enumerate(subgraph.operators)
        # Handles of variables are placed where nothing makes them; their operators ask for nothing.
        # An operator alone would find the declared shapes of its operands.
        if not operator.calls
        and not any(model.tensors[number].is_resized for number in operator.reads)
        and all(model.tensors[number].kind != _RESOURCE for number in (*operator.reads, *operator.writes))
    ]
    if not every:
        places = [place for place in places if place in known or place in unknown]
    if not places:
        return {}
    models = {f"{graph}.{position}": one_operator(model, graph, position) for graph, position in places}
    heads = _ask(model, models, timeout)
    measured = {}
    for graph, position in places:
        operator = model.subgraphs[graph].operators[position]
        tensors = (model.tensors[number] for number in (*operator.reads, *operator.writes))
        largest = max((tensor.size for tensor in tensors if tensor.is_planned), default=0)
        size = heads[f"{graph}.{position}"] - largest
        measured[graph, position] = (size,) if size > 0 else ()
    return measured


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
    """The least arenas of a model and of its plan, and whether outputs are equal.

    Inferences that the runtime ends early are not compared. Others take their place, as long as they are not too many.

    Parameters
    ----------
    keep
        Names of inputs that are set before the first inference, and with the plan not again.
    seeds
        Of inputs drawn at random, a new runtime for each. One is enough where the user gives all inputs.
    inferences
        One after the other in the same runtime, which shows in models with a state.
    given
        A user's inputs and their number of inferences, as :func:`~stowplan.backends.tflm.inputs.read_inputs` has them; others
        are drawn.

    Raises
    ------
    UnsupportedError
        The runtime does not take the model, or fails on it.
    VerificationError
        The runtime fails on the planned model alone.
    """
    if any(model.tensors[number].is_resized for number in model.subgraphs[0].outputs):
        # Its Python interface reads as many bytes as the declared shape has.
        raise UnsupportedError(
            "an output has another shape than the declared one, by which the runtime's Python package reads it"
        )
    numbers, (own, count) = model.subgraphs[0].inputs, given
    kept_numbers = kept_inputs(model, keep)
    kept = [at for at, number in enumerate(numbers) if number in kept_numbers]
    seeds = 1 if len(own) == len(numbers) else seeds
    inputs = drawn(model, seeds, count or inferences, kept, own)
    # A sequence that a user gives is run as it is.
    turns = count or _TURNS * inferences
    job = {"runs": seeds, "inferences": count or inferences, "turns": turns, "kept": kept}
    models = {"source": model.data, "planned": planned, "apart": _apart(model)}
    done = _ask(model, models, timeout, job, inputs)
    return msgspec.convert({"version": version(), "seeds": seeds, "inferences": count or inferences, **done}, Run)


def _apart(model: TfliteModel) -> bytes:
    """The model with a plan in which no two tensors share bytes, but for those whose offsets stay."""
    tensors, fixed = model.tensors, model.fixed
    above = max((model.offsets[number] + tensors[number].size for number in fixed), default=0)
    starts = itertools.accumulate((tensor.size for tensor in tensors), initial=-(-above // ALIGNMENT) * ALIGNMENT)
    # More than the runtime takes is left to it.
    places = [at if tensor.is_planned and at < 1 << 31 else AT_RUNTIME for tensor, at in zip(tensors, starts, strict=False)]
    return with_offsets(model.data, [model.offsets[number] if number in fixed else at for number, at in enumerate(places)])


def _ask(
    model: TfliteModel,
    models: Mapping[str, bytes],
    timeout: float,
    job: Mapping[str, Any] = MappingProxyType({}),
    inputs: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """What another process finds out about models that are made of one, on some inputs."""
    plenty = _BESIDE + 2 * len(model.data) + sum(tensor.size for tensor in model.tensors)
    with tempfile.TemporaryDirectory(prefix="stowplan-tflm-") as name:
        folder = Path(name)
        for label, data in models.items():
            (folder / label).write_bytes(data)
        (folder / "job.json").write_text(json.dumps({"models": list(models), "plenty": plenty, **job}), encoding="utf-8")
        np.savez(folder / "inputs.npz", **inputs)
        command = [sys.executable, "-P", str(Path(__file__).with_name("child.py")), name]
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise UnsupportedError(f"the runtime took more than {timeout:g} s{_fed(model, folder, inputs)[1]}") from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            label, fed = _fed(model, folder, inputs)
            message = f"the runtime ended with code {done.returncode}{fed}: {_last_line(done.stderr) or 'without a message'}"
            if label == "planned" and -done.returncode in _CRASHES:
                raise VerificationError(f"{message}; without the plan it does not, so do not use the plan") from None
            raise UnsupportedError(message) from None
    lines = done.stderr.decode(errors="replace").splitlines()
    answer["message"] = next((line for line in reversed(lines) if "failed to invoke" in line), "")
    if "error" in answer:
        raise UnsupportedError(f"the runtime does not take the model: {_last_line(done.stderr) or answer['error']}")
    return answer


def _fed(model: TfliteModel, folder: Path, inputs: Mapping[str, Any]) -> tuple[str, str]:
    """Which model was running, and in what inference on which inputs; nothing where none was."""
    if not (folder / "progress").exists():
        return "", ""
    label, seed, at = (folder / "progress").read_text(encoding="utf-8").split()
    values = []
    for place, number in [*enumerate(model.subgraphs[0].inputs)][:_SHOWN]:
        array = inputs[f"{seed}.{at}.{place}"]
        extent = f" from {array.min()} to {array.max()}" if array.size else ""
        values.append(f"{model.tensors[number].own_name}: {array.dtype} {[*array.shape]}{extent}")
    fed = f"which was fed {', '.join(values) or 'no inputs'} (--inputs FILE.npz gives others)"
    return label, f" in inference {at} of seed {seed} of the {label} model, {fed}"


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
