"""The most bytes of tensors that are live while code runs, on any device: storages are counted when they come and when they go.

What kernels take for themselves while they run is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_Mode: Any = TorchDispatchMode


class _Storages(_Mode):  # type: ignore[misc]
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.live = self.peak = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled: without this torch would run the model's own code instead."""
        return True

    def add(self, tensor: Any, is_counted: bool = True) -> None:
        """Count a tensor's storage, or remember that it does not count, unless it is known."""
        if not isinstance(tensor, torch.Tensor):
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes() if is_counted else 0
        if key in self.sizes:
            return
        self.sizes[key] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.live -= self.sizes.pop(key, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in tree_leaves((args, kwargs)):
            # What was there before, and was not named, does not count; nor do views of it.
            if isinstance(each, torch.Tensor):
                self.add(each, is_counted=False)
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            self.add(each)
        return out


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
        Bytes of storages; what kernels need inside is not seen, nor what other threads run.
    """
    mode = _Storages()
    for each in present:
        given = [*each.parameters(), *each.buffers()] if isinstance(each, torch.nn.Module) else tree_leaves(each)
        for tensor in given:
            mode.add(tensor)
    with mode:
        step()
    return mode.peak
