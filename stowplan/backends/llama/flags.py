"""Converts plans to options of llama.cpp, and options to the placement that they have as a result.

A placement says on which device each tensor and each cache of keys and values is. :func:`command_of` writes a plan as options.
:func:`placement_of` follows llama.cpp's rules (``src/llama-model.cpp``) to find out where options place the tensors of a model,
and counts the bytes of each device. It uses the options and the model file alone, not the plan, so it is an independent check
of :func:`command_of`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from stowplan.backends.llama.machine import MARGIN_MIB, MIB
from stowplan.backends.llama.model import Context, LanguageModel, cache_bytes
from stowplan.errors import UsageError
from stowplan.models.llm_placement.plan import Plan, used_devices
from stowplan.models.llm_placement.problem import HOST, Problem
from stowplan.portfolio.llm_placement.fit import split

#: The name that ``-ot`` uses for buffers of the host, which is the CPU with its RAM.
CPU = "CPU"

#: The options that :func:`placement_of` reads, all with a value. Several spellings of an option have the same name here.
_NAMES = {
    "-ngl": "layers",
    "--n-gpu-layers": "layers",
    "--gpu-layers": "layers",
    "-dev": "devices",
    "--device": "devices",
    "-ts": "shares",
    "--tensor-split": "shares",
    "-ot": "overrides",
    "--override-tensor": "overrides",
    "-ub": "micro_batch",
    "--ubatch-size": "micro_batch",
    "-c": "context",
    "--ctx-size": "context",
    "-np": "slots",
    "--parallel": "slots",
    "-ctk": "key_type",
    "--cache-type-k": "key_type",
    "-ctv": "value_type",
    "--cache-type-v": "value_type",
}

#: Options that also place tensors, but that this module does not support. Reading one raises an error.
_OTHER_PLACERS = ("-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn", "-nkvo", "--no-kv-offload")


def command_of(problem: Problem, plan: Plan, context: Context) -> list[str]:
    """The options for a plan, as a list of the words of a command line."""
    used = used_devices(plan.memories)
    offloaded = len(plan.memories) - plan.memories.count(HOST)
    words = _context_words(context, problem.micro_batches[plan.micro_batch].size)
    words += ["--fit", "off", "-ngl", str(offloaded)]
    words += ["-dev", ",".join(problem.memories[memory].name for memory in used) if used else "none"]
    if len(used) > 1:
        words += ["-ts", ",".join(str(plan.memories.count(memory)) for memory in used)]
    patterns = _patterns(problem, plan)
    if patterns:
        words += ["-ot", ",".join(f"{pattern}={CPU}" for pattern in patterns)]
    return words


def fit_command_of(context: Context, margins: Sequence[int]) -> list[str]:
    """Options that leave the placement to the runtime's own ``--fit``, as a list of the words of a command line.

    ``margins`` are the bytes that stay free on each device, in the runtime's order.
    """
    words = [*_context_words(context, context.micro_batch), "--fit", "on"]
    if any(margin != MARGIN_MIB * MIB for margin in margins):
        words += ["-fitt", ",".join(str(-(-margin // MIB)) for margin in margins)]
    return words


def _context_words(context: Context, micro_batch: int) -> list[str]:
    """The options for the context, the slots, the types of the cache, and the micro-batch in tokens."""
    words = ["-c", str(context.tokens), "-fa", "on", "-ub", str(micro_batch)]
    if micro_batch > 2048:
        # The logical batch (-b, 2048 by default) must not be smaller than a micro-batch (-ub).
        words += ["-b", str(micro_batch)]
    # Without -np, the server chooses several slots (sequences that it generates side by side), which share one cache.
    words += ["-np", str(context.slots)]
    for flag, value in (("-ctk", context.key_type), ("-ctv", context.value_type)):
        if value != "f16":
            words += [flag, value]
    return words


def text_of(words: Sequence[str]) -> str:
    """Options as a line for a shell, quoted where necessary."""
    return shlex.join(words)


def _patterns(problem: Problem, plan: Plan) -> list[str]:
    """Regular expressions that match the tensors of spilled parts.

    A spilled part, such as the experts of a layer, stays on the host although the rest of its layer is on a device. Layers with
    the same spilled parts share an expression.
    """
    layers: dict[tuple[str, ...], list[int]] = {}
    for number, (layer, spilled) in enumerate(zip(problem.layers, plan.spilled, strict=True)):
        if spilled:
            names = tuple(part.name for part in layer.spillable[:spilled])
            layers.setdefault(names, []).append(number)
    suffix = r"_(ch)?exps" if problem.experts else ""
    return [
        rf"blk\.({'|'.join(map(str, numbers))})\.ffn_({'|'.join(names)}){suffix}\.weight" for names, numbers in layers.items()
    ]


@dataclass
class Placement:
    """The placement of a model's tensors and caches that results from options."""

    devices: list[str]
    """Names of the devices in use, in order."""
    layers: list[str]
    """Name of the device of each layer, or CPU for the host. The output layer is the last one."""
    tensors: dict[str, str]
    """Name of the device, or CPU, of each tensor of a layer, by the name of the tensor."""
    context: Context
    """The context: its number of tokens, the types of keys and values, and so on."""
    weights: dict[str, int] = field(default_factory=dict)
    """Bytes of weights by device."""
    caches: dict[str, int] = field(default_factory=dict)
    """Bytes of caches and states by device."""


