"""Costs in time: operators' picoseconds by peak rates of a device, or measured, each kind of operator on its own.

By rates an operator takes as long as its arithmetic or its bytes, whichever takes longer. Measured are operators that may run
again, on made-up tensors of their inputs' shapes: no more is there at once than while the operator runs in the model. Random
numbers are not drawn and nothing of the model is touched.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from stowplan.backends.torch.costs import cost, moved_bytes, shape, whole
from stowplan.backends.torch.devices import Device
from stowplan.backends.torch.private import no_dispatch, tree_map
from stowplan.frontends.torch_program import tensors_of
from stowplan.hardware.targets.toml_files import PS_PER_SECOND, duration_ps

#: Runs of an operator that are measured together, since a device may run behind the program; how often; and seconds at most.
RUNS, TIMES, MOST_SECONDS = 4, 3, 0.05


class Rates:
    """Prices by the rates of a device."""

    def __init__(self, device: Device):
        self.device = device

    def __call__(self, nodes: Sequence[Any], flops: Sequence[int], _: Sequence[bool]) -> list[int]:
        """Picoseconds of each node."""
        return [self._price(node, operations) for node, operations in zip(nodes, flops, strict=True)]

    def _price(self, node: Any, operations: int) -> int:
        tensors = [tensor for used in (*node.all_input_nodes, node) for tensor in tensors_of(used.meta.get("val"))]
        kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.is_floating_point()]
        if kinds[:1] == ["float32"] and torch.get_float32_matmul_precision() != "highest" and "tf32" in self.device.compute:
            kinds = ["tf32"]
        rates = self.device.compute
        rate = next((rates[kind] for kind in kinds[:1] if kind in rates), min(rates.values()))
        return max(duration_ps(operations, rate), duration_ps(moved_bytes(node), self.device.bandwidth))


class Measured:
    """Prices by measurement; kinds of operators are measured once.

    Parameters
    ----------
    seconds
        Of measuring for each graph. What there is no time for, or cannot run on its own, costs as many as its floating-point
        operations and bytes, by what those of the others were measured to take.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.known: dict[Any, int | None] = {}
        """Picoseconds; None where it failed."""

    def __call__(self, nodes: Sequence[Any], flops: Sequence[int], is_fixed: Sequence[bool]) -> list[int]:
        """Picoseconds of each node; of those that are fixed an estimate."""
        until = time.monotonic() + self.seconds
        measured: list[int | None] = []
        for node, fixed in zip(nodes, is_fixed, strict=True):
            key = _kind(node)
            if not fixed and key not in self.known and time.monotonic() < until:
                self.known[key] = _measured(node)
            measured.append(None if fixed else self.known.get(key))
        estimates = [cost(node, operations) for node, operations in zip(nodes, flops, strict=True)]
        known = [(ps, estimate) for ps, estimate in zip(measured, estimates, strict=True) if ps is not None]
        scale = sum(ps for ps, _ in known), sum(estimate for _, estimate in known)
        if not scale[1]:
            scale = 1, 1
        return [estimate * scale[0] // scale[1] if ps is None else ps for ps, estimate in zip(measured, estimates, strict=True)]


def _kind(node: Any) -> str:
    """What tells operators apart that take as long: the operator, and its arguments with shapes in place of tensors."""

    def described(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return described(value.meta.get("val"))
        if isinstance(value, torch.Tensor):
            return shape(value), tuple(map(whole, value.stride())), str(value.dtype), str(value.device)
        return whole(value) if isinstance(value, torch.SymInt | torch.SymFloat) else value

    return str((str(node.target), tree_map(described, (tuple(node.args), dict(node.kwargs)))))


def _measured(node: Any) -> int | None:
    """Picoseconds of a run, the least of several; None where it does not run on its own."""
    try:
        with no_dispatch(), torch.no_grad():
            args, kwargs = tree_map(_made, (tuple(node.args), dict(node.kwargs)))
            devices = {tensor.device.type for tensor in tensors_of(node.meta.get("val"))}
            wait: Any = torch.accelerator.synchronize if devices - {"cpu", "meta"} else lambda: None
            run: Any = node.target
            run(*args, **kwargs)
            wait()
            least, until = float("inf"), time.perf_counter() + MOST_SECONDS
            for _ in range(TIMES):
                began = time.perf_counter()
                for _ in range(RUNS):
                    run(*args, **kwargs)
                wait()
                now = time.perf_counter()
                least = min(least, (now - began) / RUNS)
                if now > until:
                    break
    except Exception:  # whatever an operator needs that is not there, its price is an estimate
        return None
    return max(1, int(least * PS_PER_SECOND))


def _made(value: Any) -> Any:
    """An argument of an operator, with a made-up tensor in place of a node: ones, and zeros where they may be indices."""
    if isinstance(value, torch.fx.Node):
        return _made(value.meta.get("val"))
    if isinstance(value, torch.Tensor):
        sizes, strides = shape(value), tuple(map(whole, value.stride()))
        length = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if 0 not in sizes else 0
        elements = torch.full((length,), int(value.is_floating_point()), dtype=value.dtype, device=value.device)
        return elements.as_strided(sizes, strides)
    return whole(value) if isinstance(value, torch.SymInt | torch.SymFloat) else value
