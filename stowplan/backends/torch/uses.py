"""Compiled graphs and their uses: which values a forward pass has saved for its backward pass, and whether they are live.

A *graph* is a part of a model that ``torch.compile`` has compiled, with its backward pass; its *plan* says which values it
saves and which it computes again. A *use* of a graph is one forward pass, until the end of its backward pass. It *waits* for
its backward pass while any value that it saved is live. Whether a value is live is observed rather than assumed: hooks such as
those of ``torch.utils.checkpoint`` release saved values at once, and ``retain_graph`` keeps them for another backward pass. The
*plan of least peak* of a graph needs the least memory; the first steps run with it, while the bytes outside of the graphs are
measured. A *phase* of a step is the time in which one pass of a graph runs, or no graph runs
(:mod:`~stowplan.backends.torch.timeline`).
"""

from __future__ import annotations

import weakref
from collections import Counter
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


class State(Enum):
    """The state of the current step, which :mod:`stowplan.backends.torch.scopes` calls a scope."""

    IDLE = "no scope is open"
    UNCOMPILED = "torch.compile has begun to compile, and has not made a graph yet"
    EVALUATION = "a scope is open, and no graph was called while autograd was enabled"
    FORWARD = "a graph was called while autograd was enabled, and no backward pass has begun since"
    BACKWARD = "a backward pass of a graph began"
    UPDATING = "an optimizer steps"


class Variant:
    """A graph that was compiled with one plan."""

    def __init__(self, graph: SpecializedGraph):
        self.graph = graph
        self.function: Callable[..., Any] = lambda *_: None
        """The compiled graph; it takes the inputs and returns the results."""
        self.planned: Planned | None = None
        """The memory that the plan uses; None if there is no plan, for example because the graph has no backward pass."""
        self.cost = 0
        """The cost that the plan adds, in floating-point operations or picoseconds."""
        self.results = 0
        """How many outputs of the forward pass go to its caller; the values that are saved follow them."""


class SpecializedGraph:
    """A graph for certain symbolic sizes of its inputs: first with the plan of least peak, later with one that recomputes less.

    Parameters
    ----------
    compile_graph
        Compiles the graph for given inputs. Its second argument is the variant that is compiled, by which the passes of the
        graph are recognized when they run.
    key, code
        Keys of the graph and of the code that it was compiled from. Graphs of the same code for other sizes have other keys.
    """

    def __init__(self, compile_graph: Callable[[Any, Variant], Any], key: Any, code: Any):
        self.compile_graph, self.key, self.code = compile_graph, key, code
        self.least: Variant = Variant(self)
        """The variant with the plan of least peak."""
        self.fitted: Variant | None = None
        """The variant that was planned within the bytes that a step leaves free. None before that, and if the plan of least
        peak is kept."""
        self.stage = Stage.MEASURED
        """How far the planning of the graph has come."""

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
    variant
        The compiled graph that runs.
    arguments
        Arguments of the forward pass; no reference to them is kept.
    """

    def __init__(self, variant: Variant, arguments: list[Any]):
        self.variant, self.is_over = variant, False
        """The compiled graph; and whether the backward pass is known to have ended."""
        self.step = 0
        """The number of the step in which the use began."""
        self.keys = storage_keys(arguments)
        """Keys of the storages by which a backward pass is recognized as that of this use: its arguments contain one of
        them."""
        self.saved = _Bytes(())
        """The values that the forward pass saved, without its arguments and results."""
        self.kept_bytes = 0
        """Bytes of saved values and results, without those that are arguments."""
        # The caller may release arguments other than parameters, and results, while the use waits.
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
            # If no value is saved, only the autograd node of the pass shows how long the use waits, and hooks on saved tensors
            # may have removed that node.
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
        """Record that the backward pass is over, so that no saved value is needed any more."""
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

    @property
    def planned(self) -> Planned | None:
        """The memory that the plan of the graph uses; None if no graph runs, or if it has no plan."""
        return None if self.variant is None else self.variant.planned

    @property
    def waiting_at_end(self) -> list[Use]:
        """The uses that wait once the phase has ended. The use that ran is one of them if ``retain_graph`` keeps its saved
        values for another backward pass."""
        if self.use is None or not self.is_backward or self.use.is_over:
            return self.waiting
        return [*self.waiting, self.use]

    @property
    def key(self) -> Phase:
        """The phase of the timeline that this one is an instance of."""
        counts = Counter(each.variant.graph.key for each in self.waiting_at_end)
        active = self.variant.graph.key if self.variant is not None and self.planned is not None else None
        return Phase(active, self.is_backward, tuple(counts.items()))

    def bytes_beside_graph(self, peak: int) -> int:
        """Returns the bytes that were live outside of the running graph, if at most ``peak`` bytes were live at once:

            max(bytes_at_start - graph_at_start, peak - planned_peak)

        The first difference is exact when the pass begins. The graph then has its inputs. In a backward pass it also has the
        tangents, which are the gradients with which the pass is called, and the values that the forward pass kept. The second
        one is a lower bound at the peak, because the graph may use fewer bytes than its plan counts. Without a plan, all live
        bytes count as outside of the graph.
        """
        planned = self.planned
        if planned is None:
            return peak
        if not self.is_backward:
            return max(self.bytes_at_start - planned.inputs, peak - planned.footprint.forward)
        # The use may keep fewer bytes than its plan counts.
        kept_bytes = planned.kept_bytes if self.use is None else self.use.kept_bytes
        return max(self.bytes_at_start - (planned.constant + kept_bytes), peak - planned.footprint.backward)

    def remainder(self, peak: int, base: int) -> int:
        """Returns the remainder of the phase in bytes, as :mod:`~stowplan.backends.torch.timeline` defines it:

            bytes_beside_graph - kept_by_waiting - base + released

        The values that planned uses keep while they wait (``kept_by_waiting``) are bytes of their graphs. Arguments and results
        that callers have released are added, because another plan might save them, so that they stay live.

        Parameters
        ----------
        peak
            The most bytes that were live in the phase.
        base
            Bytes that were live when the step began.
        """
        waiting = self.waiting_at_end
        kept_by_waiting = sum(each.kept_bytes for each in waiting if each.variant.planned)
        released = sum(each.released_bytes for each in {*waiting, self.use} if each is not None)
        return self.bytes_beside_graph(peak) - kept_by_waiting - base + released


class EndedPhase(NamedTuple):
    """A phase of a step that has ended."""

    phase: Phase
    """Which pass ran, and which uses waited."""
    remainder: int
    """Bytes of the phase, without the bytes of the graphs and without the bytes that were live when the step began."""
    peak: int
    """The largest number of bytes that were live at once."""
    found: int
    """Bytes of tensors that were found late, up to the end of the phase; see
    :class:`~stowplan.backends.torch.measure.Storages`."""
    is_certain: bool
    """Whether the phase is certain to be a part of the step."""


def storage_keys(values: Iterable[Any]) -> set[int]:
    """Returns keys of the storages of all tensors among the values; they keep no storage alive."""
    return set(_storages(values))


def _storages(values: Iterable[Any]) -> dict[int, Any]:
    """Returns the storages of all tensors among the values, by key."""
    found = (storage_of(value) for value in values if isinstance(value, torch.Tensor))
    return {storage_key(storage): storage for storage in found if storage is not None}
