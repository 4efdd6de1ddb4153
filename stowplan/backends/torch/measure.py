"""The most bytes of tensors that are live while code runs: storages are counted when they come and when they go.

A dispatch mode sees every operator of a thread, and with it every storage that an operator reads or makes. Bytes that a kernel
allocates for itself while it runs are not seen. On CUDA the allocator keeps the same numbers at no cost (:class:`Allocator`).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from stowplan.backends.torch.private import DispatchMode, storage_key, tree_leaves
from stowplan.errors import UsageError

#: Storages of copies on the host that were sent there: they are no part of what a device has.
_ON_HOST: set[int] = set()


def name_host(tensor: Any) -> None:
    """Say that a storage is a copy on the host, before any mode counts it."""
    storage = tensor.untyped_storage()
    _ON_HOST.add(storage_key(storage))
    weakref.finalize(storage, _ON_HOST.discard, storage_key(storage))


def storage_of(tensor: Any) -> Any:
    """The storage of a tensor; None where it has none, or none on this machine, or is a copy on the host."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
    return None if storage.device.type == "meta" or storage_key(storage) in _ON_HOST else storage


class Peaks(NamedTuple):
    """Most bytes that were live at once."""

    device: int
    host: int
    """Of copies that were sent to the host, which are not among the others."""


class Storages(DispatchMode):  # type: ignore[misc]
    """A dispatch mode that counts storages.

    Attributes
    ----------
    live, peak
        Bytes that are live now, and the most since :meth:`reset`.
    found
        Bytes that were met by an operator that did not make them: they were live before, as if from the start.
    owner
        Of whom it counts, a weak reference; None where somebody enters it and leaves it.
    host_live, host_peak
        The same as ``live`` and ``peak`` of copies on the host.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.is_counting = True
        """Else operators run as without it."""
        self.finds = True
        """Whether what an operator uses counts, or only what it makes."""
        self.sizes: dict[int, int] = {}
        self.on_more: Callable[[], None] = lambda: None
        """Called behind an operator that made the peak higher."""
        self.owner: Any = None
        self.live = self.peak = self.found = self.host_live = self.host_peak = 0
        self.met: dict[int, int] = {}
        """Of storages that were found and are still live, by their keys, the bytes found up to then."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled: without this torch would run the model's own code instead."""
        return True

    def reset(self) -> None:
        """Begin a new peak."""
        self.peak = self.live

    def add(self, tensor: Any, is_counted: bool = True) -> None:
        """Count a tensor's storage, or remember that it does not count, unless it is known."""
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

    def find(self, tensor: Any, is_counted: bool = True) -> None:
        """Meet a tensor that was there before, unless it is known: it was there when the peak was."""
        peak, live, count = self.peak, self.live, len(self.sizes)
        self.add(tensor, is_counted)
        if len(self.sizes) > count:
            self.peak = peak + self.live - live
            self.found += self.live - live
            self.met[storage_key(tensor.untyped_storage())] = self.found

    def found_before(self, until: int) -> int:
        """Bytes of what was found since this was last asked for, up to so many bytes found in all, and is still live.

        They were live before they were found, too.
        """
        met, self.met = self.met, {}
        return sum(self.sizes.get(key, 0) for key, found in met.items() if found <= until)

    def _gone(self, key: int) -> None:
        self.live -= self.sizes.pop(key, 0)
        self.met.pop(key, None)

    def _gone_from_host(self, key: int, size: int) -> None:
        del self.sizes[key]
        self.host_live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_counting:
            return func(*args, **(kwargs or {}))
        peak = self.peak
        for tensor in _tensors((args, tuple((kwargs or {}).values()))) if self.finds else ():
            self.find(tensor)
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors((out,)):
            self.add(tensor)
        if self.peak > peak:
            self.on_more()
        return out


def _tensors(values: Any) -> Iterator[Any]:
    """Tensors among arguments, or in lists of them; a pytree would be slower by far."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


class Allocator:
    """What torch's caching allocator says of a CUDA device, in the form of :class:`Storages`; reading it costs nothing.

    Bytes are those of allocated blocks: of tensors, rounded to 512, and of what kernels ask for while they run.
    """

    found = host_live = host_peak = 0
    finds = True

    def __init__(self, device: Any):
        self.device = device

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
        """Nothing is to be done: the allocator knows all tensors."""

    def found_before(self, until: int) -> int:
        """Nothing is found late."""
        return 0

    def cap(self, limit: int) -> None:
        """Let this process allocate no more bytes than a limit."""
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), self.device)


def existing_tensors() -> list[Any]:
    """All tensors that exist in this process, whoever holds them."""
    gc.collect()
    # What asks for an attribute may run code of others.
    return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]


def measure_peak(step: Callable[[], Any], *present: Any) -> int:
    """Most bytes of tensors that are live at once while a function runs.

    Parameters
    ----------
    step
        Called once, without arguments: ``lambda: train_step(model, optimizer, batch)``, say.
    present
        Modules, optimizers, tensors, and lists, tuples or dictionaries of them. With none, all tensors that exist count,
        whoever holds them: models, optimizers, batches. With some, these count, and what ``step`` uses, but
        nothing else that happens to exist.

    Returns
    -------
    int
        Bytes of storages; what kernels need inside is not seen, nor what other threads run. Copies that a plan sent to the
        host do not count.

    Raises
    ------
    UsageError
        Something that is named is none of these.
    """
    return measure_peaks(step, *present).device


def measure_peaks(step: Callable[[], Any], *present: Any) -> Peaks:
    """As :func:`measure_peak`, with the bytes of copies on the host, apart."""
    mode = Storages()
    for tensor in [each for item in present for each in _named(item)] if present else existing_tensors():
        mode.add(tensor)
    with mode:
        step()
    return Peaks(mode.peak, mode.host_peak)


def _named(item: Any) -> list[Any]:
    """Tensors of what is named."""
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
