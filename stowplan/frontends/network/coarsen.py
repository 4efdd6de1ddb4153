"""Merges a framework's operators into layers, the units that the hardware runs and whose tensors are placed.

There are two granularities. ``layer`` is for networks of convolutions: views cost nothing, and a convolution or matrix product
is merged with the batch norm, bias, activation and residual addition after it. ``fine`` is for transformers, in which views and
transposes move data on such hardware: every operator is a layer. ``auto`` chooses ``layer`` if there is a convolution,
otherwise ``fine``. These rules give the numbers of layers of the EGRL paper (Khadka et al., ICLR 2021, section 4): 57 for
ResNet-50, 108 for ResNet-101, 376 for BERT.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from stowplan.errors import InputError, UsageError
from stowplan.hardware.network import Layer, Network

#: Operation that only changes the view of a value: its readers read the original value.
FREE = "free"

#: Size of each dimension of a tensor.
Dims = tuple[int, ...]


class Window(msgspec.Struct, frozen=True):
    """The window that slides over a feature map: the kernel of a convolution or of a pool.

    The fields are those of :class:`stowplan.hardware.network.Operation` with the same names. All are 0 for an operation without
    a window.
    """

    groups: int = 0
    kernel_x: int = 0
    kernel_y: int = 0
    stride: int = 0
    pad: int = 0
    dilation: int = 0


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operator with one output, which has the operator's name."""

    name: str
    """Name, which no other operation has."""
    op: str
    """One of :data:`stowplan.hardware.network.OPS`, or :data:`FREE`."""
    inputs: tuple[str, ...]
    """Values that it reads: inputs of the network and names of earlier operations, without weights."""
    shape: Dims
    """Shape of its output."""
    weights: int = 0
    """Number of elements of its weights."""
    gathered: int | None = None
    """Number of elements of the weights that it reads; None if it reads all of them."""
    macs: int = 0
    """Number of multiply-accumulate operations."""
    window: Window = Window()
    """The window, for convolutions and pools."""
    label: str = ""
    """The framework's name for the operator."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All operators of a model in the order in which they run."""

    name: str
    """Name of the network."""
    inputs: dict[str, Dims]
    """Shape of each input of the network."""
    integer_inputs: frozenset[str]
    """Inputs of integers or booleans, which are indices and masks rather than feature maps."""
    operations: tuple[Operation, ...]
    """The operators, each after those whose outputs it reads."""
    outputs: tuple[str, ...]
    """Names of the values that the network returns."""


def elements(shape: Dims) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)


def feature_map(shape: Dims) -> tuple[int, tuple[int, int, int]]:
    """Returns the batch size of a tensor, and its extents (x, y, z) with the channels or features as z.

    With the batch size n, the shape is ``[n, z, y, x]`` for convolutions, ``[n, x, z]`` for sequences of feature vectors, and
    ``[n, z]`` for single vectors. Further axes between channels and x count as y. A tensor with one dimension or none has the
    batch size 1, and all its elements count as features.
    """
    if len(shape) >= 4:
        return shape[0], (shape[-1], math.prod(shape[2:-1]), shape[1])
    if len(shape) == 3:
        return shape[0], (shape[1], 1, shape[2])
    if len(shape) == 2:
        return shape[0], (1, 1, shape[1])
    return 1, (1, 1, elements(shape))


#: How operators are merged into layers; the docstring of the module says what the words mean.
Granularity = Literal["auto", "layer", "fine"]

#: Operations into whose layers later operations are merged.
_ANCHORS = frozenset(("conv", "matmul_w", "matmul"))

#: Operations that can be merged into an earlier one: they compute one result for each element that they read.
_ELEMENTWISE = frozenset(
    ("batchnorm", "bias_add", "add", "mul", "activation", "gelu", "relu", "tanh", "sigmoid", "elementwise")
)

#: Operations that cost nothing with the granularity ``layer``: they only change the shape or the order of elements.
_VIEWS = frozenset(("view", "reshape", "transpose"))


