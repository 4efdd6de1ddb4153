"""A neural network as front ends read it: operational layers in the order they run; no target, no element size, no costs.

A layer is what the hardware runs as one operation: a convolution or matrix product with whatever is fused into it. It reads
the outputs of earlier layers (and network inputs), and its weights; it writes one output activation. A target
(:mod:`stowplan.hardware.nnp_i`) turns elements into bytes and a network into a tier-placement problem.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

import msgspec

from stowplan.checks import expect
from stowplan.errors import InputError

Precision = Literal["int8", "fp16"]

#: Bytes of one element.
ELEMENT_BYTES: dict[Precision, int] = {"int8": 1, "fp16": 2}

#: Kinds of operation, in the order of their numbers (``op_id`` of the paper's table 1). New ones go to the end.
OPS = (
    "conv",
    "fc",
    "matmul",
    "matmul_w",
    "embedding",
    "layernorm",
    "batchnorm",
    "softmax",
    "maxpool",
    "avgpool",
    "add",
    "mul",
    "bias_add",
    "activation",
    "gelu",
    "relu",
    "tanh",
    "sigmoid",
    "view",
    "reshape",
    "transpose",
    "concat",
    "slice",
    "pad",
    "reduce",
    "elementwise",
    "gather",
    "resize",
    "other",
)

#: No size or count may reach this, so that sums over a network stay far within 64 bits.
LIMIT = 1 << 48

#: x, y and z (channels, features) of a feature map.
Shape = tuple[int, int, int]


#: Names of fields in layer files, where they are others.
_IN_FILES = {
    "input_shape": "ifm",
    "output_shape": "ofm",
    "input_elements": "ifm_elems",
    "output_elements": "ofm_elems",
    "weight_elements": "weight_elems",
    "weight_read_elements": "gather_elems",
}


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename=_IN_FILES):
    """A layer but for its inputs. Sizes are counts of elements, for the whole batch; 0 where there is nothing."""

    op: str
    """One of :data:`OPS`."""
    name: str
    output_shape: Shape
    output_elements: int
    input_shape: Shape = (0, 0, 0)
    """x, y, z of the first input."""
    input_elements: int = 0
    """Of all inputs together, network inputs included."""
    weight_elements: int = 0
    """Stored for it: kernels, biases, scales, tables."""
    weight_read_elements: int | None = None
    """Read of them in one inference, where that is not all: an embedding gathers a few rows of its table."""
    macs: int = 0
    """Multiply-accumulates."""
    groups: int = 0
    """Of a convolution, as the next five; 0 where the operation has none."""
    kernel_x: int = 0
    kernel_y: int = 0
    stride: int = 0
    pad: int = 0
    dilation: int = 0
    batch: int = 1
    fused: tuple[str, ...] = ()
    """Operations that run inside it, for people."""

    @property
    def weights_read(self) -> int:
        """Elements of the weights that one inference reads."""
        return self.weight_elements if self.weight_read_elements is None else self.weight_read_elements


class Layer(Operation, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One operational layer of a network."""

    inputs: tuple[int, ...]
    """Numbers of the layers whose output activations it reads: ascending, each once, each less than its own."""


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """Layers in topological order, which is the order they run in; construction raises InputError where a rule is broken."""

    name: str
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()
    """What the front end could not take literally, for people to read."""

    def __post_init__(self) -> None:
        expect(bool(self.layers), "layers", "no layers", "at least one")
        for number, layer in enumerate(self.layers):
            _check(layer, f"layers[{number}] ({layer.name})", number, self.layers)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the layers that read each layer's output, ascending."""
        readers: list[list[int]] = [[] for _ in self.layers]
        for number, layer in enumerate(self.layers):
            for source in layer.inputs:
                readers[source].append(number)
        return tuple(map(tuple, readers))

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """``(from, to)`` of every activation that a layer hands to another."""
        return tuple((source, number) for number, layer in enumerate(self.layers) for source in layer.inputs)

    @cached_property
    def external_elements(self) -> tuple[int, ...]:
        """Elements that each layer reads of network inputs, not of layers."""
        return tuple(
            layer.input_elements - sum(self.layers[source].output_elements for source in layer.inputs) for layer in self.layers
        )

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return sum(layer.macs for layer in self.layers)

    @property
    def weight_elements(self) -> int:
        """Elements of all weights."""
        return sum(layer.weight_elements for layer in self.layers)


#: Fields that are counts.
_COUNTS = (
    "input_elements",
    "output_elements",
    "weight_elements",
    "macs",
    "groups",
    "kernel_x",
    "kernel_y",
    "stride",
    "pad",
    "dilation",
)


def _check(layer: Layer, place: str, number: int, layers: tuple[Layer, ...]) -> None:
    """Raise InputError naming ``place`` where a layer breaks a rule."""
    expect(layer.op in OPS, place, f"op {layer.op!r}", f"one of {', '.join(OPS)}")
    counts = {
        **{name: getattr(layer, name) for name in _COUNTS},
        "weight_read_elements": layer.weights_read,
        **{f"input_shape[{axis}]": size for axis, size in enumerate(layer.input_shape)},
        **{f"output_shape[{axis}]": size for axis, size in enumerate(layer.output_shape)},
    }
    for field, count in counts.items():
        expect(0 <= count < LIMIT, place, f"{field} {count}", f"0 to {LIMIT - 1}")
    expect(1 <= layer.batch < LIMIT, place, f"batch {layer.batch}", f"1 to {LIMIT - 1}")
    if layer.weights_read and not layer.weight_elements:
        raise InputError(f"found {layer.weights_read} elements read of weights, expected weights", place=place)
    expect(layer.output_elements >= 1, place, "output_elements 0", "at least 1")
    if math.prod(layer.output_shape) * layer.batch != layer.output_elements:
        raise InputError(
            f"found {layer.output_elements} output elements, expected {' * '.join(map(str, layer.output_shape))}"
            f" * batch {layer.batch} of them",
            place=place,
        )
    before = -1
    for source in layer.inputs:
        expect(before < source, place, f"inputs {list(layer.inputs)}", "ascending layer numbers, each once")
        expect(source < number, place, f"input {source}", f"a layer before it (0 to {number - 1})")
        before = source
    read = sum(layers[source].output_elements for source in layer.inputs)
    expect(layer.input_elements >= read, place, f"{layer.input_elements} input elements", f"the {read} of its inputs or more")
