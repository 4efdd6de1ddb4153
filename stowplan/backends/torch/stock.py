"""What torch's own partitioners would do: plans at several budgets, as sequences of a reading's operators, and a right one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.torch.private import OrderedSet, config, dp_knapsack, partitioners
from stowplan.backends.torch.reader import Reading, is_mutable, sequence_of
from stowplan.frontends.torch_program import is_random

#: Budgets that are tried below the one that is set, the most promising first.
BUDGETS = (0.15, 0.3, 0.1, 0.5, 0.2, 0.05, 0.7)


class Stock(NamedTuple):
    """A plan of torch's own."""

    budget: float
    modules: tuple[Any, Any]
    """Forward and backward."""
    sequence: list[int] | None
    """Runs of operators; None where the reading does not know them all."""


def copied(graph: Any) -> Any:
    """A graph of the same nodes; what they know is shared."""
    new = torch.fx.Graph()
    output = new.graph_copy(graph, {})
    (last,) = (node for node in graph.nodes if node.op == "output")
    new.output(output).meta = dict(last.meta)
    return new


def partition(module: Any, joint_inputs: Any, kwargs: dict[str, Any], budget: float | None = None) -> tuple[Any, Any]:
    """Forward and backward module of torch's own partitioner; the joint module stays as it is.

    Parameters
    ----------
    budget
        Part of the activations to save; None takes the one that is set.
    """
    # The partitioner writes into the nodes.
    own = torch.fx.GraphModule(module, copied(module.graph))
    changes = {} if budget is None else {"activation_memory_budget": budget}
    with config.patch(changes):
        halves: tuple[Any, Any] = partitioners.min_cut_rematerialization_partition(own, joint_inputs, **kwargs)
    return halves


def plans(
    module: Any,
    reading: Reading,
    joint_inputs: Any,
    kwargs: dict[str, Any],
    budgets: Sequence[float] = BUDGETS,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Stock]:
    """Its plans at these budgets, as long as there is time."""
    for budget in budgets:
        if should_stop():
            return
        try:
            modules = partition(module, joint_inputs, kwargs, budget)
        except Exception:  # its solvers fail on some graphs; then there is no plan of theirs to compare with
            continue
        yield Stock(budget, modules, sequence_of(reading, [half.graph for half in modules]))


def handed_over(module: Any, joint_inputs: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, Any], str]:
    """Modules of torch's own that have eager's gradients, and what they are called.

    Its plans draw random numbers again, and read again what is written over meanwhile (pytorch#190758, #197039): where there is
    either, nothing is recomputed.

    Raises
    ------
    UnsupportedError
        Its user wants something recomputed that writes over an input.
    """
    writes = any(map(is_mutable, module.graph.nodes)) or bool(written_behind(module.graph))
    if not writes and not any(map(is_random, module.graph.nodes)):
        return partition(module, joint_inputs, kwargs), "torch's own plan is kept"
    if writes and partitioners.has_recomputable_ops(module):
        raise UnsupportedError("what is to be recomputed may read what is written over meanwhile")
    options = {name: given for name, given in kwargs.items() if name != "compiler"}
    return partitioners.default_partition(module, joint_inputs, **options), "nothing is recomputed"


def written_behind(joint: Any) -> list[Any]:
    """Inputs that AOTAutograd writes over behind the forward pass, with what that returns."""
    (last,) = (node for node in joint.nodes if node.op == "output")
    written = [getattr(description, "mutated_input", None) for description in last.meta.get("desc") or ()]
    inputs = (node for node in joint.nodes if node.op == "placeholder")
    return [node for node in inputs if node.meta.get("desc") is not None and node.meta["desc"] in written]


def forward_outputs(joint: Any) -> int:
    """How many of the outputs of a joint graph are those of the forward pass: gradients follow them.

    An input without a gradient has an output that is not described.

    Raises
    ------
    UnsupportedError
        AOTAutograd did not describe the outputs.
    """
    (last,) = (node for node in joint.nodes if node.op == "output")
    described = last.meta.get("desc")
    if described is None:
        raise UnsupportedError("the outputs of the joint graph are not described")
    return next((at for at, output in enumerate(described) if output is None or output.is_grad()), len(described))


def saved_values(joint: Any, node_info: Any, recomputable: Sequence[Any]) -> list[Any]:
    """Nodes that torch's minimum cut saves where these may be computed again, as for budgets below 1."""
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
    """Indices of the nodes to save and of the others, by the sum of their bytes: torch's own solver ``dp``."""
    _, saved, recomputed = dp_knapsack(memory, [partitioners.estimate_runtime(node) for node in nodes], most)
    return saved, recomputed
