"""Measures the most bytes of tensors that are live while code runs, by counting storages when they are created and released.

A *storage* is torch's block of memory under one or more tensors. A *dispatch mode* is torch's hook that sees every operator of
a thread, and with it every storage that an operator reads or creates. It does not see the bytes that a kernel allocates
internally while it runs. On CUDA, the allocator has these numbers at no cost (:class:`Allocator`).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from stowplan.backends.torch.private import DispatchMode, storage_key, tree_leaves
from stowplan.errors import UsageError

#: Bytes of the storages on the host that are copies of values on a device, by their keys. They do not count as bytes of the
#: device.
_ON_HOST: dict[int, int] = {}

#: The allocators whose peak on the host each new copy may raise.
_ALLOCATORS: weakref.WeakSet[Allocator] = weakref.WeakSet()


def mark_host_copy(tensor: Any) -> None:
    """Mark a tensor's storage as a copy on the host of a value on a device; call this before any dispatch mode counts it."""
    storage = tensor.untyped_storage()
    _ON_HOST[storage_key(storage)] = storage.nbytes()
    weakref.finalize(storage, _ON_HOST.pop, storage_key(storage), None)
    for allocator in _ALLOCATORS:
        allocator.host_peak = max(allocator.host_peak, allocator.host_live)


def storage_of(tensor: Any) -> Any:
    """Returns the storage of a tensor; None if it has none, is on the device ``meta``, or is a marked copy on the host."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
    return None if storage.device.type == "meta" or storage_key(storage) in _ON_HOST else storage


class Peaks(NamedTuple):
    """The most bytes that were live at once."""

    device: int
    """Bytes of all tensors, without the copies on the host."""
    host: int
    """Bytes of the copies that were sent to the host."""


class Storages(DispatchMode):  # type: ignore[misc]
    """A dispatch mode that counts the bytes of live storages.

    Attributes
    ----------
    live, peak
        Bytes that are live now, and the most since :meth:`reset`.
    found
        Bytes of all storages so far that were *found late*: an operator used them, and no operator under this mode had created
        them. They are counted as if they had been live from the start.
    owner
        Weak reference to the object for which this mode counts; None if the mode is used as a context manager.
    host_live, host_peak
        Like ``live`` and ``peak``, for the copies on the host.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.is_counting = True
        """If false, operators run without being counted."""
        self.counts_operands = True
        """Whether operands of operators count, or only their results."""
        self.sizes: dict[int, int] = {}
        """From the key of each live storage that was seen to the bytes that it counts for."""
        self.on_new_peak: Callable[[], None] = lambda: None
        """Called after an operator that raised the peak."""
        self.owner: Any = None
        self.live = self.peak = self.found = self.host_live = self.host_peak = 0
        self.met: dict[int, int] = {}
        """Live storages that were found late: from the key of each to the value of ``found`` after it."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets compiled code run under this mode; otherwise torch would run the model's uncompiled code instead."""
        return True

    def reset(self) -> None:
        """Begin a new peak."""
        self.peak = self.live

    def add(self, tensor: Any, is_counted: bool = True) -> None:
        """Count a tensor's storage, unless it was counted before. Other objects, and tensors without a storage, are ignored.

        Parameters
        ----------
        is_counted
            If false, remember the storage as one that does not count.
        """
        if not isinstance(tensor, torch.Tensor):
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        key = storage_key(storage)
        if key in self.sizes or storage.device.type == "meta":
            return
        size = storage.nbytes() if is_counted else 0
        if key in _ON_HOST:
            # Copies on the host count separately, whichever operator uses them first.
            self.sizes[key], size = 0, storage.nbytes()
            self.host_live += size
            self.host_peak = max(self.host_peak, self.host_live)
            weakref.finalize(storage, self._released_on_host, key, size)
            return
        self.sizes[key] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._released, key)

    def find(self, tensor: Any, is_counted: bool = True) -> None:
        """Count a tensor that existed before, unless it was counted; its bytes are added to the peak, too.

        The parameters are those of :meth:`add`.
        """
        peak, live, count = self.peak, self.live, len(self.sizes)
        self.add(tensor, is_counted)
        if len(self.sizes) > count:
            self.peak = peak + self.live - live
            self.found += self.live - live
            self.met[storage_key(tensor.untyped_storage())] = self.found

    def pop_found(self, until: int) -> int:
        """Returns the bytes of storages that were found late since the last call of this method and are still live.

        Parameters
        ----------
        until
            A value that ``found`` had; storages that were found after it was exceeded do not count.
        """
        met, self.met = self.met, {}
        return sum(self.sizes.get(key, 0) for key, found in met.items() if found <= until)

    def _released(self, key: int) -> None:
        self.live -= self.sizes.pop(key, 0)
        self.met.pop(key, None)

    def _released_on_host(self, key: int, size: int) -> None:
        del self.sizes[key]
        self.host_live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_counting:
            return func(*args, **(kwargs or {}))
        peak = self.peak
        for tensor in _tensors((args, tuple((kwargs or {}).values()))) if self.counts_operands else ():
            self.find(tensor)
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors((out,)):
            self.add(tensor)
        if self.peak > peak:
            self.on_new_peak()
        return out


