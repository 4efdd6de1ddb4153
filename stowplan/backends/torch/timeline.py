"""What lives beside graphs while a step runs, as it was measured: what there is left of the limit for each of them.

A *phase* is the time in which one pass of a graph runs, or none does. What was live at most in a phase is what its graph was
planned to take, what each use of a graph that waits for its backward pass keeps, and the rest: the *beside*. That stays what it
is when graphs are planned anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stowplan.backends.torch.rooms import Rooms, Row, Taken


class Planned(NamedTuple):
    """What the plan of a graph takes that is in use now."""

    taken: Taken
    inputs: int
    """Bytes of what is there when the graph is called."""
    tangents: int

    @property
    def own(self) -> int:
        """Bytes that a use keeps while it waits, beside its inputs."""
        return max(0, self.taken.kept - self.constant)

    @property
    def constant(self) -> int:
        """Bytes at the border that no use keeps while it waits."""
        return self.inputs + self.tangents

    def beside(self, is_backward: bool, first: int, most: int) -> int:
        """Bytes that are there beside the graph in a phase, by what was live when it began, and at most."""
        begun, taken = (self.taken.kept, self.taken.backward) if is_backward else (self.inputs, self.taken.forward)
        return max(first - begun, most - taken)


class Phase(NamedTuple):
    """A time of a step."""

    active: Hashable
    """The graph that runs; None where none does."""
    is_backward: bool
    waiting: tuple[tuple[Hashable, int], ...]
    """Graphs with uses that wait, and how many."""


@dataclass
class Timeline:
    """Phases that were measured."""

    limit: int
    beside: dict[Phase, int] = field(default_factory=dict)
    """Most bytes beside graphs, by phase."""

    def record(self, phase: Phase, rest: int) -> None:
        """Take in what was live at most beside graphs."""
        self.beside[phase] = max(rest, self.beside.get(phase, rest))

    def add(self, size: int) -> None:
        """Bytes are beside graphs from now on, in all phases."""
        self.beside = {phase: rest + size for phase, rest in self.beside.items()}

    def _taken(self, phase: Phase, plans: Mapping[Hashable, Planned]) -> int:
        kept = sum(count * plans[graph].own for graph, count in phase.waiting if graph in plans)
        if phase.active not in plans:
            return kept
        taken = plans[phase.active].taken
        return kept + (taken.backward if phase.is_backward else taken.forward)

    def peak(self, plans: Mapping[Hashable, Planned]) -> int:
        """Of a step with these plans."""
        return max((rest + self._taken(phase, plans) for phase, rest in self.beside.items()), default=0)

    def uses(self, graph: Hashable) -> int:
        """How many uses of graphs are there at once, at most, while one of this graph is."""
        involved = (phase for phase in self.beside if graph in {phase.active, *dict(phase.waiting)})
        return max((sum(count for _, count in phase.waiting) + (phase.active is not None) for phase in involved), default=1)

    def left(self, graph: Hashable, plans: Mapping[Hashable, Planned], open_graphs: set[Hashable]) -> Rooms:
        """Room of a graph; what is left of the limit is shared with others that are open: planned anew after it."""
        own, rows = plans[graph], []
        for phase, rest in self.beside.items():
            count = dict(phase.waiting).get(graph, 0)
            if not count and phase.active != graph:
                continue
            involved = {phase.active, *(other for other, _ in phase.waiting)} & (open_graphs | {graph})
            slack = (self.limit - rest - self._taken(phase, plans)) // len(involved)
            present = count * own.own
            if phase.active == graph:
                present += own.taken.backward if phase.is_backward else own.taken.forward
            rows.append(Row(count, phase.active == graph, phase.is_backward, present + slack))
        return Rooms(self.limit, own.constant, tuple(rows))
