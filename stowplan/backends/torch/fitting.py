"""Plans the graphs of a training loop: first for the least peak, then within the bytes that the steps leave free.

The first plan of a graph has the least peak. Such a plan is within the limit if any plan is, however many bytes are live
outside of the graph. As soon as steps measure nothing new, each graph is planned again within the bytes that
:mod:`~stowplan.backends.torch.timeline` says are free, minus a margin for tensors that the loop may keep later. This is called
the *fitted* plan. If planning fails, or if the new plan does not add less cost, the plan of least peak stays. If the tensors
outside of the graphs grow until the limit is exceeded, all graphs return to the plan of least peak, and are planned again
later.

A *phase* of a step is the time in which one pass of a graph runs, or no graph runs. Its *remainder* is the number of bytes that
are live then, without the bytes of the graphs and without the bytes that were live when the step began. A *variant* is a graph
that was compiled with one plan. How far the planning of a graph has come is its *stage*
(:class:`~stowplan.backends.torch.uses.Stage`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

from stowplan.backends.fallback import MemoryLimitError, reason, warn
from stowplan.backends.torch import private
from stowplan.backends.torch.global_state import preserve_global_state
from stowplan.backends.torch.partition import Partitioner, PlanRequest
from stowplan.backends.torch.report import SPARE
from stowplan.backends.torch.timeline import Phase, Planned, Timeline
from stowplan.backends.torch.uses import SpecializedGraph, Stage, Use, Variant

#: The default margin is ``GROWTH_STEPS`` times the growth of the last step (:attr:`Fitting.growth`), but at least the share
#: ``LEAST_MARGIN`` and at most the share ``MOST_MARGIN`` of the limit.
LEAST_MARGIN, MOST_MARGIN, GROWTH_STEPS = 0.01, 0.05, 10

#: How many steps in a row must measure nothing new before graphs are planned again: the first number holds once an optimizer
#: has updated parameters, the second one before that.
QUIET_STEPS, QUIET_STEPS_WITHOUT_UPDATE = 1, 2

#: A measurement counts as new if the remainder of its phase grew by more than this share of the limit.
NEWS_SHARE = 0.002

#: The search for the plan of the first steps ends at a peak of this share of the limit.
AMPLE_SHARE = 0.25

#: The limit in bytes that is set while the smallest possible limit is measured.
NO_LIMIT = 1 << 62


class Fitting:
    """The graphs that share the limit of one training loop, with their plans.

    The user describes the limit by a ``TrainingMemory`` (:mod:`~stowplan.backends.torch.entry`). If its option ``strict`` is
    set, a limit that cannot be met is an error, otherwise a warning.

    Parameters
    ----------
    planner
        The partitioner, which compiles each graph with a plan.
    limit
        Memory limit of a step, in bytes.
    margin
        Bytes of the limit that plans leave free; None to measure how much the loop keeps from step to step.

    Attributes
    ----------
    base
        Bytes that were live when the current step began.
    growth
        Bytes by which ``base`` is above its value in the step before; 0 if it is not.
    quiet_steps
        How many steps in a row measured nothing new.
    found
        Bytes of tensors that were live when the current step began, but were first seen in it, when an operator used them.
    """

    def __init__(self, planner: Partitioner, limit: int, margin: int | None):
        self.planner, self.limit, self.margin = planner, limit, margin
        self.is_measured = planner.settings.is_measured
        self.timeline = Timeline()
        self.graphs: list[SpecializedGraph] = []
        self.base = self.growth = self.quiet_steps = self.found = 0
        self.is_updated = False
        """Whether an optimizer has ever updated parameters."""

    def begin(self, live: int) -> None:
        """Called when a step begins: marks graphs that are to be planned again, or returns to the plans of least peak.

        Parameters
        ----------
        live
            Bytes that are live now.
        """
        self.growth, self.base = max(0, live - self.base), live
        self.return_to_least_if_above_limit()
        if self.limit < NO_LIMIT and self.quiet_steps >= (QUIET_STEPS if self.is_updated else QUIET_STEPS_WITHOUT_UPDATE):
            measured = self.timeline.measured_graphs()
            for graph in self.graphs:
                if graph.stage is Stage.MEASURED and graph.key in measured:
                    graph.stage = Stage.DUE

    def return_to_least_if_above_limit(self, found: int = 0) -> None:
        """Return to the plans of least peak if the fitted ones would exceed the limit.

        Parameters
        ----------
        found
            Bytes that were live when the step began, but have only been found in it, such as those of a batch made earlier.
        """
        self.found = found
        if any(graph.fitted for graph in self.graphs) and self.timeline.peak(self._start, self._plans()) > self.limit:
            self._restart(Stage.MEASURED)

    @property
    def _start(self) -> int:
        """Bytes that were live when the step began, including those that were only found later."""
        return self.base + self.found

    def learn(self, phase: Phase, remainder: int) -> bool:
        """Record the remainder of a phase, in bytes; returns whether it is new and plans change the peak of the phase."""
        return self.timeline.record(phase, remainder) > NEWS_SHARE * self.limit and phase.depends_on_plans

    def add(
        self,
        compile_graph: Callable[[Any, Variant], Any],
        key: Any,
        code: Any,
        inputs: Any,
        instead: SpecializedGraph | None = None,
    ) -> SpecializedGraph:
        """Compile a new graph with the plan of least peak.

        Parameters
        ----------
        compile_graph
            Compiles the graph for given inputs; its passes report to the given variant.
        key, code
            Keys of the graph and of the code that it was compiled from.
        inputs
            Example inputs of the graph.
        instead
            The graph to use, with a warning, if torch cannot compile the new one; None to raise torch's error.

        Raises
        ------
        MemoryLimitError
            No plan is within the limit, and ``strict`` is set.
        """
        graph = SpecializedGraph(compile_graph, key, code)
        try:
            self._seek_least(graph, inputs)
        except MemoryLimitError:
            raise
        except Exception as error:
            if instead is None:
                raise
            warn(f"torch.compile compiles a graph for no sizes of its own: {reason(error)}: its first plan is used")
            return instead
        self.graphs.append(graph)
        return graph

    def prepare(self, graph: SpecializedGraph, inputs: Any, uses: list[Use]) -> None:
        """Plan a graph again if it is due, unless a backward pass runs or one of its ``uses`` waits for one.

        If no better plan is found, the plan of least peak stays; errors of planning become warnings. If the plan of least peak
        has to be sought again, torch's errors are raised, and MemoryLimitError if no plan is within the limit and ``strict`` is
        set.
        """
        if graph.stage is Stage.STALE:
            self._seek_least(graph, inputs)
        if graph.stage is not Stage.DECIDED and private.is_selectively_checkpointed():
            # The mode of selective checkpointing keeps tensors outside of the graph, and which ones depends on the plan.
            graph.stage = Stage.DECIDED
        if (
            graph.stage is not Stage.DUE
            or private.is_in_backward()
            or any(use.variant.graph is graph and use.is_waiting for use in uses)
        ):
            return
        graph.stage = Stage.DECIDED
        still_due = {other.key for other in self.graphs if other.stage is Stage.DUE}
        plans, limit = self._plans(), self.limit - self.margin_bytes
        allowance = self.timeline.allowance(graph.key, limit, self._start, plans, still_due)
        try:
            variant = self._compiled(graph, inputs, PlanRequest(graph.key, allowance, self.timeline.uses(graph.key)))
        except MemoryLimitError:
            return
        except Exception as error:  # For example, a number that changes in each step has no value when a graph is traced again.
            warn(f"torch.compile compiles a graph only once: {reason(error)}: its plan of least peak stays")
            return
        if variant.planned is not None and variant.cost < graph.least.cost:
            peaks = [self.timeline.peak(self._start, each) for each in (plans, plans | {graph.key: variant.planned})]
            graph.fitted = variant if peaks[1] <= max(limit, peaks[0]) else None

    def forget(self, limit: int, stage: Stage) -> None:
        """Discard all measurements and set another limit in bytes; graphs return to the plans of least peak and this stage."""
        self.limit, self.timeline, self.quiet_steps, self.is_updated = limit, Timeline(), 0, False
        self._restart(stage)

    def _restart(self, stage: Stage) -> None:
        """Return to the plans of least peak; graphs that have one get this stage."""
        for graph in self.graphs:
            graph.fitted, graph.stage = None, stage if graph.least.planned else Stage.DECIDED

    @property
    def margin_bytes(self) -> int:
        """Bytes of the limit that plans leave free."""
        if self.margin is not None:
            return self.margin
        measured = max(LEAST_MARGIN * self.limit, GROWTH_STEPS * self.growth)
        return math.ceil(min(MOST_MARGIN * self.limit, measured))

    def least(self) -> int | None:
        """The smallest limit, in bytes, within which the steps so far would have run; None before a step has ended."""
        plans = {graph.key: graph.least.planned for graph in self.graphs if graph.least.planned is not None}
        fixed = max(
            (remainder for phase, remainder in self.timeline.remainders.items() if not phase.depends_on_plans), default=0
        )
        most = max(self.timeline.peak(self.base, plans), self.base + fixed)
        return math.ceil(most * SPARE) if self.timeline.remainders else None

    def _seek_least(self, graph: SpecializedGraph, inputs: Any) -> None:
        """Compile a graph with the plan of least peak."""
        enough = 0 if self.limit == NO_LIMIT else int(AMPLE_SHARE * self.limit)
        graph.least = self._compiled(graph, inputs, PlanRequest(graph.key, enough=enough) if self.is_measured else None)
        graph.stage = Stage.MEASURED if graph.least.planned else Stage.DECIDED

    def _compiled(self, graph: SpecializedGraph, inputs: Any, request: PlanRequest | None) -> Variant:
        """Compiles a graph with the plan that the request asks for. Without a request, the limit is divided among the graphs,
        and the plan must be within the share of this graph."""
        variant = Variant(graph)
        self.planner.request = request
        try:
            # Without this, dispatch modes would count the tensors of tracing.
            with private.without_modes(), preserve_global_state():
                variant.function = graph.compile_graph(inputs, variant)
        finally:
            self.planner.request = None
        variant.results = self.planner.results
        if request is not None:
            variant.planned, variant.cost = request.planned, request.cost
        return variant

    def _plans(self) -> dict[Hashable, Planned]:
        """The current plans of the graphs that have one, by the keys of the graphs."""
        plans = {graph.key: graph.current.planned for graph in self.graphs}
        return {key: plan for key, plan in plans.items() if plan is not None}
