"""The most bytes of tensors that are live while code runs, on any device: storages are counted when they come and when they go.

What kernels take for themselves while they run is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_Mode: Any = TorchDispatchMode

#: Storages of copies on the host that were sent there: they are no part of what a device has.
_ON_HOST: set[int] = set()


def name_host(tensor: Any) -> None:
    """Say that a storage is a copy on the host, before any mode counts it."""
    storage = tensor.untyped_storage()
    _ON_HOST.add(storage._cdata)
    weakref.finalize(storage, _ON_HOST.discard, storage._cdata)


class Peaks(NamedTuple):
    """Most bytes that were live at once."""

    device: int
    host: int
    """Of copies that were sent to the host, which are not among the others."""


class Storages(_Mode):  # type: ignore[misc]
    """A dispatch mode that counts.

    Parameters
    ----------
    counts_all
        Whether storages that were there before anyone named them count when they are first used, as if from the start.
    """

    supports_higher_order_operators = True

    def __init__(self, counts_all: bool = False) -> None:
        super().__init__()
        self.counts_all = counts_all
        self.is_counting = True
        """Else operators run as without it."""
        self.sizes: dict[int, int] = {}
        self.on_more: Callable[[], None] = lambda: None
        """Called behind an operator that made the peak higher."""
        self.live = self.peak = self.host_live = self.host_peak = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled: without this torch would run the model's own code instead."""
        return True

    def add(self, tensor: Any, is_counted: bool = True) -> None:
        """Count a tensor's storage, or remember that it does not count, unless it is known."""
        if not isinstance(tensor, torch.Tensor):
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        key, size = storage._cdata, storage.nbytes() if is_counted else 0
        if key in self.sizes or storage.device.type == "meta":
            return
        if key in _ON_HOST:
            # Whoever sees it first, it was made by a step.
            self.sizes[key], size = 0, storage.nbytes()
            self.host_live += size
            self.host_peak = max(self.host_peak, self.host_live)
            weakref.finalize(storage, self._gone_from_host, key, size)
            return
        self.sizes[key] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key)

    def find(self, tensor: Any, is_counted: bool) -> None:
        """Meet a tensor that was there before, unless it is known: it was there when the peak was, or does not count."""
        peak, live = self.peak, self.live
        self.add(tensor, is_counted)
        self.peak = peak + self.live - live

    def _gone(self, key: int) -> None:
        self.live -= self.sizes.pop(key, 0)

    def _gone_from_host(self, key: int, size: int) -> None:
        del self.sizes[key]
        self.host_live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_counting:
            return func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs)):
            self.find(leaf, self.counts_all)
        peak = self.peak
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            self.add(leaf)
        if self.peak > peak:
            self.on_more()
        return out


def made_of(tensors: Any) -> list[Any]:
    """Parameters that tensors were made of outside of compiled graphs: what ran before the first of them was not counted."""
    parameters, seen = [], set()
    nodes = [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor)]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen or "CompiledFunction" in node.name():
            continue
        seen.add(node)
        parameters += [node.variable] if hasattr(node, "variable") else []
        nodes += [other for other, _ in node.next_functions]
    return parameters


def measure_peak(step: Callable[[], Any], *present: Any) -> int:
    """Most bytes of tensors that are live at once while a function runs.

    Parameters
    ----------
    step
        Called once: a forward and a backward pass, say.
    present
        Tensors, modules, and lists of them, that are there from the start and count: parameters, inputs. What is there and not
        named does not count.

    Returns
    -------
    int
        Bytes of storages; what kernels need inside is not seen, nor what other threads run. Copies that a plan sent to the
        host do not count.
    """
    return measure_peaks(step, *present).device


def measure_peaks(step: Callable[[], Any], *present: Any) -> Peaks:
    """As :func:`measure_peak`, with the bytes of copies on the host, apart."""
    mode = Storages()
    for item in present:
        given = [*item.parameters(), *item.buffers()] if isinstance(item, torch.nn.Module) else tree_leaves(item)
        for tensor in given:
            mode.add(tensor)
    with mode:
        step()
    return Peaks(mode.peak, mode.host_peak)
