"""Plans of the graphs of a training loop: of least peak at first, and then within what the steps leave.

A plan of least peak is the best start: it is within the limit wherever any plan is, whatever lives beside the graph. Once the
steps bring nothing new, each graph is planned anew within what :mod:`~stowplan.backends.torch.timeline` says is left, less a
margin for what the loop may keep later. Where that fails, or gains nothing, the plan of least peak stays; where what lives
outside grows beyond the limit, all graphs return to it and are planned again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

from stowplan.backends.fallback import MemoryLimitError, reason, warn
from stowplan.backends.torch import private
from stowplan.backends.torch.partition import Partitioner, Task
from stowplan.backends.torch.preserved import preserved
from stowplan.backends.torch.report import SPARE
from stowplan.backends.torch.timeline import Phase, Planned, Timeline
from stowplan.backends.torch.uses import Part, Stage, Use, Variant

#: A margin that is not said: this part of the limit at least and at most, and the growth of so many steps as the last.
LEAST_MARGIN, MOST_MARGIN, GROWTH_STEPS = 0.01, 0.05, 10

#: Steps that bring nothing new before graphs are planned anew, where parameters were updated, and where they never were.
QUIET, QUIET_WITHOUT_UPDATE = 1, 2

#: A phase is news if its rest grew by more than this part of the limit.
NEWS = 0.002

#: No smaller peak than this part of the limit is sought for the first steps.
AMPLE = 0.25

#: The limit while the smallest is measured.
NO_LIMIT = 1 << 62


class Fitting:
    """The graphs of one memory.

    Parameters
    ----------
    margin
        Bytes of the limit that plans leave free; None for what is measured.
    """

    def __init__(self, planner: Partitioner, limit: int, margin: int | None):
        self.planner, self.limit, self.margin = planner, limit, margin
        self.is_measured = planner.settings.is_measured
        self.timeline = Timeline()
        self.parts: list[Part] = []
        self.base = self.drift = self.quiet = 0
        """Bytes live when the step began, growth since the one before, and how many steps brought nothing new."""
        self.is_updated = False
        """Whether parameters were ever changed."""

    def begin(self, live: int) -> None:
        """A step begins with so many bytes live: choose graphs to plan anew, or return to the plans of least peak."""
        self.drift, self.base = max(0, live - self.base), live
        if any(part.fitted for part in self.parts) and self.timeline.peak(self.base, self._plans()) > self.limit:
            self._restart(Stage.MEASURED)
        if self.limit < NO_LIMIT and self.quiet >= (QUIET if self.is_updated else QUIET_WITHOUT_UPDATE):
            known = self.timeline.graphs()
            for part in self.parts:
                if part.stage is Stage.MEASURED and part.key in known:
                    part.stage = Stage.DUE

    def learn(self, phase: Phase, rest: int) -> bool:
        """Take in the rest of a phase; whether that is news that plans depend on."""
        return self.timeline.record(phase, rest) > NEWS * self.limit and phase.depends_on_plans

    def add(
        self, compile_graph: Callable[[Any, Variant], Any], key: Any, code: Any, inputs: Any, instead: Part | None = None
    ) -> Part:
        """Compile a graph that is new, with the plan of least peak; where torch cannot, take another in its place."""
        part = Part(compile_graph, key, code)
        try:
            self._seek_least(part, inputs)
        except MemoryLimitError:
            raise
        except Exception as error:
            if instead is None:
                raise
            warn(f"torch.compile compiles a graph for no sizes of its own: {reason(error)}: its first plan is used")
            return instead
        self.parts.append(part)
        return part

    def prepare(self, part: Part, inputs: Any, uses: list[Use]) -> None:
        """Plan a graph anew if it is due: outside of backward passes, while none of its uses waits."""
        if part.stage is Stage.STALE:
            self._seek_least(part, inputs)
        if part.stage is not Stage.DECIDED and private.is_selectively_checkpointed():
            # What its mode keeps of a pass is beside the graph, and depends on the plan.
            part.stage = Stage.DECIDED
        if (
            part.stage is not Stage.DUE
            or private.is_in_backward()
            or any(use.variant.part is part and use.waits for use in uses)
        ):
            return
        part.stage = Stage.DECIDED
        others = {other.key for other in self.parts if other.stage is Stage.DUE}
        plans, limit = self._plans(), self.limit - self.free
        left = self.timeline.left(part.key, limit, self.base, plans, others)
        try:
            variant = self._compiled(part, inputs, Task(part.key, left, self.timeline.uses(part.key)))
        except MemoryLimitError:
            return
        except Exception as error:  # a number that changes from step to step, say, has no value where a graph is traced again
            warn(f"torch.compile compiles a graph only once: {reason(error)}: its plan of least peak stays")
            return
        if variant.planned is not None and variant.cost < part.least.cost:
            peaks = [self.timeline.peak(self.base, each) for each in (plans, plans | {part.key: variant.planned})]
            part.fitted = variant if peaks[1] <= max(limit, peaks[0]) else None

    def forget(self, limit: int, stage: Stage) -> None:
        """Begin anew with another limit; graphs run with plans of least peak."""
        self.limit, self.timeline, self.quiet, self.is_updated = limit, Timeline(), 0, False
        self._restart(stage)

    def _restart(self, stage: Stage) -> None:
        for part in self.parts:
            part.fitted, part.stage = None, stage if part.least.planned else Stage.DECIDED

    @property
    def free(self) -> int:
        """Bytes of the limit that plans leave free."""
        if self.margin is not None:
            return self.margin
        measured = max(LEAST_MARGIN * self.limit, GROWTH_STEPS * self.drift)
        return math.ceil(min(MOST_MARGIN * self.limit, measured))

    def least(self) -> int | None:
        """The smallest limit that the steps so far would have run within; None before one has ended."""
        plans = {part.key: part.least.planned for part in self.parts if part.least.planned is not None}
        fixed = max((rest for phase, rest in self.timeline.rests.items() if not phase.depends_on_plans), default=0)
        most = max(self.timeline.peak(self.base, plans), self.base + fixed)
        return math.ceil(most * SPARE) if self.timeline.rests else None

    def _seek_least(self, part: Part, inputs: Any) -> None:
        enough = 0 if self.limit == NO_LIMIT else int(AMPLE * self.limit)
        part.least = self._compiled(part, inputs, Task(part.key, enough=enough) if self.is_measured else None)
        part.stage = Stage.MEASURED if part.least.planned else Stage.DECIDED

    def _compiled(self, part: Part, inputs: Any, task: Task | None) -> Variant:
        variant = Variant(part)
        self.planner.task = task
        try:
            # Modes would count what is traced.
            with private.without_modes(), preserved():
                variant.function = part.compile_graph(inputs, variant)
        finally:
            self.planner.task = None
        variant.results = self.planner.results
        if task is not None:
            variant.planned, variant.cost = task.planned, task.cost
        return variant

    def _plans(self) -> dict[Hashable, Planned]:
        plans = {part.key: part.current.planned for part in self.parts}
        return {key: plan for key, plan in plans.items() if plan is not None}