def placement_of(model: LanguageModel, words: Sequence[str], names: Sequence[str], free: Sequence[int]) -> Placement:
    """Find out where options place the tensors of a model, by the rules of llama.cpp.

    Parameters
    ----------
    words
        The words of the options. Options that place no tensors are ignored.
    names, free
        The names of all devices in the runtime's order, and their free bytes. Without ``-ts``, layers are divided among devices
        in proportion to free bytes.

    Raises
    ------
    UsageError
        A device or buffer does not exist, a value is not a whole number where one is needed, or the options have ``-sm row``,
        ``-sm tensor`` or another option that places tensors and is not supported.
    """
    found = _parsed(words)
    devices = [*names] if "devices" not in found else [name for name in found["devices"].split(",") if name != "none"]
    for name in devices:
        if name not in names:
            raise UsageError(f"found the device {name!r}, expected one of {', '.join(names) or 'none'}")
    count = len(model.layers)
    layers = _number(found, "layers", -1)
    offloaded = count if layers < 0 else min(layers, count)
    shares = [float(share) for share in re.split("[,/]", found["shares"])] if "shares" in found else []
    if not any(shares):
        shares = [float(free[names.index(name)]) for name in devices]
    shares = [*shares, *[0.0] * len(devices)][: len(devices)]
    memories = split(count, shares, offloaded) if devices else [HOST] * count
    placed = [CPU if memory == HOST else devices[memory - 1] for memory in memories]
    rules = []
    for rule in found["overrides"].split(",") if "overrides" in found else []:
        pattern, _, buffer = rule.rpartition("=")
        if buffer != CPU and buffer not in devices:
            raise UsageError(f"found the buffer {buffer!r} in {rule!r}, expected CPU or a device in use")
        rules.append((re.compile(pattern), buffer))
    context = Context(
        tokens=_number(found, "context", model.trained_context),
        slots=_number(found, "slots", 1),
        micro_batch=_number(found, "micro_batch", 512),
        key_type=found.get("key_type", "f16"),
        value_type=found.get("value_type", "f16"),
    )
    result = Placement(devices, placed, {}, context)
    result.weights = dict.fromkeys((CPU, *devices), 0)
    result.caches = dict.fromkeys((CPU, *devices), 0)
    result.weights[CPU] += model.input_bytes
    for layer, device in zip(model.layers, placed, strict=True):
        result.caches[device] += cache_bytes(layer, context)
        for tensor in layer.tensors:
            where = next((buffer for pattern, buffer in rules if pattern.search(tensor.name)), device)
            result.tensors[tensor.name] = where
            result.weights[where] += tensor.bytes
    return result


def _parsed(words: Sequence[str]) -> dict[str, str]:
    """The values of the options in :data:`_NAMES`, by the names there; the last value counts."""
    found: dict[str, str] = {}
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word in ("-sm", "--split-mode") and value in ("row", "tensor"):
            raise UsageError(f"found -sm {value}, expected layers on devices (-sm layer): other splits are not modelled")
        if word in _OTHER_PLACERS:
            raise UsageError(f"found {word}, expected the same placement by -ot (--override-tensor)")
        if word in _NAMES:
            found[_NAMES[word]] = value
    return found


def _number(found: dict[str, str], name: str, default: int) -> int:
    """The value of an option as a whole number; raises UsageError if it is none."""
    try:
        return int(found.get(name, default))
    except ValueError:
        raise UsageError(f"found {found[name]!r} for {name.replace('_', ' ')}, expected a whole number") from None
