"""How many bytes a training step uses outside of its graphs in each phase, and how many bytes that leaves for each graph.

A *graph* is a part of a model that ``torch.compile`` has compiled, with its backward pass, and its *plan* says which values it
saves and which it computes again. A *use* of a graph is one forward pass, until the end of its backward pass. A *phase* of a
step is the time in which one pass of a graph runs, or no graph runs, while certain uses wait for their backward pass. The peak
of a phase is the sum of four numbers:

- the *base*, the bytes that were live when the step began
- the bytes that the running graph was planned to use
- the bytes that the waiting uses keep
- the *remainder*: for example, a loss outside of the model, other models, or temporary tensors of an optimizer

The remainder of a phase does not change when graphs are planned again, so that the peak of a step with other plans can be
computed before the step runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stowplan.backends.torch.allowance import Allowance, Footprint, PhaseLimit


class Planned(NamedTuple):
    """The memory that the plan of a graph uses."""

    footprint: Footprint
    """Peaks of the two passes, and the bytes that are live between them."""
    inputs: int
    """Bytes of the inputs, which are live when the graph is called."""
    tangents: int
    """Bytes of the gradients with which the backward pass is called."""
    savable: frozenset[int] = frozenset()
    """Indices of the results that a plan may save for the backward pass."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that a use keeps while it waits for its backward pass, without its inputs."""
        return max(0, self.footprint.at_border - self.constant)

    @property
    def constant(self) -> int:
        """Bytes that are live between the passes but that a waiting use does not keep: inputs and tangents."""
        return self.inputs + self.tangents


class Phase(NamedTuple):
    """A phase of a step; the module's docstring defines it."""

    active: Hashable
    """Key of the graph that runs; None if no graph runs."""
    is_backward: bool
    """Whether the graph runs its backward pass."""
    waiting: tuple[tuple[Hashable, int], ...]
    """Keys of graphs with waiting uses, each with the number of its waiting uses."""

    @property
    def depends_on_plans(self) -> bool:
        """Whether a graph runs or a use waits, so that plans change the peak of this phase."""
        return self.active is not None or bool(self.waiting)

    def footprint(self, plans: Mapping[Hashable, Planned]) -> int:
        """Returns the bytes that the running graph and the waiting uses need with these plans.

        Plans are given by the keys of their graphs. A graph without a plan counts 0 bytes.
        """
        waiting_bytes = sum(count * plans[graph].kept_bytes for graph, count in self.waiting if graph in plans)
        if self.active not in plans:
            return waiting_bytes
        footprint = plans[self.active].footprint
        return waiting_bytes + (footprint.backward if self.is_backward else footprint.forward)


@dataclass
class Timeline:
    """The phases that were measured so far."""

    remainders: dict[Phase, int] = field(default_factory=dict)
    """The largest remainder of each phase, in bytes."""

    def record(self, phase: Phase, remainder: int) -> float:
        """Record the remainder of a phase.

        Returns
        -------
        float
            Bytes by which the remainder is above the largest one so far; infinite if the phase is new.
        """
        largest = self.remainders.get(phase)
        self.remainders[phase] = remainder if largest is None else max(remainder, largest)
        return math.inf if largest is None else remainder - largest

    def peak(self, base: int, plans: Mapping[Hashable, Planned]) -> int:
        """Returns the peak of a step with these plans, in bytes.

        Only phases that depend on plans count; without such a phase it is 0. ``base`` is the number of bytes that are live when
        the step begins.
        """
        remainders = ((phase, remainder) for phase, remainder in self.remainders.items() if phase.depends_on_plans)
        return max((base + remainder + phase.footprint(plans) for phase, remainder in remainders), default=0)

    def measured_graphs(self) -> set[Hashable]:
        """Returns keys of the graphs whose backward pass was measured."""
        return {phase.active for phase in self.remainders if phase.is_backward}

    def uses(self, graph: Hashable) -> int:
        """Returns the largest number of uses, of any graph, in a phase in which this graph runs or waits."""
        involved = (phase for phase in self.remainders if graph in {phase.active, *dict(phase.waiting)})
        return max((sum(count for _, count in phase.waiting) + (phase.active is not None) for phase in involved), default=1)

    def allowance(
        self, graph: Hashable, limit: int, base: int, plans: Mapping[Hashable, Planned], open_graphs: set[Hashable]
    ) -> Allowance:
        """Computes how many bytes a graph may use in each phase (:class:`~stowplan.backends.torch.allowance.Allowance`).

        Parameters
        ----------
        graph
            Key of the graph; it must have a plan in ``plans``.
        limit, base
            Memory limit of the step, and bytes that are live when it begins.
        plans
            The current plans, by the keys of their graphs.
        open_graphs
            Keys of the other graphs that are still to be planned. The free bytes of a phase are divided evenly among this graph
            and the open ones that run or wait in the phase.
        """
        plan, limits = plans[graph], []
        for phase, remainder in self.remainders.items():
            count = dict(phase.waiting).get(graph, 0)
            if not count and phase.active != graph:
                continue
            involved = {phase.active, *(other for other, _ in phase.waiting)} & (open_graphs | {graph})
            share_of_slack = (limit - base - remainder - phase.footprint(plans)) // len(involved)
            present = count * plan.kept_bytes
            if phase.active == graph:
                present += plan.footprint.backward if phase.is_backward else plan.footprint.forward
            limits.append(PhaseLimit(count, phase.active == graph, phase.is_backward, present + share_of_slack))
        return Allowance(limit, plan.constant, tuple(limits))
