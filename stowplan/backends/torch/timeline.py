"""How many bytes a step takes beside its graphs, moment by moment, and what that leaves for each graph.

A *phase* of a step is the time in which one pass of a graph runs, or none does, while certain uses of graphs wait for their
backward pass. The most bytes that were live in a phase are the sum of four: what was live when the step began (*base*), what
the graph that runs was planned to take, what each waiting use keeps, and the *rest*: a loss outside of the model, other models,
an optimizer's temporary tensors. The rest of a phase stays as it is when graphs are planned anew, so that the peak of a step
with other plans is known before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stowplan.backends.torch.rooms import Rooms, Row, Taken


class Planned(NamedTuple):
    """What the plan of a graph takes."""

    taken: Taken
    inputs: int
    """Bytes of what is there when the graph is called."""
    tangents: int
    savable: frozenset[int] = frozenset()
    """Positions of the results that a plan may save for the backward pass."""

    @property
    def own(self) -> int:
        """Bytes that a use keeps while it waits, beside its inputs."""
        return max(0, self.taken.kept - self.constant)

    @property
    def constant(self) -> int:
        """Bytes at the border that no use keeps while it waits."""
        return self.inputs + self.tangents


class Phase(NamedTuple):
    """A time of a step."""

    active: Hashable
    """The graph that runs; None where none does."""
    is_backward: bool
    waiting: tuple[tuple[Hashable, int], ...]
    """Graphs with uses that wait, and how many."""

    @property
    def depends_on_plans(self) -> bool:
        """Whether a graph runs or waits."""
        return self.active is not None or bool(self.waiting)

    def taken(self, plans: Mapping[Hashable, Planned]) -> int:
        """Bytes of graphs with these plans."""
        kept = sum(count * plans[graph].own for graph, count in self.waiting if graph in plans)
        if self.active not in plans:
            return kept
        taken = plans[self.active].taken
        return kept + (taken.backward if self.is_backward else taken.forward)


@dataclass
class Timeline:
    """Phases that were measured."""

    rests: dict[Phase, int] = field(default_factory=dict)
    """Most bytes beside the base and the graphs, by phase."""

    def record(self, phase: Phase, rest: int) -> float:
        """Take in the rest of a phase; bytes by which it is above the largest so far, infinite where the phase is new."""
        known = self.rests.get(phase)
        self.rests[phase] = rest if known is None else max(rest, known)
        return math.inf if known is None else rest - known

    def peak(self, base: int, plans: Mapping[Hashable, Planned]) -> int:
        """Bytes of a step with these plans, of the phases on which plans have an influence."""
        rests = ((phase, rest) for phase, rest in self.rests.items() if phase.depends_on_plans)
        return max((base + rest + phase.taken(plans) for phase, rest in rests), default=0)

    def graphs(self) -> set[Hashable]:
        """Graphs whose backward pass was measured."""
        return {phase.active for phase in self.rests if phase.is_backward}

    def uses(self, graph: Hashable) -> int:
        """How many uses of graphs are there at once, at most, while one of this graph is."""
        involved = (phase for phase in self.rests if graph in {phase.active, *dict(phase.waiting)})
        return max((sum(count for _, count in phase.waiting) + (phase.active is not None) for phase in involved), default=1)

    def left(
        self, graph: Hashable, limit: int, base: int, plans: Mapping[Hashable, Planned], open_graphs: set[Hashable]
    ) -> Rooms:
        """Room of a graph within a limit; what is left is shared with other graphs that are planned anew after it."""
        plan, rows = plans[graph], []
        for phase, rest in self.rests.items():
            count = dict(phase.waiting).get(graph, 0)
            if not count and phase.active != graph:
                continue
            involved = {phase.active, *(other for other, _ in phase.waiting)} & (open_graphs | {graph})
            slack = (limit - base - rest - phase.taken(plans)) // len(involved)
            present = count * plan.own
            if phase.active == graph:
                present += plan.taken.backward if phase.is_backward else plan.taken.forward
            rows.append(Row(count, phase.active == graph, phase.is_backward, present + slack))
        return Rooms(limit, plan.constant, tuple(rows))
