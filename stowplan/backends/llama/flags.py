"""Converts plans to options of llama.cpp, and options to the placement that they have as a result.

A placement says on which device each tensor and each cache of keys and values is. A *plan* is a placement that stowplan has
computed, an answer to a problem of LLM placement. :func:`command_of` writes a plan as options. :func:`placement_of` follows
llama.cpp's rules (``src/llama-model.cpp``) to find out where options place the tensors of a model, and counts the bytes of each
device. It uses the options and the model file alone, not the plan, so it is an independent check of :func:`command_of`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from stowplan.backends.llama.machine import MARGIN_MIB, MIB
from stowplan.backends.llama.model import CACHE_TYPES, Context, LanguageModel, cache_bytes
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
    """Returns the options for a plan, as a list of the words of a command line.

    Parameters
    ----------
    problem, plan
        A problem of LLM placement and a valid plan for it.
    context
        Sizes and types of the caches. The size of the micro-batch, the tokens of a prompt that are computed at once, is taken
        from the plan instead.
    """
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
    """Returns options that leave the placement to llama.cpp's own ``--fit``, as a list of the words of a command line.

    Parameters
    ----------
    context
        Sizes and types of the caches, and the size of a micro-batch.
    margins
        Bytes that stay free on each device, in llama.cpp's order of devices; they are rounded up to whole MiB. If all of them
        are llama.cpp's default, :data:`~stowplan.backends.llama.machine.MARGIN_MIB` MiB, no option is written for them.
    """
    words = [*_context_words(context, context.micro_batch), "--fit", "on"]
    if any(margin != MARGIN_MIB * MIB for margin in margins):
        words += ["-fitt", ",".join(str(-(-margin // MIB)) for margin in margins)]
    return words


def _context_words(context: Context, micro_batch: int) -> list[str]:
    """Returns the options for the context, the slots, the types of the cache, and the micro-batch in tokens."""
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
    """Returns options as a line for a shell, in which words are quoted if necessary."""
    return shlex.join(words)


def _patterns(problem: Problem, plan: Plan) -> list[str]:
    """Returns regular expressions that match the tensors of spilled parts.

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
    """Names of the devices that the options select (all devices without ``-dev``), in the order in which layers are divided
    among them."""
    layers: list[str]
    """Name of the device of each layer, or CPU for the host. The output layer is the last one."""
    tensors: dict[str, str]
    """Name of the device, or CPU, of each tensor of a layer, by the name of the tensor."""
    context: Context
    """The context: its number of tokens, the types of keys and values, and so on."""
    weights: dict[str, int] = field(default_factory=dict)
    """Bytes of weights by the name of the device, and of the host under CPU."""
    caches: dict[str, int] = field(default_factory=dict)
    """Bytes of caches and of recurrent states by the name of the device, and of the host under CPU."""


