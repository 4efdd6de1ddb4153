"""Writes a plan as the graphs of a forward and a backward pass.

A *joint graph* has the forward and the backward pass of a model as one graph, as AOTAutograd, a part of ``torch.compile``,
traces it. A new joint graph is written, one node for each run of an operator: an operator that runs twice becomes two nodes.
Torch's own function then cuts this graph into the two passes and passes the saved values from one to the other. The *border* is
the moment between the passes, for which the problem has an operator, and *tangents* are the gradients with which the backward
pass is called. A *reading* is the joint graph with its problem of rematerialization, which asks for the values to save and
those to compute again (:class:`~stowplan.backends.torch.reader.Reading`).
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import torch

from stowplan.backends.torch import offload
from stowplan.backends.torch.private import OrderedSet, partitioners
from stowplan.backends.torch.reader import Reading, ignores_statistics, is_tuple_element
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
    """Writes the modules of the forward and the backward pass.

    Parameters
    ----------
    module, reading
        The joint module, and the reading that was made of its graph.
    plan
        Runs of operators, including the border, and moves of values to the host and back.
    num_fwd_outputs, static_lifetime_input_indices
        As AOTAutograd passes them to a partitioner.

    Returns
    -------
    (torch.fx.GraphModule, torch.fx.GraphModule)
        The forward and the backward module, as AOTAutograd expects them of a partitioner.
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
    # From torch 2.13 on, objects other than tensors can be saved; the reader accepts no graph that has any.
    opaque: dict[str, Any] = {"saved_opaque_nodes": []} if "saved_opaque_nodes" in signature(extract).parameters else {}
    halves: tuple[Any, Any] = extract(
        joint,
        saved,
        saved_sym_nodes=symbols,
        **opaque,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_nodes=OrderedSet(node for at, node in enumerate(primals) if at in static),
    )
    _remove_repeated_draws(*halves)
    return halves


def _remove_repeated_draws(forward: Any, backward: Any) -> None:
    """Remove random operators of the forward pass from the backward pass.

    Torch's function keeps them there if their operands are saved. Nothing reads the numbers that they draw, but drawing them
    would advance the generator.
    """
    random_names = {node.name for node in forward.graph.nodes if node.op == "call_function" and is_random(node)}
    for node in reversed(list(backward.graph.nodes)):
        if node.name in random_names and not node.users:
            backward.graph.erase_node(node)
    backward.graph.eliminate_dead_code()
    backward.recompile()


