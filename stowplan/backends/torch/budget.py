"""A knapsack solver for ``torch._functorch.config.activation_memory_budget_solver``, which limits the peak.

PyTorch's partitioner reads ``activation_memory_budget`` as a share of the bytes that are saved for the backward pass. Its
solvers choose the values to save by the sum of these bytes alone. Saving fewer bytes can then need more memory. The reason is
that values that are not saved are computed again at the beginning of the backward pass, and their intermediate results are live
at the same time.

The solver here considers several choices of values. It simulates for each choice which bytes are live at each operator, and it
reads the budget as a share of the peak.

A *joint graph* has the forward and the backward pass as one graph. A *reading* is a joint graph with its rematerialization
problem (:class:`~stowplan.backends.torch.reader.Reading`). The *border* is the moment between the passes. A *minimum cut*
chooses the values to keep at the border, by weighing their bytes against the cost of computing all others again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stowplan.arguments import size
from stowplan.backends.fallback import reason, warn
from stowplan.backends.torch import stock
from stowplan.backends.torch.private import CustomKnapsackSolver
from stowplan.backends.torch.reader import Counted, Reading, read
from stowplan.models.rematerialization.cuts import Moments, bits
from stowplan.models.rematerialization.moments import in_stages
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.two_cuts import TwoCuts
from stowplan.version import VERSION

#: Minimum cuts are computed for this many limits on the bytes that are live between the two passes, spaced evenly between the
#: least and the most.
SIZES = 12

#: Two cuts differ in some independent parts. Mixed choices take some parts from one cut and the rest from the other. There are
#: this many steps from all parts of one cut to all parts of the other.
MIXTURES = 8

#: At most this many choices are passed to PyTorch's minimum cut and simulated as PyTorch would run them.
SIMULATED = 16


@dataclass(frozen=True)
class Choice:
    """One choice of values that may be recomputed, with the peak and the cost if PyTorch's partitioner is given the choice."""

    recomputed: frozenset[int]
    """Indices of these values in the solver's list of nodes."""
    peak: int
    """The simulated peak, in bytes."""
    cost: int
    """Cost of the operators that run again, in the unit of the reading's problem."""


class Knapsack(CustomKnapsackSolver):
    """Chooses the values that PyTorch's partitioner saves, so that a lower budget never has a higher simulated peak.

    Set ``torch._functorch.config.activation_memory_budget_solver`` to :data:`stowplan.backends.torch.knapsack`, or to an
    instance of this class, and ``activation_memory_budget`` to a number between 0 and 1. (PyTorch asks no solver at 0 or 1.)
    A budget of ``b`` allows a peak of ``least + b * (most - least)``. Here ``most`` is the peak if every value that PyTorch
    asks about is saved, and ``least`` is the lowest peak among the choices considered. Of the choices within the allowed peak
    the solver takes the one that adds the least cost. The sum of the saved bytes, which PyTorch's own solvers limit, may be
    above the budget's share.

    Parameters
    ----------
    memory
        Limit in bytes on the peak, or text such as ``"4 GiB"``, in place of the budget's share. If no choice is within it, the
        one with the lowest peak is taken, with a :class:`~stowplan.backends.fallback.PlanningWarning`. None uses the budget.

    Raises
    ------
    UsageError
        The constructor raises it if ``memory`` is no positive number of bytes. Calls raise no error of stowplan.

    Notes
    -----
    The peak is that of the operators of the joint graph in PyTorch's order, before Inductor fuses them. A graph that cannot be
    read is left to PyTorch's own solver ``dp``, with a warning.
    """

    def __init__(self, memory: int | str | None = None):
        self.memory = None if memory is None else size("a memory limit of {}", memory, 1)

    def __call__(
        self, memory: list[float], joint_graph: Any, max_memory: float, node_info: Any, all_recomputable_banned_nodes: list[Any]
    ) -> tuple[list[int], list[int]]:
        """Returns the indices of the nodes to save and of those that may be computed again, in the list of nodes.

        Parameters
        ----------
        memory
            [nodes] Bytes of each node's value as a share of all activations. Only PyTorch's solver ``dp`` uses them; this one
            computes peaks instead.
        joint_graph
            ``torch.fx.Graph``.
        max_memory
            The budget, a number between 0 and 1.
        node_info
            PyTorch's classification of the nodes.
        all_recomputable_banned_nodes
            Nodes that are saved unless the solver says otherwise.
        """
        nodes = all_recomputable_banned_nodes
        try:
            reading = read(joint_graph, stock.forward_outputs(joint_graph), Counted())
            choices = list(_choices(reading, node_info, nodes))
        except Exception as error:  # Whatever the fault is, PyTorch's own solver can still be used.
            warn(f"{reason(error)}: PyTorch's own knapsack solver 'dp' is used")
            return stock.knapsack(memory, joint_graph, max_memory, nodes)
        chosen = self._chosen(choices, max_memory)
        return [at for at in range(len(nodes)) if at not in chosen.recomputed], sorted(chosen.recomputed)

    def _chosen(self, choices: list[Choice], budget: float) -> Choice:
        """Returns the cheapest choice within the allowed peak.

        The first of ``choices`` must be the choice that saves everything.
        """
        least, most = min(choice.peak for choice in choices), choices[0].peak
        allowed = least + budget * (most - least) if self.memory is None else self.memory
        if least > allowed:
            warn(f"the least peak found is {least} bytes, and the limit is {self.memory}: the plan of that peak is taken")
        affordable = [choice for choice in choices if choice.peak <= max(least, allowed)]
        return min(affordable, key=lambda choice: (choice.cost, choice.peak))

    def uuid(self) -> Any:
        """Returns a key for PyTorch's caches.

        For a given graph and budget, choices depend on stowplan's version and the limit alone.
        """
        return f"stowplan {VERSION} {self.memory}"