def _tensors(values: Any) -> Iterator[Any]:
    """Yields the tensors among arguments, also within lists and tuples. Torch's pytrees would be much slower."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


class Allocator:
    """Reads the statistics of torch's caching allocator for a CUDA device, with the interface of :class:`Storages`.

    It counts the bytes of all allocated blocks: the blocks of tensors, rounded up to 512 bytes, and the blocks that kernels
    allocate while they run. Reading the statistics costs almost nothing. The allocator finds no tensor late, so that ``found``
    is always 0.

    Attributes
    ----------
    host_peak
        The most bytes of copies on the host since this object was made. The statistics do not have them:
        :func:`mark_host_copy` counts the bytes of the values, and no other pinned memory. Torch may allocate more for a copy.
    """

    found = 0
    counts_operands = True

    def __init__(self, device: Any):
        self.device = device
        self.host_peak = self.host_live
        _ALLOCATORS.add(self)

    @property
    def host_live(self) -> int:
        """Bytes of the copies that are on the host now."""
        # Other threads and finalizers change the table meanwhile, so that the sum is over a copy.
        return sum(_ON_HOST.copy().values())

    @property
    def live(self) -> int:
        """Bytes that are allocated now."""
        return int(torch.cuda.memory_allocated(self.device))

    @property
    def peak(self) -> int:
        """The most bytes since :meth:`reset`."""
        return int(torch.cuda.max_memory_allocated(self.device))

    def reset(self) -> None:
        """Begin a new peak."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def find(self, tensor: Any, is_counted: bool = True) -> None:
        """Does nothing, because the allocator counts all tensors."""

    def pop_found(self, until: int) -> int:
        """Returns 0, because the allocator finds no tensor late."""
        return 0

    def cap(self, limit: int) -> None:
        """Have the allocator refuse to allocate more than this many bytes for this process on the device."""
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), self.device)


def existing_tensors() -> list[Any]:
    """Returns all tensors that exist in this process, whoever holds them; unreachable ones are released first."""
    gc.collect()
    # ``isinstance`` reads the attribute ``__class__``, which may run code of other packages.
    return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]


def measure_peak(step: Callable[[], Any], *present: Any) -> int:
    """Returns the most bytes of tensors that are live at once while a function runs.

    Parameters
    ----------
    step
        A function without arguments, such as ``lambda: train_step(model, optimizer, batch)``; it is called once.
    present
        Modules, optimizers, tensors, and lists, tuples or dictionaries of them. If none is passed, all tensors of this process
        count, for example those of models, optimizers and batches. Otherwise only the tensors in these objects and the tensors
        that ``step`` uses or creates count.

    Returns
    -------
    int
        Bytes of storages. Memory that kernels allocate internally and tensors that other threads create are not counted, nor
        are copies that a plan sends to the host.

    Raises
    ------
    UsageError
        An argument is of another type.
    """
    return measure_peaks(step, *present).device


def measure_peaks(step: Callable[[], Any], *present: Any) -> Peaks:
    """Like :func:`measure_peak`, but returns the bytes on the device and the bytes of copies on the host."""
    mode = Storages()
    for tensor in [each for item in present for each in _named(item)] if present else existing_tensors():
        mode.add(tensor)
    with mode:
        step()
    return Peaks(mode.peak, mode.host_peak)


def _named(item: Any) -> list[Any]:
    """Returns the tensors in an object of a type that :func:`measure_peak` accepts; raises UsageError for other types."""
    if isinstance(item, torch.nn.Module):
        return [*item.parameters(), *item.buffers()]
    if isinstance(item, torch.optim.Optimizer):
        return tree_leaves([*item.state.values(), [group["params"] for group in item.param_groups]])
    if isinstance(item, torch.Tensor):
        return [item]
    if isinstance(item, dict):
        # The keys of an optimizer's state are parameters.
        return [each for pair in item.items() for value in pair for each in _named(value)]
    if isinstance(item, list | tuple | set):
        return [each for value in item for each in _named(value)]
    if isinstance(item, int | float | str | None):
        return []
    raise UsageError(f"found an argument of the type {type(item).__name__}, expected modules, optimizers, and tensors")