class _Writer:
    """The new joint graph while it is being written."""

    def __init__(self, reading: Reading):
        self.reading = reading
        self.graph = torch.fx.Graph()
        self.latest: dict[Any, Any] = {}
        """From a node that is no view to the new node that computed its value last."""
        self.views: dict[tuple[Any, Any], Any] = {}
        """From a view and the new node of its base to the new node of the view; only for views written in the current pass."""
        self.forward_nodes: set[Any] = set()
        """New nodes of the forward pass."""
        self.saved: dict[Any, None] = {}
        """New nodes of the forward pass that the backward pass reads: tensors, in the order in which they are first read.

        It is a dictionary instead of a set to keep the order; all values are None."""
        self.symbols: dict[Any, None] = {}
        """Like ``saved``, for nodes whose values are sizes."""
        self.is_backward = False
        """Whether the border has been written, so that new nodes belong to the backward pass."""
        self.forward_outputs: list[Any] = []
        """New nodes of the results of the forward pass."""
        self.tuple_elements: dict[Any, list[Any]] = {}
        """From a node that returns a tuple to the nodes that pick its elements."""
        self.symbols_after: dict[int, list[Any]] = {}
        """From an operator to the nodes of sizes that can be computed once it has run."""
        self.roots: dict[int, list[Any]] = {}
        """From a tensor of the problem to its nodes."""
        for root, tensor in reading.tensor.items():
            self.roots.setdefault(tensor, []).append(root)
        self.in_transit: dict[int, tuple[Any, Any]] = {}
        """From a tensor that is being copied to the host to the new nodes of the copy and of the value that is copied."""
        self.on_host: dict[int, Any] = {}
        """From a tensor to the new node of its copy on the host."""
        self.fetched: dict[Any, list[Any]] = {}
        """From the new node of a fetch that nothing has waited for yet to the nodes whose value it fetches."""
        for node in reading.graph.nodes:
            if node.op == "placeholder":
                self.latest[node] = self._copy(node)
            elif is_tuple_element(node) and node not in reading.base and node not in reading.symbols:
                self.tuple_elements.setdefault(node.args[0], []).append(node)
        self._prepare_symbols()

    def _prepare_symbols(self) -> None:
        """Copy the nodes of sizes that are known from the start, and find after which operator each other size is known."""
        ready_after: dict[Any, int] = {}
        for node in self.reading.graph.nodes:
            if node not in self.reading.symbols or node.op == "placeholder":
                continue
            last_owner = -1
            for used in node.all_input_nodes:
                owner = ready_after.get(used) if used in ready_after else self.reading.owner(used)
                last_owner = max(last_owner, -1 if owner is None else owner)
            ready_after[node] = last_owner
            if last_owner < 0:
                self.latest[node] = self._copy(node)
            else:
                self.symbols_after.setdefault(last_owner, []).append(node)

    def run(self, number: int) -> None:
        """Write a run of an operator; a run of the border begins the backward pass."""
        if number == self.reading.border:
            self.forward_outputs = [self._value(output) for output in self.reading.forward_outputs]
            # Copies end in the pass in which they began.
            for tensor in list(self.in_transit):
                self._wait(tensor)
            for nodes in list(self.fetched.values()):
                self._value(nodes[0])
            self.is_backward = True
            self.views = {}
            return
        if number in self.reading.arrival:
            return
        node = self.reading.nodes[number]
        new = self._copy(node)
        self.latest[node] = new
        for element in self.tuple_elements.get(node, ()):
            self.latest[element] = self._copy(element)
        for symbol in self.symbols_after.pop(number, ()):
            self.latest[symbol] = self._copy(symbol)

    def move(self, action: str, tensor: int) -> None:
        """Write a move of a value to the host or back: the action is ``send``, ``wait`` or ``fetch``."""
        nodes = self.roots[tensor]
        if action == "send":
            value = self._value(nodes[0])
            self.in_transit[tensor] = self._call(offload.send, (value,)), value
        elif action == "fetch":
            device = nodes[0].meta["val"].device
            fetched = self._call(offload.fetch, (self._shared(self.on_host[tensor], self.saved), device))
            self.fetched[fetched] = nodes
            self.latest |= dict.fromkeys(nodes, fetched)
        elif tensor in self.in_transit:
            self._wait(tensor)

    def _wait(self, tensor: int) -> None:
        """Write the end of a copy to the host."""
        in_transit, value = self.in_transit.pop(tensor)
        self.on_host[tensor] = self._call(
            offload.wait, (in_transit, value), offload.host_value(self.roots[tensor][0].meta["val"])
        )

    def _call(self, function: Any, args: tuple[Any, ...], value: Any = None) -> Any:
        """Write a call of a function of :mod:`~stowplan.backends.torch.offload`."""
        new = self.graph.call_function(function, args)
        new.meta["val"] = value
        if not self.is_backward:
            self.forward_nodes.add(new)
        return new

    def finish(self) -> tuple[Any, list[Any], list[Any]]:
        """Write the outputs; returns the graph, the tensors that are saved, and the sizes that are saved."""
        outputs = [*self.forward_outputs, *(self._value(output) for output in self.reading.backward_outputs)]
        (last,) = (node for node in self.reading.graph.nodes if node.op == "output")
        self.graph.output(tuple(outputs)).meta = dict(last.meta)
        return self.graph, list(self.saved), list(self.symbols)

    def _copy(self, node: Any) -> Any:
        """Write a node once more, with the current values of its operands."""
        ignored = [used for used in node.all_input_nodes if self.is_backward and ignores_statistics(node, used)]
        stand_ins = dict.fromkeys(ignored, node.args[1] if ignored else None)
        new = self.graph.node_copy(node, lambda used: self._value(stand_ins.get(used, used)))
        if not self.is_backward:
            self.forward_nodes.add(new)
        return new

    def _value(self, node: Any) -> Any:
        """Returns the new node from which a reader gets the value of a node at this point."""
        if not isinstance(node, torch.fx.Node):
            return node
        if node.op == "get_attr":
            if node not in self.latest:
                self.latest[node] = self.graph.node_copy(node)
            return self.latest[node]
        if node in self.reading.base:
            return self._view(node)
        new = self.latest[node]
        if new in self.fetched:
            nodes = self.fetched.pop(new)
            new = self._call(offload.arrive, (new,), nodes[0].meta["val"])
            self.latest |= dict.fromkeys(nodes, new)
        return self._shared(new, self.symbols if node in self.reading.symbols else self.saved)

    def _shared(self, new: Any, saved: dict[Any, None]) -> Any:
        """Note that a new node is read; if the backward pass reads a node of the forward pass, the value is saved."""
        if self.is_backward and new in self.forward_nodes and not (new.op == "placeholder" and "tangents" in str(new.target)):
            saved[new] = None
        return new

    def _view(self, node: Any) -> Any:
        """Returns the new node of a view of the current value of its base; it is written once in each pass."""
        instance = self._value(self.reading.root(node))
        if (node, instance) not in self.views:
            self.views[node, instance] = self._copy(node)
        return self.views[node, instance]
