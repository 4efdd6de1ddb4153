"""TensorFlow Lite Micro itself, where its wheel is installed: scratch memory, head, tail, the least arena, and outputs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.tflm.scratch import Scratch, of_reference_kernels
from stowplan.backends.tflm.write import one_operator
from stowplan.frontends.arena.tflite_file import TfliteModel

#: Name of the wheel, and of its package.
WHEEL, _PACKAGE = "tflite-micro", "tflite_micro"

#: Type of a handle.
_RESOURCE = 13

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
    inferences: int
    differs: tuple[int, int] | None
    """First seed and inference with other outputs; None: all are equal, bit by bit."""


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
    timeout: float = 600.0,
) -> Run:
    """The least arenas of a model and of its plan, and whether outputs are equal.

    Parameters
    ----------
    keep
        Names of inputs that are set before the first inference, and with the plan not again.
    seeds
        Of inputs drawn at random, a new runtime for each.
    inferences
        One after the other in the same runtime, which shows in models with a state.

    Raises
    ------
    UnsupportedError
        The runtime does not take the model.
    """
    if any(model.tensors[number].is_resized for number in model.subgraphs[0].outputs):
        # Its Python interface reads as many bytes as the declared shape has.
        raise UnsupportedError(
            "an output has another shape than the declared one, by which the runtime's Python package reads it"
        )
    names = [model.tensors[number].own_name for number in model.subgraphs[0].inputs]
    kept = [at for at, name in enumerate(names) if name in keep]
    done = _ask(model, {"source": model.data, "planned": planned}, timeout, seeds, inferences, kept)
    return msgspec.convert({"version": version(), "seeds": seeds, "inferences": inferences, **done}, Run)


def _ask(
    model: TfliteModel,
    models: Mapping[str, bytes],
    timeout: float,
    seeds: int = 0,
    inferences: int = 0,
    kept: Sequence[int] = (),
) -> dict[str, Any]:
    """What another process finds out about models that are made of one."""
    plenty = _BESIDE + 2 * len(model.data) + sum(tensor.size for tensor in model.tensors)
    job = {"models": list(models), "plenty": plenty, "seeds": seeds, "inferences": inferences, "kept": kept}
    with tempfile.TemporaryDirectory(prefix="stowplan-tflm-") as folder:
        for name, data in models.items():
            (Path(folder) / name).write_bytes(data)
        (Path(folder) / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-P", str(Path(__file__).with_name("child.py")), folder]
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise UnsupportedError(f"the runtime took more than {timeout:g} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise UnsupportedError(f"the runtime ended with code {done.returncode}: {_last_line(done.stderr)}") from None
    if "error" in answer:
        raise UnsupportedError(f"the runtime does not take the model: {_last_line(done.stderr) or answer['error']}")
    return answer


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
