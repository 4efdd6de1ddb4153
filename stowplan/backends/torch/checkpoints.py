"""Regions of ``torch.utils.checkpoint`` inside of a graph: their values are recomputed for the backward pass, and not saved.

The graph is a *joint graph*, which has a forward and a backward pass. Its *tangents* are the inputs with which the backward
pass is called: the gradients of the results.
"""

from __future__ import annotations

from typing import Any

import torch

from stowplan.backends.torch.private import partitioners
from stowplan.backends.torch.reader import is_mutable, is_tuple_element
from stowplan.frontends.torch_program import is_random


def with_backward_copies(graph: Any) -> Any:
    """Returns a graph in which each node that the user wants recomputed is duplicated, so that each pass has its own.

    Parameters
    ----------
    graph
        Joint graph whose nodes have the user's wish in ``meta["recompute"]``.

    Returns
    -------
    torch.fx.Graph
        Nodes that depend on tangents read the copies of the backward pass. The pass of a duplicated node is in
        ``meta["stowplan_half"]``. Random operators are never duplicated; their values are saved.
    """
    new = torch.fx.Graph()
    new_nodes: dict[Any, Any] = {}
    backward_copies: dict[Any, Any] = {}
    after_tangents: set[Any] = set()
    tagged: set[Any] = set()

    def backward_copy(node: Any) -> Any:
        """Returns the copy of a node for the backward pass; it is created at the first call."""
        if node not in tagged:
            return new_nodes[node]
        if node not in backward_copies:
            second = new.node_copy(node, backward_copy)
            second.meta["stowplan_half"] = "backward"
            backward_copies[node] = second
        return backward_copies[node]

    for node in graph.nodes:
        if node.op == "placeholder" and "tangents" in str(node.target):
            after_tangents.add(node)
        if any(used in after_tangents for used in node.all_input_nodes) and node.op != "output":
            after_tangents.add(node)
            new_nodes[node] = new.node_copy(node, backward_copy)
            continue
        if node.op == "output":
            outputs = new.output(torch.fx.node.map_arg(node.args[0], new_nodes.__getitem__))
            outputs.meta = dict(node.meta)
            continue
        new_nodes[node] = new.node_copy(node, new_nodes.__getitem__)
        if _is_tagged(node, tagged):
            tagged.add(node)
            new_nodes[node].meta["stowplan_half"] = "forward"
    return new


def _is_tagged(node: Any, tagged: set[Any]) -> bool:
    """Whether the user wants a node recomputed, and the node can run twice."""
    if node.op != "call_function" or not partitioners.must_recompute(node):
        return False
    if is_tuple_element(node):
        return node.args[0] in tagged
    return not is_random(node) and not is_mutable(node) and node.meta.get("val") is not None
