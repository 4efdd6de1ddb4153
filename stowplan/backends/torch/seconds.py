"""Cost of operators in picoseconds, estimated from the peak rates of a device or measured for each kind of operator.

A *cost function* takes the nodes of operators and returns the cost of running each of them once
(:data:`~stowplan.backends.torch.reader.CostFunction`). The costs decide which values are recomputed in a backward pass.

The estimate is the time of an operator's arithmetic or of moving its bytes, whichever is longer (a roofline model). Only
operators that may run again are measured. They run on sample tensors with the shapes of their operands, so that no more memory
is needed than when the operator runs in the model. Measuring draws no random numbers and does not touch the model.
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

#: An operator is run ``RUNS`` times for each reading of the clock, because a device may run asynchronously. The clock is read
#: ``TIMES`` times, or until ``MOST_SECONDS`` have passed.
RUNS, TIMES, MOST_SECONDS = 4, 3, 0.05


class RateCosts:
    """A cost function that uses the peak rates of a device."""

    def __init__(self, device: Device):
        self.device = device

    def __call__(self, nodes: Sequence[Any], flops: Sequence[int], _: Sequence[bool]) -> list[int]:
        """Returns the picoseconds of each node; ``flops`` are their floating-point operations, the third argument is not
        used."""
        return [self._duration(node, operations) for node, operations in zip(nodes, flops, strict=True)]

    def _duration(self, node: Any, operations: int) -> int:
        """Returns the picoseconds of one node.

        The type of its first floating-point tensor selects the rate of arithmetic; for other types, the lowest rate is used.
        """
        tensors = [tensor for used in (*node.all_input_nodes, node) for tensor in tensors_of(used.meta.get("val"))]
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.is_floating_point()]
        if dtypes[:1] == ["float32"] and torch.get_float32_matmul_precision() != "highest" and "tf32" in self.device.compute:
            dtypes = ["tf32"]
        rates = self.device.compute
        rate = next((rates[dtype] for dtype in dtypes[:1] if dtype in rates), min(rates.values()))
        return max(duration_ps(operations, rate), duration_ps(moved_bytes(node), self.device.bandwidth))


class MeasuredCosts:
    """A cost function that measures each kind of operator once.

    Parameters
    ----------
    seconds
        Seconds of measuring for each graph. Operators that are not measured in that time, or that cannot run alone, are
        estimated from their floating-point operations and bytes, scaled by the measured operators.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.durations: dict[Any, int | None] = {}
        """Picoseconds of each kind of operator; None if measuring it failed."""

    def __call__(self, nodes: Sequence[Any], flops: Sequence[int], is_fixed: Sequence[bool]) -> list[int]:
        """Returns the picoseconds of each node; they are estimated for nodes that must run exactly once (``is_fixed``)."""
        until = time.monotonic() + self.seconds
        measured: list[int | None] = []
        for node, fixed in zip(nodes, is_fixed, strict=True):
            key = _kind(node)
            if not fixed and key not in self.durations and time.monotonic() < until:
                self.durations[key] = _measure(node)
            measured.append(None if fixed else self.durations.get(key))
        estimates = [cost(node, operations) for node, operations in zip(nodes, flops, strict=True)]
        durations = [(ps, estimate) for ps, estimate in zip(measured, estimates, strict=True) if ps is not None]
        # The ratio of the two sums converts an estimate to picoseconds.
        scale = sum(ps for ps, _ in durations), sum(estimate for _, estimate in durations)
        if not scale[1]:
            scale = 1, 1
        return [estimate * scale[0] // scale[1] if ps is None else ps for ps, estimate in zip(measured, estimates, strict=True)]


def _kind(node: Any) -> str:
    """Returns a key that is equal for nodes that take the same time.

    It has the operator and its arguments; the shape, strides, type and device of each tensor are in place of the tensor.
    """

    def described(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return described(value.meta.get("val"))
        if isinstance(value, torch.Tensor):
            return shape(value), tuple(map(whole, value.stride())), str(value.dtype), str(value.device)
        return whole(value) if isinstance(value, torch.SymInt | torch.SymFloat) else value

    return str((str(node.target), tree_map(described, (tuple(node.args), dict(node.kwargs)))))


def _measure(node: Any) -> int | None:
    """Measures the picoseconds of one run of an operator; returns None if it cannot run alone.

    The result is the smallest of several means over ``RUNS`` runs.
    """
    try:
        with no_dispatch(), torch.no_grad():
            args, kwargs = tree_map(_sample_argument, (tuple(node.args), dict(node.kwargs)))
            devices = {tensor.device.type for tensor in tensors_of(node.meta.get("val"))}
            wait: Any = torch.accelerator.synchronize if devices - {"cpu", "meta"} else lambda: None
            run: Any = node.target
            run(*args, **kwargs)
            wait()
            shortest, until = float("inf"), time.perf_counter() + MOST_SECONDS
            for _ in range(TIMES):
                began = time.perf_counter()
                for _ in range(RUNS):
                    run(*args, **kwargs)
                wait()
                now = time.perf_counter()
                shortest = min(shortest, (now - began) / RUNS)
                if now > until:
                    break
    except Exception:  # Whatever the fault is, the caller can estimate the cost of the operator.
        return None
    return max(1, int(shortest * PS_PER_SECOND))


def _sample_argument(value: Any) -> Any:
    """Returns an argument of an operator with sample tensors instead of nodes.

    Tensors of floating-point numbers contain ones. Others contain zeros, because they may be indices.
    """
    if isinstance(value, torch.fx.Node):
        return _sample_argument(value.meta.get("val"))
    if isinstance(value, torch.Tensor):
        sizes, strides = shape(value), tuple(map(whole, value.stride()))
        length = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if 0 not in sizes else 0
        elements = torch.full((length,), int(value.is_floating_point()), dtype=value.dtype, device=value.device)
        return elements.as_strided(sizes, strides)
    return whole(value) if isinstance(value, torch.SymInt | torch.SymFloat) else value
