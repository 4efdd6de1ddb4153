"""What a run of a node of an ATen graph costs: floating-point operations, and bytes moved.

Formulas of operations are those of ``torch.utils.flop_counter``. Attention kernels that it does not know count as the two
matrix products of their forward pass, and as the five of their backward pass.
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

#: Floating-point operations that run while a byte moves, by the type of device; else element-wise operators would cost nothing.
FLOPS_PER_BYTE = {"cpu": 5}
OTHER_FLOPS_PER_BYTE = 100

#: Losses that leave the storage of all terms under the number that they return: kernels of torch 2.13 on a CPU, measured.
_KEEP_TERMS = frozenset(f"aten.{name}" for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"))

_FORMULAS: Any = flop_counter

#: Sizes of symbols, in place of those that the model was traced with.
SIZES: ContextVar[dict[Any, int] | None] = ContextVar("SIZES", default=None)


def whole(number: Any) -> int:
    """A size; of a symbolic one the size that the model was traced with.

    Raises
    ------
    UnsupportedError
        Nothing is known of it before the program runs.
    """
    if isinstance(number, int):
        return number
    if symbols := SIZES.get():
        known = number.node.expr.xreplace(symbols)
        # Bytes of the storage under an input that is a view may be a symbol of their own.
        if not getattr(known, "free_symbols", ()):
            return int(known)
    hint = getattr(getattr(number, "node", None), "hint", None)
    if not isinstance(hint, int | float):
        raise UnsupportedError(f"found a size that depends on data, {number}")
    return int(hint)


def shape(tensor: Any) -> tuple[int, ...]:
    """Sizes of a tensor."""
    return tuple(whole(size) for size in tensor.shape)


def storage_bytes(tensor: Any) -> int:
    """Bytes of the storage that a tensor has, or is a view of."""
    try:
        return whole(tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return tensor_bytes(tensor)


def tensor_bytes(tensor: Any) -> int:
    """Bytes of a tensor's elements."""
    return prod(shape(tensor)) * int(tensor.element_size())


def written_bytes(node: Any) -> int:
    """Bytes of the storage under the one tensor that a node returns."""
    value = node.meta["val"]
    if value.dim() == 0 and str(getattr(node.target, "overloadpacket", "")) in _KEEP_TERMS:
        return tensor_bytes(node.args[0].meta["val"])
    return storage_bytes(value)


def moved_bytes(node: Any) -> int:
    """Bytes that a node reads and writes, each of its tensors once."""
    tensors = [tensor for used in (*node.all_input_nodes, node) for tensor in tensors_of(used.meta.get("val"))]
    return sum(map(tensor_bytes, tensors))


def flops(node: Any) -> int:
    """Floating-point operations of a run; 0 where nothing is known."""
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
    is_backward = "backward" in str(node.target)
    four = [tuple(argument.shape) for argument in args if isinstance(argument, torch.Tensor) and argument.dim() == 4]
    if is_backward:
        return int(_FORMULAS.sdpa_backward_flop_count(*four[:4]))
    return int(_FORMULAS.sdpa_flop_count(*four[:3]))


def _plain(value: Any) -> Any:
    """An argument or a value with tensors of known sizes in place of nodes."""
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
    # Lists of a graph are of a type of their own.
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value)) if isinstance(value, tuple) else [*map(_plain, value)]
    return value


def cost(node: Any, operations: int) -> int:
    """Of a run, in floating-point operations: its own, and as many as take the time that its bytes take."""
    device = next((tensor.device.type for tensor in tensors_of(node.meta.get("val"))), "cpu")
    return operations + FLOPS_PER_BYTE.get(device, OTHER_FLOPS_PER_BYTE) * moved_bytes(node)


def costs(nodes: Sequence[Any], flops: Sequence[int], _: Sequence[bool]) -> list[int]:
    """Of each of several nodes."""
    return [cost(node, operations) for node, operations in zip(nodes, flops, strict=True)]
