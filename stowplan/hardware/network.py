"""A neural network, as front ends return it: its layers in the order in which they run, without a target or costs.

A layer is what the hardware runs as one operation: for example, a convolution or matrix product with the operations fused into
it. It reads its weights, the outputs of earlier layers and perhaps network inputs; it writes one output activation. Sizes are
counted in elements. :mod:`stowplan.hardware.nnp_i` turns elements into bytes and a network into a tier-placement problem.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

import msgspec

from stowplan.checks import expect
from stowplan.errors import InputError

#: Types in which weights and activations may be stored.
Precision = Literal["int8", "fp16"]

#: Bytes of one element in each precision.
ELEMENT_BYTES: dict[Precision, int] = {"int8": 1, "fp16": 2}

#: Kinds of operations, in the order of their numbers (``op_id`` in table 1 of Khadka et al., ICLR 2021). A new kind must be
#: added at the end, so that the numbers of the others stay the same. ``fc`` and ``matmul_w`` are products with a weight matrix:
#: readers use ``fc`` in networks with convolutions, and ``matmul_w`` in transformers.
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

#: All sizes and counts must be less than this, so that sums over a network fit in 64 bits.
LIMIT = 1 << 48

#: Extents (x, y, z) of a feature map; z counts channels or features.
Shape = tuple[int, int, int]


#: The names in layer files of fields that have other names there.
_IN_FILES = {
    "input_shape": "ifm",
    "output_shape": "ofm",
    "input_elements": "ifm_elems",
    "output_elements": "ofm_elems",
    "weight_elements": "weight_elems",
    "weight_read_elements": "gather_elems",
}


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename=_IN_FILES):
    """A layer without the numbers of the layers that it reads.

    Numbers of elements and of operations are those for the whole batch. ``groups``, ``kernel_x``, ``kernel_y``, ``stride``,
    ``pad`` and ``dilation`` are parameters of convolutions and pools, and are 0 if the operation does not have the parameter.
    """

    op: str
    """One of :data:`OPS`."""
    name: str
    """Name of the layer, for people."""
    output_shape: Shape
    """Extents of the output activation for one element of the batch."""
    output_elements: int
    """Elements of the output activation: the product of ``output_shape`` and ``batch``."""
    input_shape: Shape = (0, 0, 0)
    """Extents of the first input."""
    input_elements: int = 0
    """Elements of all inputs together, including network inputs."""
    weight_elements: int = 0
    """Elements of all constants that are stored for the layer: kernels, biases, scales, tables."""
    weight_read_elements: int | None = None
    """Elements of these constants that one inference reads; None for all. An embedding, for example, reads a few rows of its
    table."""
    macs: int = 0
    """Number of multiply-accumulate operations."""
    groups: int = 0
    """Number of groups of channels that a convolution computes independently of each other."""
    kernel_x: int = 0
    """Extent of the kernel or window along x."""
    kernel_y: int = 0
    """Extent of the kernel or window along y."""
    stride: int = 0
    """Distance between neighbouring positions of the kernel or window along x."""
    pad: int = 0
    """Elements of padding at one side of the input along x."""
    dilation: int = 0
    """Distance between neighbouring elements of the kernel along x."""
    batch: int = 1
    """Number of inputs that one inference computes together."""
    fused: tuple[str, ...] = ()
    """Operations fused into the layer; they are only shown to people."""

    @property
    def weights_read(self) -> int:
        """Elements of the weights that one inference reads."""
        return self.weight_elements if self.weight_read_elements is None else self.weight_read_elements


class Layer(Operation, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One layer of a network, with the numbers of the layers that it reads."""

    inputs: tuple[int, ...]
    """Numbers of the layers whose output activations it reads, ascending and distinct. All are less than its own number, which
    is its position in ``Network.layers``."""


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """Layers in the order in which they run, which is topological. Construction raises InputError if a layer breaks a rule."""

    name: str
    """Name of the network."""
    layers: tuple[Layer, ...]
    """The layers; each comes after those whose outputs it reads."""
    notes: tuple[str, ...] = ()
    """Remarks for people about parts of the model that the front end had to approximate."""

    def __post_init__(self) -> None:
        expect(bool(self.layers), "layers", "no layers", "at least one")
        for number, layer in enumerate(self.layers):
            _check(layer, f"layers[{number}] ({layer.name})", number, self.layers)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each layer, the numbers of the layers that read its output, ascending."""
        readers: list[list[int]] = [[] for _ in self.layers]
        for number, layer in enumerate(self.layers):
            for source in layer.inputs:
                readers[source].append(number)
        return tuple(map(tuple, readers))

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (producer, reader) of layer numbers, one for every activation that a layer reads from another layer."""
        return tuple((source, number) for number, layer in enumerate(self.layers) for source in layer.inputs)

    @cached_property
    def external_elements(self) -> tuple[int, ...]:
        """For each layer, the number of elements that it reads from inputs of the network."""
        return tuple(
            layer.input_elements - sum(self.layers[source].output_elements for source in layer.inputs) for layer in self.layers
        )

    @property
    def macs(self) -> int:
        """Number of multiply-accumulate operations of one inference."""
        return sum(layer.macs for layer in self.layers)

    @property
    def weight_elements(self) -> int:
        """Number of elements of all weights."""
        return sum(layer.weight_elements for layer in self.layers)


#: Fields of an :class:`Operation` that are counts, so that they may not be negative.
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
    """Raises InputError, with ``place``, if the layer with this number breaks a rule."""
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
