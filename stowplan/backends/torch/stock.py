"""Plans of torch's own partitioners: at several budgets, and a safe one for graphs that cannot be planned here.

A *partitioner* cuts a *joint graph*, which has a forward and a backward pass, into the two passes, and decides which values the
forward pass saves. A *reading* is a joint graph with its rematerialization problem
(:class:`~stowplan.backends.torch.reader.Reading`).

The *budget* is torch's setting ``activation_memory_budget``, the share between 0 and 1 of the activations that its min-cut
partitioner saves for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.torch.private import OrderedSet, config, dp_knapsack, partitioners
from stowplan.backends.torch.reader import Reading, is_mutable, sequence_of
from stowplan.frontends.torch_program import is_random

#: Values of ``activation_memory_budget`` that are tried besides the one that is set, the most promising first.
BUDGETS = (0.15, 0.3, 0.1, 0.5, 0.2, 0.05, 0.7)


class StockPlan(NamedTuple):
    """A plan of torch's own partitioner."""

    budget: float
    """The value of ``activation_memory_budget``."""
    modules: tuple[Any, Any]
    """The forward and the backward module."""
    sequence: list[int] | None
    """Indices of the operators in the order in which they run; None if some operator of the reading never runs."""


def copied(graph: Any) -> Any:
    """Copies a graph; the values in the nodes' ``meta`` are shared."""
    new = torch.fx.Graph()
    output = new.graph_copy(graph, {})
    (last,) = (node for node in graph.nodes if node.op == "output")
    new.output(output).meta = dict(last.meta)
    return new


def partition(module: Any, joint_inputs: Any, kwargs: dict[str, Any], budget: float | None = None) -> tuple[Any, Any]:
    """Returns the forward and the backward module of torch's own partitioner, and leaves the joint module unchanged.

    Parameters
    ----------
    module
        ``torch.fx.GraphModule`` with the joint graph.
    joint_inputs, kwargs
        As AOTAutograd passes them to a partitioner.
    budget
        Share of the activations to save; None uses the value that is set in torch.

    Errors of torch's partitioner are raised.
    """
    # The partitioner changes the nodes of the graph that it is given.
    copy = torch.fx.GraphModule(module, copied(module.graph))
    changes = {} if budget is None else {"activation_memory_budget": budget}
    with config.patch(changes):
        halves: tuple[Any, Any] = partitioners.min_cut_rematerialization_partition(copy, joint_inputs, **kwargs)
    return halves


def plans(
    module: Any,
    reading: Reading,
    joint_inputs: Any,
    kwargs: dict[str, Any],
    budgets: Sequence[float] = BUDGETS,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[StockPlan]:
    """Yields the plans of torch's own partitioner at several budgets, until ``should_stop`` returns true.

    A budget at which torch's partitioner fails is skipped. The first four parameters are those of :func:`partition`, with the
    reading of the joint graph.
    """
    for budget in budgets:
        if should_stop():
            return
        try:
            modules = partition(module, joint_inputs, kwargs, budget)
        except Exception:  # Torch's solvers fail on some graphs; there is no plan for this budget then.
            continue
        yield StockPlan(budget, modules, sequence_of(reading, [half.graph for half in modules]))


def safe_modules(module: Any, joint_inputs: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, Any], str]:
    """Returns modules of one of torch's partitioners that compute the gradients of eager mode, and a phrase for a warning.

    Torch's min-cut partitioner may draw random numbers a second time, and may read values again that were overwritten in
    between (pytorch#190758, #197039). If the graph draws random numbers or overwrites values, torch's default partitioner is
    used, which recomputes nothing. The parameters are those of :func:`partition`.

    Raises
    ------
    UnsupportedError
        The user requires recomputation in a graph that overwrites a value.
    """
    writes = any(map(is_mutable, module.graph.nodes)) or bool(inputs_written_after_forward(module.graph))
    if not writes and not any(map(is_random, module.graph.nodes)):
        return partition(module, joint_inputs, kwargs), "torch's own plan is kept"
    if writes and partitioners.has_recomputable_ops(module):
        raise UnsupportedError("what is to be recomputed may read what is written over meanwhile")
    options = {name: value for name, value in kwargs.items() if name != "compiler"}
    return partitioners.default_partition(module, joint_inputs, **options), "nothing is recomputed"


def inputs_written_after_forward(joint: Any) -> list[Any]:
    """Returns the inputs of a joint graph that AOTAutograd overwrites after the forward pass with one of its results."""
    (last,) = (node for node in joint.nodes if node.op == "output")
    written = [getattr(description, "mutated_input", None) for description in last.meta.get("desc") or ()]
    inputs = (node for node in joint.nodes if node.op == "placeholder")
    return [node for node in inputs if node.meta.get("desc") is not None and node.meta["desc"] in written]


def forward_outputs(joint: Any) -> int:
    """Returns how many outputs of a joint graph belong to the forward pass; the gradients follow them.

    The output for an input without a gradient has no description.

    Raises
    ------
    UnsupportedError
        AOTAutograd did not describe the outputs.
    """
    (last,) = (node for node in joint.nodes if node.op == "output")
    descriptions = last.meta.get("desc")
    if descriptions is None:
        raise UnsupportedError("the outputs of the joint graph are not described")
    return next((at for at, output in enumerate(descriptions) if output is None or output.is_grad()), len(descriptions))


def saved_values(joint: Any, node_info: Any, recomputable: Sequence[Any]) -> list[Any]:
    """Returns the nodes that torch's minimum cut saves if the nodes ``recomputable`` may be computed again.

    The options of the cut are those that torch uses for budgets below 1; ``node_info`` is torch's classification of the nodes.
    """
    options = partitioners.MinCutOptions(
        ban_if_used_far_apart=False,
        ban_if_long_fusible_chains=False,
        ban_if_materialized_backward=False,
        ban_if_not_in_allowlist=False,
        ban_if_reduction=config.ban_recompute_reductions,
    )
    saved, _ = partitioners.solve_min_cut(joint, node_info, options, OrderedSet(recomputable))
    return list(saved)


def knapsack(memory: list[float], joint: Any, most: float, nodes: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Returns the indices of the nodes to save and of those that may be computed again, by torch's own knapsack solver ``dp``.

    Parameters
    ----------
    memory
        [nodes] Bytes of each node's value as a share of all activations.
    joint
        The joint graph; not used.
    most
        The largest sum of the shares of the saved nodes.
    nodes
        The nodes.
    """
    _, saved, recomputed = dp_knapsack(memory, [partitioners.estimate_runtime(node) for node in nodes], most)
    return saved, recomputed
