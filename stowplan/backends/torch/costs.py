"""Cost of running a node of an ATen graph: its floating-point operations, and the bytes that it moves.

The numbers of operations are those of ``torch.utils.flop_counter``. Attention kernels that it does not know count as two matrix
products in the forward pass, and as five in the backward pass. All functions raise UnsupportedError for a size that depends on
data (:func:`whole`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from math import prod
from typing import Any

import torch
from torch.utils import flop_counter

from stowplan.backends.fallback import UnsupportedError
from stowplan.frontends.torch_program import tensors_of

#: How many floating-point operations take as long as moving one byte, by the type of device; ``OTHER_FLOPS_PER_BYTE`` for all
#: types that are not listed. Without this, element-wise operators would cost nothing.
FLOPS_PER_BYTE = {"cpu": 5}
OTHER_FLOPS_PER_BYTE = 100

#: Losses that return a scalar whose storage has room for one value per element of the input, as measured with torch 2.13 on a
#: CPU.
_KEEP_TERMS = frozenset(f"aten.{name}" for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"))

_FORMULAS: Any = flop_counter

#: Values of symbolic sizes, by symbol, that replace the values with which the model was traced; None to replace none.
SIZES: ContextVar[dict[Any, int] | None] = ContextVar("SIZES", default=None)


def whole(number: Any) -> int:
    """Returns a size as an integer.

    For a symbolic size, this is its value in :data:`SIZES`, or the value with which the model was traced.

    Raises
    ------
    UnsupportedError
        The size depends on data, so that it is not known before the program runs.
    """
    if isinstance(number, int):
        return number
    if symbols := SIZES.get():
        value = number.node.expr.xreplace(symbols)
        # The size of the storage under an input that is a view may be a separate symbol, which has no value in SIZES.
        if not getattr(value, "free_symbols", ()):
            return int(value)
    hint = getattr(getattr(number, "node", None), "hint", None)
    if not isinstance(hint, int | float):
        raise UnsupportedError(f"found a size that depends on data, {number}")
    return int(hint)


def shape(tensor: Any) -> tuple[int, ...]:
    """Returns the sizes of a tensor as integers."""
    return tuple(whole(size) for size in tensor.shape)


def storage_bytes(tensor: Any) -> int:
    """Returns the bytes of a tensor's storage; if the tensor is a view, this is the storage of its base.

    For a tensor without a storage, the bytes of its elements are returned.
    """
    try:
        return whole(tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return tensor_bytes(tensor)


def tensor_bytes(tensor: Any) -> int:
    """Returns the bytes of a tensor's elements."""
    return prod(shape(tensor)) * int(tensor.element_size())


def written_bytes(node: Any) -> int:
    """Returns the bytes of the storage of the tensor that a node returns; the node must return a single tensor."""
    value = node.meta["val"]
    if value.dim() == 0 and str(getattr(node.target, "overloadpacket", "")) in _KEEP_TERMS:
        return tensor_bytes(node.args[0].meta["val"])
    return storage_bytes(value)


def moved_bytes(node: Any) -> int:
    """Returns the bytes that a node reads and writes; each of its tensors counts once."""
    tensors = [tensor for used in (*node.all_input_nodes, node) for tensor in tensors_of(used.meta.get("val"))]
    return sum(map(tensor_bytes, tensors))


def flops(node: Any) -> int:
    """Returns the number of floating-point operations of running a node once.

    The number is 0 if there is no formula for its operator, or if the formula does not accept the arguments.
    """
    packet = getattr(node.target, "overloadpacket", node.target)
    formula = flop_counter.flop_registry.get(packet)
    if formula is None and "attention" not in str(packet):
        return 0
    args, kwargs = _plain((node.args, node.kwargs))
    try:
        return _attention(node, args) if formula is None else int(formula(*args, **kwargs, out_val=_plain(node.meta["val"])))
    except (AssertionError, TypeError, ValueError, IndexError, AttributeError):
        return 0


def _attention(node: Any, args: Any) -> int:
    """Returns the number of floating-point operations of an attention kernel that torch has no formula for."""
    is_backward = "backward" in str(node.target)
    # Query, key and value, and before them the gradient of the result in a backward kernel, have four dimensions.
    shapes = [tuple(argument.shape) for argument in args if isinstance(argument, torch.Tensor) and argument.dim() == 4]
    if is_backward:
        return int(_FORMULAS.sdpa_backward_flop_count(*shapes[:4]))
    return int(_FORMULAS.sdpa_flop_count(*shapes[:3]))


def _plain(value: Any) -> Any:
    """Returns an argument with tensors instead of nodes, and with integers instead of symbolic sizes."""
    if isinstance(value, torch.fx.Node):
        return _plain(value.meta.get("val"))
    if isinstance(value, torch.Tensor):
        if all(type(size) is int for size in value.shape):
            return value
        return torch.empty(shape(value), dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return whole(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    # Lists in a graph have a type of torch's own, which is replaced by ``list``.
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value)) if isinstance(value, tuple) else [*map(_plain, value)]
    return value


def cost(node: Any, operations: int) -> int:
    """Returns the cost of running a node once.

    It is the number of its floating-point operations, plus the number of operations that take as long as moving its bytes.

    ``operations`` is the number of its floating-point operations.
    """
    device = next((tensor.device.type for tensor in tensors_of(node.meta.get("val"))), "cpu")
    return operations + FLOPS_PER_BYTE.get(device, OTHER_FLOPS_PER_BYTE) * moved_bytes(node)


def costs(nodes: Sequence[Any], flops: Sequence[int], _: Sequence[bool]) -> list[int]:
    """Returns the cost of running each of several nodes once, as :func:`cost` defines it. This is the default cost function.

    ``flops`` has the number of floating-point operations of each node; the third argument is not used.
    """
    return [cost(node, operations) for node, operations in zip(nodes, flops, strict=True)]
