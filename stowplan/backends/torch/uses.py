"""Compiled graphs and their uses: which values a forward pass has saved, and whether these values are still live.

A *use* of a graph is one forward pass, until the end of its backward pass. It *waits* for its backward pass while any value
that it saved is live. That is observed rather than assumed: hooks such as those of ``torch.utils.checkpoint`` release saved
values at once, and ``retain_graph`` keeps them for another backward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

import torch

from stowplan.backends.torch.measure import storage_of
from stowplan.backends.torch.private import has_saved_tensor_hooks, storage_key
from stowplan.backends.torch.timeline import Phase, Planned


class Stage(Enum):
    """How far the planning of a graph has come."""

    STALE = "the plan of least peak is to be sought again when the graph is called"
    MEASURED = "it runs with the plan of least peak, while what lives beside it is measured"
    DUE = "it is planned anew when it is called"
    DECIDED = "it was planned anew, or there is nothing to plan"


class Variant:
    """A graph that was compiled with one plan."""

    def __init__(self, graph: SpecializedGraph):
        self.graph = graph
        self.function: Callable[..., Any] = lambda *_: None
        self.planned: Planned | None = None
        """The memory that the plan uses; None if there is no plan, for example because the graph has no backward pass."""
        self.cost = 0
        """The cost that the plan adds."""
        self.results = 0
        """How many outputs of the forward pass go to its caller; the values that are saved follow them."""


class SpecializedGraph:
    """A graph for some sizes of its inputs: first with the plan of least peak, later with a plan that recomputes less."""

    def __init__(self, compile_graph: Callable[[Any, Variant], Any], key: Any, code: Any):
        self.compile_graph, self.key, self.code = compile_graph, key, code
        self.least: Variant = Variant(self)
        self.fitted: Variant | None = None
        """The variant that was planned within the bytes that a step leaves. None before that, and if the first plan is kept."""
        self.stage = Stage.MEASURED

    @property
    def current(self) -> Variant:
        """The variant that runs now."""
        return self.fitted or self.least


class _Bytes:
    """Counts the bytes of some storages, and how many of these bytes are still live."""

    def __init__(self, storages: Iterable[Any]):
        self.keys: set[int] = set()
        self.total = self.live = 0
        self.add(storages)

    def add(self, storages: Iterable[Any]) -> None:
        """Count more storages."""
        for storage in storages:
            if storage_key(storage) not in self.keys:
                self.keys.add(storage_key(storage))
                self.total += storage.nbytes()
                self.live += storage.nbytes()
                weakref.finalize(storage, self._released, storage.nbytes())

    def _released(self, size: int) -> None:
        self.live -= size


class Use:
    """One forward pass of a graph, until the end of its backward pass.

    Parameters
    ----------
    arguments
        Arguments of the forward pass; no reference to them is kept.
    """

    def __init__(self, variant: Variant, arguments: list[Any]):
        self.variant, self.is_over = variant, False
        self.step = 0
        """The number of the step that it began in."""
        self.keys = storage_keys(arguments)
        """Keys of the storages with which the backward pass may be called."""
        self.saved = _Bytes(())
        """The values that the forward pass saved, without its arguments and results."""
        self.kept_bytes = 0
        """Bytes of saved values and results, without those that are arguments."""
        self.caller_tensors = _Bytes(_storages(each for each in arguments if not isinstance(each, torch.nn.Parameter)).values())

    def forward_ended(self, returned: Any) -> None:
        """Record the outputs of the forward pass: its results, followed by the values that it saves."""
        count, planned = self.variant.results, self.variant.planned
        results, saved = _storages(returned[:count]), _storages(returned[count:])
        self.saved = _Bytes(each for key, each in saved.items() if key not in results.keys() | self.keys)
        self.kept_bytes = self.saved.total + sum(each.nbytes() for key, each in results.items() if key not in self.keys)
        savable = planned.savable if planned else frozenset()
        self.caller_tensors.add(_storages(returned[at] for at in range(count) if at in savable).values())
        self.keys = set(saved)
        if not self.saved.keys:
            # If nothing is saved, only the autograd node of the pass shows how long the use waits, and hooks may have removed
            # it.
            self.is_over = has_saved_tensor_hooks()

    @property
    def is_waiting(self) -> bool:
        """Whether the backward pass is still expected."""
        return not self.is_over and (not self.saved.keys or self.saved.live > 0)

    @property
    def released_bytes(self) -> int:
        """Bytes of arguments and results that the caller has released. Another plan might save them, so that they stay live."""
        return self.caller_tensors.total - self.caller_tensors.live

    def end(self) -> None:
        """The backward pass is over: no saved value is needed any more."""
        self.is_over = True


class RunningPhase(NamedTuple):
    """The phase of a step that is running."""

    variant: Variant | None
    """The graph that runs; None if no graph runs."""
    use: Use | None
    """The use of the graph that runs."""
    is_backward: bool
    """Whether the backward pass of the graph runs."""
    bytes_at_start: int
    """Bytes that were live when the phase began."""
    waiting: list[Use]
    """The uses that wait for their backward pass."""


class EndedPhase(NamedTuple):
    """A phase of a step that has ended."""

    phase: Phase
    remainder: int
    """Bytes beside the graphs and beside those that were live when the step began."""
    peak: int
    """The most bytes that were live."""
    found: int
    """Bytes of tensors that were found late, up to the end of the phase; see
    :class:`~stowplan.backends.torch.measure.Storages`."""
    is_certain: bool
    """Whether the phase is certain to be a part of the step."""


def storage_keys(values: Iterable[Any]) -> set[int]:
    """Keys of the storages of all tensors among the values; they keep no storage alive."""
    return set(_storages(values))


def _storages(values: Iterable[Any]) -> dict[int, Any]:
    """The storages of all tensors among the values, by key."""
    found = (storage_of(value) for value in values if isinstance(value, torch.Tensor))
    return {storage_key(storage): storage for storage in found if storage is not None}