@dataclass
class _Group:
    """A layer that is being assembled."""

    position: int
    """Index of its first operation among all operations."""
    operations: list[Operation]
    """The operations that are merged, in the order in which they run."""
    inputs: list[str] = field(default_factory=list)
    """Names of the values that it reads, each once."""

    @property
    def output(self) -> str:
        """Name of the value that it computes."""
        return self.operations[-1].name


def coarsen(trace: Trace, granularity: Granularity = "auto") -> Network:
    """Makes a network from a trace.

    Parameters
    ----------
    trace
        The operators.
    granularity
        ``layer``, ``fine`` or ``auto``, as the docstring of the module describes them.

    Raises
    ------
    InputError
        An operation reads a value that no earlier operation produces, no operation is left to run, or the network breaks a rule
        of :class:`~stowplan.hardware.network.Network`.
    UsageError
        The granularity is unknown.
    """
    if granularity not in ("auto", "layer", "fine"):
        raise UsageError(f"found granularity {granularity!r}, expected auto, layer or fine")
    if granularity == "auto":
        granularity = "layer" if any(operation.op == "conv" for operation in trace.operations) else "fine"
    steps, external, outputs = _simplify(trace, views_are_free=granularity == "layer")
    if not steps:
        raise InputError(f"found no operation to run in {trace.name!r}, expected at least one")
    steps = _merge_embeddings(steps, outputs)
    groups = _group(steps, outputs, fuse=granularity == "layer")
    return _network(trace, groups, external, rename_products=granularity == "layer")


def _simplify(trace: Trace, views_are_free: bool) -> tuple[list[Operation], dict[str, Dims], list[str]]:
    """Removes operations that are not needed or do not run on the device.

    Operations that read only indices and masks, and no weights, run on the host; their results count as values from outside of
    the device, like inputs of the network.

    Returns
    -------
    (list, dict, list)
        The remaining operations, which read only outputs of each other and values from outside; the values from outside with
        their shapes; and the names of the outputs.
    """
    source: dict[str, str] = {name: name for name in trace.inputs}
    external = dict(trace.inputs)
    host = set(trace.integer_inputs)
    operation_of: dict[str, Operation] = {}
    for operation in trace.operations:
        for name in operation.inputs:
            if name not in source:
                raise InputError(f"{operation.name} reads {name!r}, which nothing before it makes", place=operation.name)
        # Each value is listed once, because reading it twice costs no more than reading it once.
        inputs = tuple(dict.fromkeys(source[name] for name in operation.inputs))
        if not operation.weights and host.issuperset(inputs):
            host.add(operation.name)
            external[operation.name], source[operation.name] = operation.shape, operation.name
        elif operation.op == FREE or (views_are_free and operation.op in _VIEWS):
            source[operation.name] = inputs[0]
        else:
            source[operation.name] = operation.name
            operation_of[operation.name] = msgspec.structs.replace(operation, inputs=inputs)
    live: set[str] = set()
    outputs = [source[name] for name in trace.outputs if name in source]
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name in operation_of and name not in live:
            live.add(name)
            waiting.extend(operation_of[name].inputs)
    return [operation for name, operation in operation_of.items() if name in live], external, outputs


def _merge_embeddings(steps: list[Operation], outputs: list[str]) -> list[Operation]:
    """Merges embeddings that are only added to each other into one operation, a gather from several tables."""
    readers = _reader_counts(steps, outputs)
    merged: dict[str, Operation] = {}
    for step in steps:
        parts = [merged[name] for name in step.inputs if name in merged and merged[name].op == "embedding"]
        if step.op == "add" and parts and len(parts) == len(step.inputs) and all(readers[part.name] == 1 for part in parts):
            for part in parts:
                del merged[part.name]
            step = Operation(
                name=step.name,
                op="embedding",
                inputs=tuple(dict.fromkeys(name for part in parts for name in part.inputs)),
                shape=step.shape,
                weights=sum(part.weights for part in parts) + step.weights,
                gathered=sum(part.weights if part.gathered is None else part.gathered for part in parts) + step.weights,
                label="embedding",
            )
        merged[step.name] = step
    return list(merged.values())


