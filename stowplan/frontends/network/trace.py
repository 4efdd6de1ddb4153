"""A network operator by operator, as a framework writes it down: what the ONNX and PyTorch readers hand to :mod:`.coarsen`."""

from __future__ import annotations

import math

import msgspec

#: Changes only how a value is looked at: its readers read the value's source.
FREE = "free"

Dims = tuple[int, ...]


class Window(msgspec.Struct, frozen=True):
    """What slides over a feature map: a convolution's kernel, or a pool's."""

    groups: int = 0
    kernel_x: int = 0
    kernel_y: int = 0
    stride: int = 0
    pad: int = 0
    dilation: int = 0


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operator with one output, which goes by the operator's name."""

    name: str
    op: str
    """One of :data:`stowplan.hardware.network.OPS`, or :data:`FREE`."""
    inputs: tuple[str, ...]
    """Values it reads: network inputs and names of earlier operations; no weights."""
    shape: Dims
    """Of its output."""
    weights: int = 0
    """Elements of its weights."""
    gathered: int | None = None
    """Elements of the weights that it reads, where that is not all of them."""
    macs: int = 0
    window: Window = Window()
    label: str = ""
    """The framework's name for the operator."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All operators in the order they run."""

    name: str
    inputs: dict[str, Dims]
    """Shape of each network input."""
    integer_inputs: frozenset[str]
    """Network inputs of integers or booleans: indices and masks, not feature maps."""
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]


def elements(shape: Dims) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)


def feature_map(shape: Dims) -> tuple[int, tuple[int, int, int]]:
    """Batch, and (x, y, z): z are the channels or features.

    ``[n, z, y, x]`` as convolutions have it; ``[n, x, z]`` for a sequence of feature vectors; ``[n, z]`` for one vector each.
    Further axes between channels and x count as y.
    """
    if len(shape) >= 4:
        return shape[0], (shape[-1], math.prod(shape[2:-1]), shape[1])
    if len(shape) == 3:
        return shape[0], (shape[1], 1, shape[2])
    if len(shape) == 2:
        return shape[0], (1, 1, shape[1])
    return 1, (1, 1, elements(shape))
