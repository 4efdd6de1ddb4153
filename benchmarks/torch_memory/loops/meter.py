"""Bytes of live storages, counted by a dispatch mode that shares no code with ``stowplan.backends.torch``.

A storage is known by a weak reference to it and its size; sizes are read again whenever a tensor of it is seen, since a storage
may be resized. Of sparse tensors their indices and values count. What was allocated before the mode was entered, or without an
operator (``torch.from_numpy``), counts from the first operator that uses it, as if it had been there all the time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

#: How many calls up a copy to the host is looked for.
DEPTH = 14


class LiveBytes(TorchDispatchMode):
    """Counts bytes of live storages.

    Attributes
    ----------
    peak, host_peak
        The most bytes since :meth:`reset`, of the device (here the CPU, too) and of copies that were sent to the host.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, tuple[StorageWeakRef, int, bool]] = {}
        self.late = self.peak = self.host_peak = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled."""
        return True

    def live(self) -> tuple[int, int]:
        """Bytes that are live now, on the device and on the host."""
        gone = [key for key, (reference, _, _) in self.known.items() if reference.expired()]
        for key in gone:
            del self.known[key]
        sums = [0, 0]
        for _, size, is_on_host in self.known.values():
            sums[is_on_host] += size
        return sums[0], sums[1]

    def reset(self) -> None:
        """Begin a new peak."""
        self.peak, self.host_peak = self.live()

    def see(self, tensor: torch.Tensor, was_there: bool) -> None:
        """Count a tensor."""
        if tensor.layout is torch.sparse_coo:
            for part in (tensor._indices(), tensor._values()):
                self.see(part, was_there)
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        if storage.device.type == "meta":
            return
        key, size = storage._cdata, storage.nbytes()
        known = self.known.get(key)
        if known is not None and not known[0].expired():
            if known[1] != size:
                self.known[key] = known[0], size, known[2]
            return
        is_on_host = was_there and _is_sent()
        self.known[key] = StorageWeakRef(storage), size, is_on_host
        if was_there and not is_on_host:
            self.peak += size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            self.see(tensor, was_there=True)
        out = func(*args, **kwargs)
        for tensor in _tensors((out,)):
            self.see(tensor, was_there=False)
        device, host = self.live()
        self.peak, self.host_peak = max(self.peak, device), max(self.host_peak, host)
        return out


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _tensors(value)


def _is_sent() -> bool:
    """Whether a function ``send`` of the back end runs: on a CPU nothing else tells its copies from other tensors."""
    frame: Any = sys._getframe(1)
    for _ in range(DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name == "send" and frame.f_code.co_filename.endswith("offload.py"):
            return True
        frame = frame.f_back
    return False