def _group(steps: list[Operation], outputs: list[str], fuse: bool) -> list[_Group]:
    """Layers in the order of their first operations; ``fuse`` says whether operations are merged into earlier layers."""
    readers = _reader_counts(steps, outputs)
    group_of: dict[str, _Group] = {}
    groups: list[_Group] = []
    for position, step in enumerate(steps):
        host = _host_group(step, group_of, readers) if fuse else None
        if host is None:
            host = _Group(position, [step], list(step.inputs))
            groups.append(host)
        else:
            host.inputs.extend(name for name in step.inputs if name != host.output and name not in host.inputs)
            host.operations.append(step)
        group_of[step.name] = host
    return groups


def _host_group(operation: Operation, group_of: dict[str, _Group], readers: Counter[str]) -> _Group | None:
    """Finds the layer into which an operation can be merged; None if there is none.

    It is the layer that computes one of the operation's inputs, and the last of these layers. No other operation may read this
    input.
    """
    if operation.op not in _ELEMENTWISE:
        return None
    producers = [group_of[name] for name in operation.inputs if name in group_of]
    if not producers:
        return None
    latest = max(producers, key=lambda group: group.position)
    first = latest.operations[0]
    if readers[latest.output] != 1 or (first.op not in _ANCHORS and first.op not in _ELEMENTWISE):
        return None
    # An operation whose result is larger, such as a broadcast addition, would change the size of the layer's output.
    return latest if elements(operation.shape) == elements(latest.operations[-1].shape) else None


def _network(trace: Trace, groups: list[_Group], external: dict[str, Dims], rename_products: bool) -> Network:
    """The network of assembled layers.

    ``external`` has the shapes of values from outside. ``rename_products`` says whether products with a weight matrix are named
    ``fc`` instead of ``matmul_w``.
    """
    number = {group.output: index for index, group in enumerate(groups)}
    shapes = external | {operation.name: operation.shape for group in groups for operation in group.operations}
    layers = []
    for group in groups:
        first, last = group.operations[0], group.operations[-1]
        op = "fc" if rename_products and first.op == "matmul_w" else first.op
        batch, output_shape = feature_map(last.shape)
        layers.append(
            Layer(
                # Operations have different names (:func:`_simplify`), and each is in one layer.
                name=first.name,
                op=op,
                inputs=tuple(sorted(number[source] for source in group.inputs if source in number)),
                input_shape=feature_map(shapes[group.inputs[0]])[1] if group.inputs else (0, 0, 0),
                output_shape=output_shape,
                input_elements=sum(elements(shapes[source]) for source in group.inputs),
                output_elements=elements(last.shape),
                weight_elements=_weights(group.operations),
                weight_read_elements=first.gathered,
                macs=sum(operation.macs for operation in group.operations),
                **msgspec.structs.asdict(first.window),
                batch=batch,
                fused=tuple(operation.label or operation.op for operation in group.operations[1:]),
            )
        )
    unknown = dict.fromkeys(operation.label for group in groups for operation in group.operations if operation.op == "other")
    notes = tuple(f"{label} is not known here: it counts as moving its inputs and its output" for label in unknown)
    return Network(name=trace.name, layers=tuple(layers), notes=notes)


def _weights(operations: list[Operation]) -> int:
    """Number of elements of a layer's weights.

    The scales of a batch norm after a convolution or product are folded into the kernel. Its shifts, which are half of its
    weights, become the bias of the layer. They count only if the layer has no bias yet, because otherwise they are added to it.
    """
    total, has_bias = 0, False
    for operation in operations:
        if operation.op == "batchnorm" and operation is not operations[0] and operations[0].op in _ANCHORS:
            total += 0 if has_bias else operation.weights // 2
            has_bias = True
        else:
            total += operation.weights
            has_bias = has_bias or operation.op == "bias_add"
    return total


def _reader_counts(steps: Iterable[Operation], outputs: Iterable[str]) -> Counter[str]:
    """The number of readers of each value. The caller counts as a reader of the outputs of the network."""
    return Counter(name for step in steps for name in step.inputs) + Counter(outputs)
