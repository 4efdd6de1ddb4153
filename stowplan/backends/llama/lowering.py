"""A model, a machine and a request as a problem of LLM placement.

Generation reads all weights of a layer once in a step, of a mixture the experts that the sequences are expected to choose
(each token draws ``used`` of ``experts`` at random), and the cache of all tokens before. A prompt is computed in micro-batches:
each reads the weights once, or computes, whichever takes longer (the roofline model, Williams et al. 2009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from stowplan.backends.llama.machine import Machine, MachineDevice
from stowplan.backends.llama.model import Context, LanguageModel, ModelLayer, cache_bytes, read_bytes, spilled_parts
from stowplan.errors import UsageError
from stowplan.frontends.gguf import Tensor
from stowplan.models.llm_placement.problem import Device, Layer, MicroBatch, Part, Problem

#: Micro-batches that are looked at: the runtime's default first. ``-ub`` of llama.cpp.
MICRO_BATCHES = (512, 1024, 2048, 4096)

#: Bytes of buffers of intermediate results that are assumed where they were not measured: for each token of a micro-batch
#: this number of rows of activations in 32-bit floats and a row of logits, and besides a fixed amount.
ESTIMATED_ROWS, ESTIMATED_BYTES = 40, 128 << 20

#: Rate of a device whose speeds are not known: placements are then compared by memory alone.
UNKNOWN_RATE = 10**9


@dataclass(frozen=True)
class Request:
    """What the model is run for: every slot has one prompt and generates one answer."""

    context: int
    """Tokens of all slots together that fit in the cache."""
    prompt: int
    """Tokens of a prompt."""
    generate: int
    """Tokens of an answer."""
    slots: int = 1
    key_type: str = "f16"
    value_type: str = "f16"

    def check(self, model: LanguageModel) -> None:
        """Raise UsageError where the request cannot be."""
        each = self.context // self.slots
        if self.prompt + self.generate > each:
            raise UsageError(
                f"found a prompt of {self.prompt} and an answer of {self.generate} tokens, expected at most the context of "
                f"{each} tokens for each slot (--ctx)"
            )
        if model.trained_context and each > model.trained_context:
            raise UsageError(
                f"found a context of {each} tokens, expected at most the {model.trained_context} that the model has"
            )


def problem_of(
    model: LanguageModel,
    machine: Machine,
    request: Request,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    compute: Mapping[tuple[str, int], int] | None = None,
) -> Problem:
    """The problem of placing a model for a request.

    Parameters
    ----------
    micro_batches
        Choices of tokens that are computed at once, the runtime's default first. Those that change nothing are left out.
    compute
        Measured bytes of buffers of intermediate results, by device name and micro-batch.
    """
    request.check(model)
    sizes = [size for at, size in enumerate(micro_batches) if at == 0 or micro_batches[at - 1] < request.prompt]
    # The prompts of all slots are computed.
    batches = [_micro_batch(size, request.prompt * request.slots) for size in sizes]
    layers = [_layer(model, layer, request, batches) for layer in model.layers[:-1]]
    output = _output(model.layers[-1], batches)
    return Problem(
        layers=(*layers, output),
        host=_device(machine.host, model, sizes, compute),
        devices=tuple(_device(device, model, sizes, compute) for device in machine.devices),
        micro_batches=tuple(batches),
        steps=request.generate,
        host_bytes=model.input_bytes,
        hidden_bytes=4 * model.embedding,
        slots=request.slots,
        experts=model.experts,
        name=model.name,
        target=machine.name,
    )


def _micro_batch(size: int, prompt: int) -> MicroBatch:
    batches = -(-prompt // size)
    return MicroBatch(size=size, tokens=-(-prompt // batches) if batches else 0, batches=batches)


def _layer(model: LanguageModel, layer: ModelLayer, request: Request, batches: Sequence[MicroBatch]) -> Layer:
    context = Context(request.context, request.slots, key_type=request.key_type, value_type=request.value_type)
    spilled = spilled_parts(layer, model.experts)
    apart = {tensor.name for tensors in spilled.values() for tensor in tensors}
    fixed = [tensor for tensor in layer.tensors if tensor.name not in apart]
    # A window's cache grows with the micro-batch: the largest that is chosen from.
    largest = max(batch.size for batch in batches)
    own = _part(model, "", fixed, request, batches, False)
    # A recurrent state is read and written at the rate of weights, once for each sequence.
    state = 2 * layer.cache.state_bytes * request.slots
    own = msgspec.structs.replace(own, step_bytes=own.step_bytes + state)
    return Layer(
        name=layer.name,
        fixed=own,
        spillable=tuple(
            _part(model, name, tensors, request, batches, bool(model.experts)) for name, tensors in spilled.items()
        ),
        cache_bytes=cache_bytes(layer, replace(context, micro_batch=largest)),
        step_cache_bytes=request.slots * _mean_read(layer, context, request.prompt, request.generate),
        batch_cache_bytes=tuple(read_bytes(layer, context, request.prompt // 2) for _ in batches),
        batch_cache_flops=tuple(layer.attention_flops * batch.tokens * (request.prompt // 2) for batch in batches),
    )


def _mean_read(layer: ModelLayer, context: Context, prompt: int, generate: int) -> int:
    """Bytes of cache that a step reads, in the mean over the answer."""
    window = layer.cache.window
    if not window or prompt + generate <= window:
        return read_bytes(layer, context, prompt + generate // 2)
    growing = max(0, window - prompt)
    mean = (growing * (prompt + growing // 2) + (generate - growing) * window) // max(1, generate)
    return read_bytes(layer, context, mean)


def _part(
    model: LanguageModel, name: str, tensors: Sequence[Tensor], request: Request, batches: Sequence[MicroBatch], is_expert: bool
) -> Part:
    size, values = sum(tensor.bytes for tensor in tensors), sum(tensor.values for tensor in tensors)
    used, every = (model.experts_used, model.experts) if is_expert else (1, 1)

    def read(tokens: int) -> int:
        return round(size * (1 - (1 - used / every) ** tokens)) if used < every else size

    return Part(
        name=name,
        bytes=size,
        step_bytes=read(request.slots),
        batch_bytes=tuple(read(batch.tokens) for batch in batches),
        batch_flops=tuple(2 * values * used * batch.tokens // every for batch in batches),
    )


def _output(layer: ModelLayer, batches: Sequence[MicroBatch]) -> Layer:
    """Of a prompt, only the last token's logits are computed: one in each batch."""
    values = sum(tensor.values for tensor in layer.tensors)
    part = Part(
        bytes=layer.bytes,
        step_bytes=layer.bytes,
        batch_bytes=(layer.bytes,) * len(batches),
        batch_flops=(2 * values,) * len(batches),
    )
    return Layer(name=layer.name, fixed=part)


def _device(
    device: MachineDevice, model: LanguageModel, sizes: Sequence[int], compute: Mapping[tuple[str, int], int] | None
) -> Device:
    def buffers(size: int) -> int:
        if compute is not None and (device.name, size) in compute:
            return compute[device.name, size]
        if device.compute is not None:
            return device.compute * max(1, size // sizes[0])
        return estimated_compute(model, size)

    return Device(
        name=device.name,
        capacity=device.free,
        margin=device.margin,
        compute_bytes=tuple(map(buffers, sizes)),
        weight_rate=device.weight_rate or UNKNOWN_RATE,
        cache_rate=device.cache_rate or UNKNOWN_RATE,
        compute_rate=device.compute_rate or UNKNOWN_RATE,
        link_rate=device.link_rate,
        link_ps=device.link_ps,
        layer_ps=device.layer_ps,
        copies_weights=device.copies_weights,
    )


def estimated_compute(model: LanguageModel, micro_batch: int) -> int:
    """Bytes that are set aside for intermediate results where they were not measured."""
    return ESTIMATED_BYTES + micro_batch * 4 * (ESTIMATED_ROWS * model.embedding + model.vocabulary)
