"""What a run of a node of an ATen graph costs: floating-point operations, and bytes moved.

Formulas of operations are those of ``torch.utils.flop_counter``. Attention kernels that it does not know count as the two matrix
products of their forward pass, and as the five of their backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils._pytree import tree_leaves, tree_map_only

from stowplan.backends.torch.errors import UnsupportedError
from stowplan.frontends.torch_program import values

#: Floating-point operations that run while a byte moves, by the type of device; else element-wise operators would cost nothing.
FLOPS_PER_BYTE = {"cpu": 5}
OTHER_FLOPS_PER_BYTE = 100


def whole(number: Any) -> int:
    """A size; of a symbolic one the size that the model was traced with.

    Raises
    ------
    UnsupportedError
        Nothing is known of it before the program runs.
    """
    if isinstance(number, int):
        return number
    hint = getattr(getattr(number, "node", None), "hint", None)
    if not isinstance(hint, int | float):
        raise UnsupportedError(f"found a size that depends on data, {number}")
    return int(hint)


def shape(tensor: Any) -> tuple[int, ...]:
    """Sizes of a tensor."""
    return tuple(whole(each) for each in tensor.shape)


def storage_bytes(tensor: Any) -> int:
    """Bytes of the storage that a tensor has, or is a view of."""
    try:
        return whole(tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return prod(shape(tensor)) * int(tensor.element_size())


def moved_bytes(node: Any) -> int:
    """Bytes that a node reads and writes, each of its tensors once."""
    tensors = [each for used in node.all_input_nodes for each in values(used)] + values(node)
    return sum(prod(shape(each)) * int(each.element_size()) for each in tensors if isinstance(each, torch.Tensor))


def flops(node: Any) -> int:
    """Floating-point operations of a run; 0 where nothing is known."""
    packet = getattr(node.target, "overloadpacket", node.target)
    formula = flop_counter.flop_registry.get(packet)
    args, kwargs = _plain((node.args, node.kwargs))
    out = _plain_values(node.meta.get("val"))
    try:
        if formula is not None:
            return int(formula(*args, **kwargs, out_val=out))
        if "attention" in str(packet):
            return _attention(node, args)
    except (AssertionError, TypeError, ValueError, IndexError, AttributeError):
        return 0
    return 0


def _attention(node: Any, args: Any) -> int:
    is_backward = "backward" in str(node.target)
    four = [tuple(each.shape) for each in args if isinstance(each, torch.Tensor) and each.dim() == 4]
    if is_backward:
        return int(flop_counter.sdpa_backward_flop_count(*four[:4]))
    return int(flop_counter.sdpa_flop_count(*four[:3]))


def _plain(arguments: Any) -> Any:
    """Arguments with tensors of known sizes, without data, in place of nodes."""
    return tree_map_only(torch.fx.Node, lambda each: _plain_values(each.meta.get("val")), _unfrozen(arguments))


def _plain_values(value: Any) -> Any:
    value = tree_map_only(torch.Tensor, lambda each: torch.empty(shape(each), dtype=each.dtype, device="meta"), value)
    return tree_map_only((torch.SymInt, torch.SymFloat), whole, value)


def _unfrozen(value: Any) -> Any:
    # Lists of a graph are immutable ones of its own, which tree_map need not know.
    if isinstance(value, dict):
        return {key: _unfrozen(each) for key, each in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_unfrozen(each) for each in value) if isinstance(value, tuple) else [_unfrozen(e) for e in value]
    return value


def cost(node: Any) -> int:
    """Of a run, in floating-point operations: those of the formula, and as many as take the time that its bytes take."""
    device = next((each.device.type for each in tensors_of(node.meta.get("val"))), "cpu")
    return flops(node) + FLOPS_PER_BYTE.get(device, OTHER_FLOPS_PER_BYTE) * moved_bytes(node)


def tensors_of(value: Any) -> Iterable[Any]:
    """All tensors of an argument or result."""
    return (each for each in tree_leaves(value) if isinstance(each, torch.Tensor))
