"""A plan's runs as the graphs of a forward and a backward pass.

A new joint graph is written run by run: an operator that runs again is a node once more. How its two passes are cut apart, and
how the forward pass hands over what the backward pass needs, is AOTAutograd's business and left to torch's own function.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import torch

from stowplan.backends.torch import offload
from stowplan.backends.torch.private import OrderedSet, partitioners
from stowplan.backends.torch.reader import Reading, ignores_statistics, is_part
from stowplan.frontends.torch_program import is_random
from stowplan.models.rematerialization.plan import Plan


def split(
    module: Any,
    reading: Reading,
    plan: Plan,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Iterable[int] | None = None,
) -> tuple[Any, Any]:
    """Modules of the forward and the backward pass.

    Parameters
    ----------
    module
        The joint module that the reading is of.
    plan
        Runs of operators, the border among them, and moves.
    num_fwd_outputs, static_lifetime_input_indices
        As the partitioner was given them.

    Returns
    -------
    (torch.fx.GraphModule, torch.fx.GraphModule)
        As AOTAutograd expects them of a partitioner.
    """
    writer = _Writer(reading)
    for action, number in plan.steps():
        if action == "run":
            writer.run(number)
        else:
            writer.move(action, number)
    graph, saved, symbols = writer.finish()
    joint = torch.fx.GraphModule(module, graph)
    primals = [node for node in graph.nodes if node.op == "placeholder" and "tangents" not in str(node.target)]
    static = set(static_lifetime_input_indices or ())
    extract = partitioners._extract_fwd_bwd_modules
    # Objects that are no tensors can be saved from torch 2.13 on; no graph that is read has any.
    opaque: dict[str, Any] = {"saved_opaque_nodes": []} if "saved_opaque_nodes" in signature(extract).parameters else {}
    halves: tuple[Any, Any] = extract(
        joint,
        saved,
        saved_sym_nodes=symbols,
        **opaque,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_nodes=OrderedSet(node for at, node in enumerate(primals) if at in static),
    )
    _draw_once(*halves)
    return halves


def _draw_once(forward: Any, backward: Any) -> None:
    """Take random operators of the forward pass out of the backward pass.

    Torch's function leaves them in where what they read is saved: nobody reads what they draw, but the generator goes on.
    """
    drawn = {node.name for node in forward.graph.nodes if node.op == "call_function" and is_random(node)}
    for node in reversed(list(backward.graph.nodes)):
        if node.name in drawn and not node.users:
            backward.graph.erase_node(node)
    backward.graph.eliminate_dead_code()
    backward.recompile()


class _Writer:
    """The new graph while it is written."""

    def __init__(self, reading: Reading):
        self.reading = reading
        self.graph = torch.fx.Graph()
        self.now: dict[Any, Any] = {}
        """New node of the latest instance of a value that is no view."""
        self.views: dict[tuple[Any, Any], Any] = {}
        """New node of a view of an instance, of those made in this pass."""
        self.early: set[Any] = set()
        """New nodes of the forward pass."""
        self.saved: dict[Any, None] = {}
        self.symbols: dict[Any, None] = {}
        self.is_backward = False
        self.forward_outputs: list[Any] = []
        self.parts: dict[Any, list[Any]] = {}
        self.sizes: dict[int, list[Any]] = {}
        """Symbols that can be made once an operator has run."""
        self.roots: dict[int, list[Any]] = {}
        """Nodes of a tensor of the problem."""
        for root, tensor in reading.tensor.items():
            self.roots.setdefault(tensor, []).append(root)
        self.sent: dict[int, tuple[Any, Any]] = {}
        """Of a tensor on its way to the host the new node of the copy, and of what is copied."""
        self.hosts: dict[int, Any] = {}
        """New node of a tensor on the host."""
        self.fetched: dict[Any, list[Any]] = {}
        """Of the new node of a fetch that nobody waited for the nodes whose value it is."""
        for node in reading.graph.nodes:
            if node.op == "placeholder":
                self.now[node] = self._copy(node)
            elif is_part(node) and node not in reading.base and node not in reading.symbols:
                self.parts.setdefault(node.args[0], []).append(node)
        self._prepare_symbols()

    def _prepare_symbols(self) -> None:
        after: dict[Any, int] = {}
        for node in self.reading.graph.nodes:
            if node not in self.reading.symbols or node.op == "placeholder":
                continue
            ready = -1
            for used in node.all_input_nodes:
                owner = after.get(used) if used in after else self.reading.owner(used)
                ready = max(ready, -1 if owner is None else owner)
            after[node] = ready
            if ready < 0:
                self.now[node] = self._copy(node)
            else:
                self.sizes.setdefault(ready, []).append(node)

    def run(self, number: int) -> None:
        """Write a run of an operator, or go from the forward to the backward pass."""
        if number == self.reading.border:
            self.forward_outputs = [self._value(output) for output in self.reading.forward_outputs]
            # Copies end within the pass in which they began.
            for tensor in list(self.sent):
                self._wait(tensor)
            for nodes in list(self.fetched.values()):
                self._value(nodes[0])
            self.is_backward = True
            self.views = {}
            return
        if number in self.reading.arrival:
            return
        node = self.reading.nodes[number]
        made = self._copy(node)
        self.now[node] = made
        for part in self.parts.get(node, ()):
            self.now[part] = self._copy(part)
        for symbol in self.sizes.pop(number, ()):
            self.now[symbol] = self._copy(symbol)

    def move(self, action: str, tensor: int) -> None:
        """Write a step of a value's way to the host, or back."""
        nodes = self.roots[tensor]
        if action == "send":
            value = self._value(nodes[0])
            self.sent[tensor] = self._call(offload.send, (value,)), value
        elif action == "fetch":
            device = nodes[0].meta["val"].device
            fetched = self._call(offload.fetch, (self._shared(self.hosts[tensor], self.saved), device))
            self.fetched[fetched] = nodes
            self.now |= dict.fromkeys(nodes, fetched)
        elif tensor in self.sent:
            self._wait(tensor)

    def _wait(self, tensor: int) -> None:
        sent, value = self.sent.pop(tensor)
        self.hosts[tensor] = self._call(offload.wait, (sent, value), offload.host_value(self.roots[tensor][0].meta["val"]))

    def _call(self, function: Any, args: tuple[Any, ...], value: Any = None) -> Any:
        """New node of a function of ours."""
        made = self.graph.call_function(function, args)
        made.meta["val"] = value
        if not self.is_backward:
            self.early.add(made)
        return made

    def finish(self) -> tuple[Any, list[Any], list[Any]]:
        """The graph with its outputs, and what is saved of tensors and of sizes."""
        outputs = [*self.forward_outputs, *(self._value(output) for output in self.reading.backward_outputs)]
        (last,) = (node for node in self.reading.graph.nodes if node.op == "output")
        self.graph.output(tuple(outputs)).meta = dict(last.meta)
        return self.graph, list(self.saved), list(self.symbols)

    def _copy(self, node: Any) -> Any:
        ignored = [used for used in node.all_input_nodes if self.is_backward and ignores_statistics(node, used)]
        stand_ins = dict.fromkeys(ignored, node.args[1] if ignored else None)
        made = self.graph.node_copy(node, lambda used: self._value(stand_ins.get(used, used)))
        if not self.is_backward:
            self.early.add(made)
        return made

    def _value(self, node: Any) -> Any:
        """New node that a reader of a node's value reads, right now."""
        if not isinstance(node, torch.fx.Node):
            return node
        if node.op == "get_attr":
            if node not in self.now:
                self.now[node] = self.graph.node_copy(node)
            return self.now[node]
        if node in self.reading.base:
            return self._view(node)
        made = self.now[node]
        if made in self.fetched:
            nodes = self.fetched.pop(made)
            made = self._call(offload.arrive, (made,), nodes[0].meta["val"])
            self.now |= dict.fromkeys(nodes, made)
        return self._shared(made, self.symbols if node in self.reading.symbols else self.saved)

    def _shared(self, made: Any, saved: dict[Any, None]) -> Any:
        """A new node that is read, saved for the backward pass where that reads one of the forward pass."""
        if self.is_backward and made in self.early and not (made.op == "placeholder" and "tangents" in str(made.target)):
            saved[made] = None
        return made

    def _view(self, node: Any) -> Any:
        instance = self._value(self.reading.root(node))
        if (node, instance) not in self.views:
            self.views[node, instance] = self._copy(node)
        return self.views[node, instance]
