"""Checks a placement in a JSON file against its model, for ``stowplan verify MODEL PLAN``.

The options of llama.cpp in the file are read by the rules of llama.cpp (:func:`stowplan.backends.llama.flags.placement_of`),
and the bytes of weights and caches on each device are counted anew from the GGUF file. The bytes of compute buffers are taken
from the JSON file. That file does not contain the speeds of the machine, so that predicted times are not checked.
"""

from __future__ import annotations

from pathlib import Path

from stowplan.backends.llama.flags import CPU, Placement, placement_of
from stowplan.backends.llama.model import LanguageModel, read_model
from stowplan.backends.llama.planning import DeviceUse, Summary
from stowplan.errors import StowplanError


def recheck(model_path: str | Path, summary: Summary) -> list[str]:
    """Checks a placement against its model; returns a line for each fault, so an empty list if the placement is valid.

    Raises
    ------
    InputError
        The model cannot be read.
    """
    model = read_model(model_path)
    uses = {use.name: use for use in summary.devices}
    names = [name for name in uses if name != CPU]
    try:
        placed = placement_of(model, summary.command, names, [_capacity(uses[name]) for name in names])
    except StowplanError as error:
        return [f"the options cannot be read: {error}"]
    wrong = [f"{use.name} would hold {-use.free:,} bytes more than its memory" for use in summary.devices if use.free < 0]
    context = placed.context
    if (context.tokens, context.slots) != (summary.context, summary.slots):
        wrong.append(
            f"the options ask for {context.tokens} tokens in {context.slots} slots, and the file is about {summary.context} "
            f"tokens in {summary.slots} slots"
        )
    # The options of --fit leave the placement to llama.cpp, so that only the sums are known.
    return wrong + (_wrong_sums(model, placed, summary) if summary.recommended == "fit" else _wrong_devices(placed, uses))


def _capacity(use: DeviceUse) -> int:
    """Bytes of a device's memory: those in use and those that remain."""
    return use.weights + use.cache + use.compute + use.free


def _wrong_devices(placed: Placement, uses: dict[str, DeviceUse]) -> list[str]:
    """A line for each device whose layers or bytes differ from the numbers in the file."""
    wrong = []
    for name in dict.fromkeys((CPU, *uses)):
        use = uses.get(name)
        stated = (0, 0, 0) if use is None else (use.layers, use.weights, use.cache)
        found = (placed.layers.count(name), placed.weights.get(name, 0), placed.caches.get(name, 0))
        if stated != found:
            wrong.append(f"the options put {_words(found)} on {name}, and the file says {_words(stated)}")
    return wrong


def _wrong_sums(model: LanguageModel, placed: Placement, summary: Summary) -> list[str]:
    """A line if the layers and bytes of all devices together differ from the numbers of the model; otherwise no line."""
    found = (len(model.layers), sum(placed.weights.values()), sum(placed.caches.values()))
    rows = [(use.layers, use.weights, use.cache) for use in summary.devices]
    layers, weights, cache = (sum(row[column] for row in rows) for column in range(3))
    if found == (layers, weights, cache):
        return []
    return [f"the model has {_words(found)}, and the file says {_words((layers, weights, cache))}"]


def _words(counts: tuple[int, int, int]) -> str:
    """Numbers of layers, of bytes of weights and of bytes of caches, as text."""
    layers, weights, cache = counts
    return f"{layers} layers, {weights:,} bytes of weights and {cache:,} bytes of cache"
