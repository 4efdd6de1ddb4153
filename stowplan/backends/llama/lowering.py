"""Makes a problem of LLM placement from a model, a machine and a request.

The problem asks which layers of the model are on which device, so that the request takes as little time as possible. Parts of a
layer may be *spilled*: they stay on the host, the CPU with its RAM, although the rest of the layer is on a device.

A *step of generation* computes one token for every slot, that is, for each of the sequences that are generated side by side. It
reads all weights of a layer once, and the cache of all earlier tokens. In a layer with a mixture of experts, each token uses
``experts_used`` of ``experts``, which are assumed to be drawn at random. The step reads each expert that at least one sequence
has drawn; the problem has the expected number of these experts. A prompt is computed in *micro-batches*: groups of tokens that
are computed at once. Each of them takes as long as reading the weights once or as the arithmetic, whichever is longer (the
roofline model, Williams et al. 2009). The file that describes the devices of a machine is the *machine file*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from stowplan.arguments import whole
from stowplan.backends.llama.machine import Machine, MachineDevice
from stowplan.backends.llama.model import Context, LanguageModel, ModelLayer, cache_bytes, read_bytes, spilled_parts
from stowplan.errors import UsageError
from stowplan.frontends.gguf import Tensor
from stowplan.models.llm_placement.problem import Device, Layer, MicroBatch, Part, Problem

#: Sizes of micro-batches (``-ub`` of llama.cpp) in tokens among which a plan chooses; llama.cpp's default is the first.
MICRO_BATCHES = (512, 1024, 2048, 4096)

#: Assumed sizes of buffers of intermediate results that were not measured. For each token of a micro-batch, the first number of
#: rows of activations and one row of logits are set aside, all in 32-bit floats. The second number of bytes is added once.
ESTIMATED_ROWS, ESTIMATED_BYTES = 40, 128 << 20

#: Rate of a device whose speeds are not known, in bytes or operations per second. It is the same for all devices, so placements
#: are not distinguished by the speeds of devices.
UNKNOWN_RATE = 10**9


@dataclass(frozen=True)
class Request:
    """A request, in which every slot computes one prompt and generates one answer."""

    context: int
    """Number of tokens for which the caches of all slots together have room."""
    prompt: int
    """Number of tokens of a prompt."""
    generate: int
    """Number of tokens of an answer."""
    slots: int = 1
    """Number of sequences that are generated side by side."""
    key_type: str = "f16"
    """Type of keys in the cache, as ``-ctk`` takes it."""
    value_type: str = "f16"
    """Type of values in the cache, as ``-ctv`` takes it."""

    def check(self, model: LanguageModel) -> None:
        """Raise UsageError if a slot has room for fewer tokens than its prompt and its answer have.

        It is also raised if a slot has room for more tokens than the model was trained with, or if a number is too small. The
        slots and the context must be 1 or more, and the prompt and the answer 0 or more.
        """
        whole("{} slots", self.slots, least=1)
        whole("a context of {} tokens", self.context, least=1)
        whole("a prompt of {} tokens", self.prompt, least=0)
        whole("an answer of {} tokens", self.generate, least=0)
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
    """Returns the problem of placing a model on a machine for a request.

    Parameters
    ----------
    micro_batches
        Sizes of micro-batches in tokens among which the plan chooses, llama.cpp's default first, in increasing order. A size is
        left out if the size before it is at least as large as the prompt.
    compute
        Measured bytes of buffers of intermediate results, by the name of the device and the size of the micro-batch in tokens.
        For a device that is missing, the bytes are taken from the machine file, or are estimated.

    Raises
    ------
    UsageError
        See :meth:`Request.check`.
    """
    request.check(model)
    sizes = [size for at, size in enumerate(micro_batches) if at == 0 or micro_batches[at - 1] < request.prompt]
    # All slots have a prompt, so that the batches have the tokens of all of them.
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
    """Divides a prompt of ``prompt`` tokens into micro-batches of at most ``size`` tokens, as equal as possible.

    Without a prompt (0 tokens) there is no micro-batch.
    """
    batches = -(-prompt // size)
    return MicroBatch(size=size, tokens=-(-prompt // batches) if batches else 0, batches=batches)


def _layer(model: LanguageModel, layer: ModelLayer, request: Request, batches: Sequence[MicroBatch]) -> Layer:
    """Returns a repeated layer as a layer of the problem, for these choices of micro-batches."""
    context = Context(request.context, request.slots, key_type=request.key_type, value_type=request.value_type)
    spilled = spilled_parts(layer, model.experts)
    spillable_names = {tensor.name for tensors in spilled.values() for tensor in tensors}
    fixed_tensors = [tensor for tensor in layer.tensors if tensor.name not in spillable_names]
    # The cache of a layer with a window grows with the micro-batch, so that room for the largest one is set aside.
    largest = max(batch.size for batch in batches)
    fixed_part = _part(model, "", fixed_tensors, request, batches, False)
    # A recurrent state is read and written at the rate of weights, once for each sequence.
    state = 2 * layer.cache.state_bytes * request.slots
    fixed_part = msgspec.structs.replace(fixed_part, step_bytes=fixed_part.step_bytes + state)
    return Layer(
        name=layer.name,
        fixed=fixed_part,
        spillable=tuple(
            _part(model, name, tensors, request, batches, bool(model.experts)) for name, tensors in spilled.items()
        ),
        cache_bytes=cache_bytes(layer, replace(context, micro_batch=largest)),
        step_cache_bytes=request.slots * _mean_read(layer, context, request.prompt, request.generate),
        batch_cache_bytes=tuple(read_bytes(layer, context, request.prompt // 2) for _ in batches),
        batch_cache_flops=tuple(layer.attention_flops * batch.tokens * (request.prompt // 2) for batch in batches),
    )


def _mean_read(layer: ModelLayer, context: Context, prompt: int, generate: int) -> int:
    """Returns how many bytes of its cache a layer reads for one sequence in a step, in the mean over the steps of an answer."""
    window = layer.cache.window
    if not window or prompt + generate <= window:
        return read_bytes(layer, context, prompt + generate // 2)
    growing = max(0, window - prompt)
    mean = (growing * (prompt + growing // 2) + (generate - growing) * window) // max(1, generate)
    return read_bytes(layer, context, mean)


def _part(
    model: LanguageModel, name: str, tensors: Sequence[Tensor], request: Request, batches: Sequence[MicroBatch], is_expert: bool
) -> Part:
    """Returns the part of a layer that consists of these tensors.

    ``is_expert`` says whether they hold experts. Then only the experts that at least one token uses are read.
    """
    size, values = sum(tensor.bytes for tensor in tensors), sum(tensor.values for tensor in tensors)
    used, every = (model.experts_used, model.experts) if is_expert else (1, 1)

    def read(tokens: int) -> int:
        """Returns the expected bytes of the experts that at least one of this many tokens chooses."""
        return round(size * (1 - (1 - used / every) ** tokens)) if used < every else size

    return Part(
        name=name,
        bytes=size,
        step_bytes=read(request.slots),
        batch_bytes=tuple(read(batch.tokens) for batch in batches),
        batch_flops=tuple(2 * values * used * batch.tokens // every for batch in batches),
    )


def _output(layer: ModelLayer, batches: Sequence[MicroBatch]) -> Layer:
    """Returns the output layer of the problem.

    It computes logits only for the last token of a micro-batch, so that it does the work of one token for each micro-batch.
    """
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
    """Returns a device, or the host, as a device of the problem; ``sizes`` are the sizes of micro-batches in tokens."""

    def buffers(size: int) -> int:
        """Returns the bytes of buffers of intermediate results for micro-batches of this size.

        They are measured, taken from the machine file, or estimated.
        """
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
    """Returns the bytes that are set aside on a device for intermediate results if they were not measured.

    ``micro_batch`` is the number of tokens that are computed at once.
    """
    return ESTIMATED_BYTES + micro_batch * 4 * (ESTIMATED_ROWS * model.embedding + model.vocabulary)