def _choices(reading: Reading, node_info: Any, nodes: list[Any]) -> Iterator[Choice]:
    """Yields simulated choices: first the one that saves everything, then those that minimum cuts suggest."""
    structure = build(reading.problem)
    moments = Moments(structure)
    forward_ops = {*bits(moments.before[reading.border])}
    owners = [reading.owner(node) for node in nodes]
    seen: set[frozenset[int]] = set()
    suggestions = [frozenset[int](), *_suggested(structure, moments, reading.border)]
    for recomputed_ops in suggestions:
        recomputed = frozenset(at for at, owner in enumerate(owners) if owner is None or owner in recomputed_ops)
        if recomputed not in seen:
            seen.add(recomputed)
            saved = stock.saved_values(reading.graph, node_info, [nodes[at] for at in recomputed])
            yield _simulated(structure, reading, forward_ops, recomputed, saved)


def _suggested(structure: Structure, moments: Moments, border: int) -> list[frozenset[int]]:
    """Returns sets of operators to run again after the border, on the Pareto frontier of peak and cost."""
    insertion = Insertion(structure)
    bytes_at_border = moments.own_bytes(border)
    least, most = moments.least_bytes(border), structure.ordering.peak(structure.order)
    peak_and_cost: dict[frozenset[int], tuple[int, int]] = {}
    for at in range(SIZES):
        if (
            moments.added_cost(border, least + (most - bytes_at_border - least) * at // SIZES) is None
            or moments.bracketing_cuts is None
        ):
            continue
        low, high = moments.bracketing_cuts
        cuts = TwoCuts(insertion, moments, border)
        parts = cuts.parts(low.again ^ high.again)
        count = len(parts)
        for number in {count * mixture // MIXTURES for mixture in range(MIXTURES + 1)}:
            evenly = [at for at in range(count) if (at + 1) * number // count > at * number // count]
            for places in (range(number), evenly):
                again = frozenset(low.again ^ {op for place in places for op in parts[place]})
                if again in peak_and_cost:
                    continue
                live = cuts.live(cuts.sequence(again))
                if live is not None:
                    peak_and_cost[again] = int(live.max()), sum(structure.cost[op] for op in again)
    frontier: list[frozenset[int]] = []
    lowest = None
    for again in sorted(peak_and_cost, key=lambda each: (peak_and_cost[each][1], peak_and_cost[each][0])):
        peak, _ = peak_and_cost[again]
        if lowest is None or peak < lowest:
            lowest = peak
            frontier.append(again)
    step = max(1, -(-len(frontier) // SIMULATED))
    # Counting from the end of the frontier keeps the set with the lowest peak.
    return frontier[::-1][::step]


def _simulated(
    structure: Structure, reading: Reading, forward_ops: set[int], recomputed: frozenset[int], saved: list[Any]
) -> Choice:
    """Returns a choice with its peak and cost.

    PyTorch is assumed to save the given nodes, and to recompute all other values that the backward pass reads.

    Parameters
    ----------
    forward_ops
        Operators that the forward pass runs.
    recomputed
        Indices of the values that may be recomputed, for the choice.
    saved
        Nodes that PyTorch saves.
    """
    border = reading.border
    roots = {reading.tensor[root] for root in map(reading.root, saved) if root in reading.tensor}
    saved_values = {value for value, tensor in enumerate(structure.tensor) if tensor in roots}
    backward_ops = [op for op in structure.order if op not in forward_ops and op != border]
    recomputed_ops: set[int] = set()
    waiting = list(backward_ops)
    while waiting:
        for value in structure.needs[waiting.pop()]:
            writer = structure.writer[value]
            if writer in forward_ops and structure.root[value] not in saved_values and writer not in recomputed_ops:
                recomputed_ops.add(writer)
                waiting.append(writer)
    forward = [op for op in structure.order if op in forward_ops]
    plan = structure.made(in_stages(structure, [border], [forward, {*backward_ops, *recomputed_ops}]))
    return Choice(recomputed, plan.peak, sum(structure.cost[op] for op in recomputed_ops))


#: A solver for ``torch._functorch.config.activation_memory_budget_solver``, which reads the budget as a share of the peak.
knapsack = Knapsack()