def placement_of(model: LanguageModel, words: Sequence[str], names: Sequence[str], free: Sequence[int]) -> Placement:
    """Computes where options place the tensors of a model, by the rules of llama.cpp.

    Parameters
    ----------
    model
        The layers of a GGUF file, with their tensors.
    words
        The words of the options. Options that place no tensors are ignored.
    names, free
        The names of all devices in llama.cpp's order, and their free bytes. Without ``-ts``, layers are divided among devices
        in proportion to free bytes.

    Raises
    ------
    UsageError
        One of these:

        - a device, a buffer or a type of the cache does not exist
        - a value is not the number or the regular expression that its option takes
        - an option that places tensors, such as ``-sm row``, is not supported
    """
    values = _parsed(words)
    devices = [*names] if "devices" not in values else [name for name in values["devices"].split(",") if name != "none"]
    for name in devices:
        if name not in names:
            raise UsageError(f"found the device {name!r}, expected one of {', '.join(names) or 'none'}")
    count = len(model.layers)
    layers = _number(values, "layers", -1)
    offloaded = count if layers < 0 else min(layers, count)
    shares = _shares(values["shares"]) if "shares" in values else []
    if not any(shares):
        shares = [float(free[names.index(name)]) for name in devices]
    shares = [*shares, *[0.0] * len(devices)][: len(devices)]
    memories = split(count, shares, offloaded) if devices else [HOST] * count
    placed = [CPU if memory == HOST else devices[memory - 1] for memory in memories]
    rules = []
    for rule in values["overrides"].split(",") if "overrides" in values else []:
        pattern, _, buffer = rule.rpartition("=")
        if buffer != CPU and buffer not in devices:
            raise UsageError(f"found the buffer {buffer!r} in {rule!r}, expected CPU or a device in use")
        try:
            rules.append((re.compile(pattern), buffer))
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"found the pattern {pattern!r} in -ot, expected a regular expression: {error}") from None
    context = Context(
        # The context 0 is the one with which the model was trained.
        tokens=_number(values, "context", 0, least=0) or model.trained_context,
        slots=_number(values, "slots", 1, least=1),
        micro_batch=_number(values, "micro_batch", 512, least=1),
        key_type=_cache_type(values, "key_type"),
        value_type=_cache_type(values, "value_type"),
    )
    result = Placement(devices, placed, {}, context)
    result.weights = dict.fromkeys((CPU, *devices), 0)
    result.caches = dict.fromkeys((CPU, *devices), 0)
    result.weights[CPU] += model.input_bytes
    for layer, device in zip(model.layers, placed, strict=True):
        result.caches[device] += cache_bytes(layer, context)
        for tensor in layer.tensors:
            # The first override that matches the name decides.
            place = next((buffer for pattern, buffer in rules if pattern.search(tensor.name)), device)
            result.tensors[tensor.name] = place
            result.weights[place] += tensor.bytes
    return result


def _parsed(words: Sequence[str]) -> dict[str, str]:
    """Returns the values of the options in :data:`_NAMES`, by the names there; the last value of an option counts.

    Raises UsageError for an option that places tensors but is not supported.
    """
    values: dict[str, str] = {}
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word in ("-sm", "--split-mode") and value in ("row", "tensor"):
            raise UsageError(f"found -sm {value}, expected layers on devices (-sm layer): other splits are not modelled")
        if word in _OTHER_PLACERS:
            raise UsageError(f"found {word}, expected the same placement by -ot (--override-tensor)")
        if word in _NAMES:
            values[_NAMES[word]] = value
    return values


def _shares(text: str) -> list[float]:
    """Returns the shares of devices of ``-ts``; raises UsageError if one of them is no number, or is negative or too large."""
    try:
        shares = [float(share) for share in re.split("[,/]", text)]
    except ValueError:
        shares = [-1.0]
    # Shares are 32-bit floats in llama.cpp. The comparison is false for NaN, too.
    if not all(0.0 <= share < 1e38 for share in shares):
        raise UsageError(f"found {text!r} for -ts, expected numbers of at least 0, such as 3,1")
    return shares


def _cache_type(values: dict[str, str], name: str) -> str:
    """Returns the type of keys or values in the cache; raises UsageError if there is no such type."""
    value = values.get(name, "f16")
    if value not in CACHE_TYPES:
        raise UsageError(f"found the {name.replace('_', ' ')} {value!r} of the cache, expected one of {', '.join(CACHE_TYPES)}")
    return value


def _number(values: dict[str, str], name: str, default: int, least: int | None = None) -> int:
    """Returns the value of an option as a whole number, ``default`` without the option.

    Raises UsageError if the value is no whole number, or is less than ``least``.
    """
    try:
        number = int(values.get(name, default))
    except ValueError:
        raise UsageError(f"found {values[name]!r} for {name.replace('_', ' ')}, expected a whole number") from None
    if least is not None and number < least:
        raise UsageError(f"found {number} for {name.replace('_', ' ')}, expected at least {least}")
    return number
