"""Regions of ``torch.utils.checkpoint``: what their user wants computed again for the backward pass is, and is not saved."""

from __future__ import annotations

from typing import Any

import torch

from stowplan.backends.torch.private import partitioners
from stowplan.backends.torch.reader import is_mutable, is_part
from stowplan.frontends.torch_program import is_random


def separated(graph: Any) -> Any:
    """A graph in which nodes that are to be recomputed are there twice: one for each pass.

    Parameters
    ----------
    graph
        Joint graph whose nodes say in ``meta["recompute"]`` what their user wants.

    Returns
    -------
    torch.fx.Graph
        Nodes that depend on tangents read the backward pass's, which say so in ``meta["stowplan_half"]``. What is random is
        never computed again: it is saved.
    """
    new = torch.fx.Graph()
    names: dict[Any, Any] = {}
    again: dict[Any, Any] = {}
    behind: set[Any] = set()
    tagged: set[Any] = set()

    def later(node: Any) -> Any:
        """The backward pass's copy of a node; made when it is first asked for."""
        if node not in tagged:
            return names[node]
        if node not in again:
            made = new.node_copy(node, later)
            made.meta["stowplan_half"] = "backward"
            again[node] = made
        return again[node]

    for node in graph.nodes:
        if node.op == "placeholder" and "tangents" in str(node.target):
            behind.add(node)
        if any(used in behind for used in node.all_input_nodes) and node.op != "output":
            behind.add(node)
            names[node] = new.node_copy(node, later)
            continue
        if node.op == "output":
            made = new.output(torch.fx.node.map_arg(node.args[0], names.__getitem__))
            made.meta = dict(node.meta)
            continue
        names[node] = new.node_copy(node, names.__getitem__)
        if _is_tagged(node, tagged):
            tagged.add(node)
            names[node].meta["stowplan_half"] = "forward"
    return new


def _is_tagged(node: Any, tagged: set[Any]) -> bool:
    if node.op != "call_function" or not partitioners.must_recompute(node):
        return False
    if is_part(node):
        return node.args[0] in tagged
    return not is_random(node) and not is_mutable(node) and node.meta.get("val") is not None
