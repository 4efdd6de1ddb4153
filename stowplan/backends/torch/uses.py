"""Graphs as they are compiled, and uses of them: what a forward pass saved, and whether it is still there.

A use *waits* for its backward pass while something of what its forward pass saved is live. That is observed, not assumed: hooks
such as those of ``torch.utils.checkpoint`` take what is saved away at once, and ``retain_graph`` keeps it for another pass.
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
    """How far the planning of a graph is."""

    STALE = "the plan of least peak is to be sought again when the graph is called"
    MEASURED = "it runs with the plan of least peak, while what lives beside it is measured"
    DUE = "it is planned anew when it is called"
    DECIDED = "it was planned anew, or there is nothing to plan"


class Variant:
    """A graph as it was compiled with one plan."""

    def __init__(self, part: Part):
        self.part = part
        self.function: Callable[..., Any] = lambda *_: None
        self.planned: Planned | None = None
        """None where there is no plan: the graph has no backward pass, say."""
        self.cost = 0
        """What the plan adds."""
        self.results = 0
        """How many of the forward pass's results its caller gets; what is saved comes behind them."""


class Part:
    """A graph for some sizes of its inputs: with the plan of least peak, and, later, with one that adds less."""

    def __init__(self, compile_graph: Callable[[Any, Variant], Any], key: Any, code: Any):
        self.compile_graph, self.key, self.code = compile_graph, key, code
        self.least: Variant = Variant(self)
        self.fitted: Variant | None = None
        """Planned within what a step leaves; None before, and where the plan of least peak is kept."""
        self.stage = Stage.MEASURED

    @property
    def current(self) -> Variant:
        """As the graph is to run now."""
        return self.fitted or self.least


class _Bytes:
    """Bytes of storages that are live."""

    def __init__(self, storages: Iterable[Any]):
        self.keys: set[int] = set()
        self.total = self.live = 0
        self.add(storages)

    def add(self, storages: Iterable[Any]) -> None:
        """Count more of them."""
        for storage in storages:
            if storage_key(storage) not in self.keys:
                self.keys.add(storage_key(storage))
                self.total += storage.nbytes()
                self.live += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes())

    def _gone(self, size: int) -> None:
        self.live -= size


class Use:
    """A forward pass of a graph, up to the end of its backward pass.

    Parameters
    ----------
    arguments
        What the forward pass is called with; nothing of it is held.
    """

    def __init__(self, variant: Variant, arguments: list[Any]):
        self.variant, self.is_over = variant, False
        self.step = 0
        """The number of the step that it began in."""
        self.keys = storage_keys(arguments)
        """Of storages that the backward pass may be called with."""
        self.saved = _Bytes(())
        self.own = 0
        """Bytes of what is saved and of results, as far as they are no arguments."""
        self.others = _Bytes(_storages(each for each in arguments if not isinstance(each, torch.nn.Parameter)).values())

    def ran(self, made: Any) -> None:
        """The forward pass has made its results, with what it saves behind them."""
        count, planned = self.variant.results, self.variant.planned
        results, saved = _storages(made[:count]), _storages(made[count:])
        self.saved = _Bytes(each for key, each in saved.items() if key not in results.keys() | self.keys)
        self.own = self.saved.total + sum(each.nbytes() for key, each in results.items() if key not in self.keys)
        savable = planned.savable if planned else frozenset()
        self.others.add(_storages(made[at] for at in range(count) if at in savable).values())
        self.keys = set(saved)
        if not self.saved.keys:
            # Nothing tells how long it waits, but its node in the graph of autograd; hooks may have taken that away.
            self.is_over = has_saved_tensor_hooks()

    @property
    def waits(self) -> bool:
        """Whether the backward pass is to come."""
        return not self.is_over and (not self.saved.keys or self.saved.live > 0)

    @property
    def gone(self) -> int:
        """Bytes of arguments and results that nobody holds any more; with another plan they might be saved, and live."""
        return self.others.total - self.others.live

    def end(self) -> None:
        """Nothing that was saved is needed any more."""
        self.is_over = True


class Running(NamedTuple):
    """A phase that is not over."""

    variant: Variant | None
    """The graph that runs; None where none does."""
    use: Use | None
    is_backward: bool
    first: int
    """Bytes live when it began."""
    waiting: list[Use]


class Moment(NamedTuple):
    """A phase that is over."""

    phase: Phase
    rest: int
    most: int
    """Bytes live at most."""
    found: int
    """Bytes found up to then."""
    is_certain: bool
    """Whether it is known to be a part of the step."""


def storage_keys(values: Iterable[Any]) -> set[int]:
    """What tells the storages of tensors apart; holds none of them."""
    return set(_storages(values))


def _storages(values: Iterable[Any]) -> dict[int, Any]:
    found = (storage_of(value) for value in values if isinstance(value, torch.Tensor))
    return {storage_key(storage): storage for storage in found if storage is not None}
