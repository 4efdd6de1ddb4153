"""Turns the joint graph of a forward and a backward pass, which AOTAutograd traces, into a problem of rematerialization.

AOTAutograd is a part of ``torch.compile``. The problem asks which values are kept and which are computed again, so that memory
stays within a limit and the added cost is small.

Each node of the graph that creates tensors becomes an operator; the elements of a tuple belong to the node that returns the
tuple. A view is no operator: an operator that reads a view reads its base, and the view is created again wherever it is needed.

One operator is added between the passes, the *border*. It reads the results of the forward pass and writes the *tangents*, the
gradients with which the backward pass is called. Both stay live from then on, because the caller holds them. Every value that
is live across the border is saved for the backward pass. Inputs are live from the start to the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.torch import costs
from stowplan.backends.torch.private import HigherOrderOperator, storage_key
from stowplan.frontends.torch_program import arguments, is_random, is_written, schema_of, tensors_of, warn_of_unknown
from stowplan.models.rematerialization.problem import Op, Problem, Tensor

#: The sum of all costs stays below this; costs of larger graphs are counted in a larger unit.
MOST_COST = 1 << 46

#: Higher-order operators without side effects.
_PURE_HIGHER_ORDER = ("flex_attention", "flex_attention_backward", "triton_kernel_wrapper_functional")


@dataclass(frozen=True)
class Counted:
    """Which tensors count against the memory limit, besides those inside of the graph."""

    parameters: bool = True
    """Whether inputs of the graph count: parameters, buffers, and the arguments of the model."""
    gradients: bool = True
    """Whether the gradients that the backward pass returns count."""


@dataclass
class Reading:
    """A joint graph with its problem of rematerialization, and how nodes and operators correspond."""

    graph: Any
    """The joint graph, a ``torch.fx.Graph``."""
    forward_outputs: list[Any]
    """Nodes of the results of the forward pass."""
    backward_outputs: list[Any]
    """Nodes of the gradients that the backward pass returns; None for an input without a gradient."""
    problem: Problem = field(init=False)
    """The problem of rematerialization."""
    unit: int = 1
    """Costs of the problem are counted in units of this many floating-point operations, or picoseconds."""
    nodes: list[Any] = field(default_factory=list)
    """[operators] The node of each operator; None for the border."""
    flops: list[int] = field(default_factory=list)
    """[operators] Floating-point operations of each operator. Operations that the cost function adds for moved bytes are not
    included."""
    number: dict[Any, int] = field(default_factory=dict)
    """From a node to the index of its operator."""
    tensor: dict[Any, int] = field(default_factory=dict)
    """From a root (see :meth:`root`) to the index of its tensor in the problem."""
    base: dict[Any, Any] = field(default_factory=dict)
    """From a view to the node of which it is a view."""
    symbols: set[Any] = field(default_factory=set)
    """Nodes whose values are sizes rather than tensors."""
    inputs: list[Any] = field(default_factory=list)
    """Placeholders of tensors that exist from the start."""
    tangents: list[Any] = field(default_factory=list)
    """Placeholders of the tangents."""
    border: int = 0
    """Index of the border among the operators."""
    arrival: tuple[int, ...] = ()
    """If a separate operator right before the border writes the tangents, its index; empty if the border writes them itself."""

    def root(self, node: Any) -> Any:
        """Returns the node that allocates the bytes of a node's value: an operator, an element of its tuple, or an input."""
        while node in self.base:
            node = self.base[node]
        return node

    def owner(self, node: Any) -> int | None:
        """Returns the index of the operator that allocates the bytes of a node's value; None for inputs and constants."""
        node = self.root(node)
        if is_tuple_element(node):
            node = node.args[0]
        return self.number.get(node)

    def input_bytes(self) -> dict[int, int]:
        """Returns the bytes of each input that is a tensor, by its index among all inputs.

        Inputs that share a storage count once, at the first of them.
        """
        seen: set[Any] = set()
        sizes = {}
        placeholders = (node for node in self.graph.nodes if node.op == "placeholder")
        for at, node in enumerate(placeholders):
            if node in self.inputs:
                key = _storage_key(node.meta["val"], node)
                sizes[at] = 0 if key in seen else costs.storage_bytes(node.meta["val"])
                seen.add(key)
        return sizes

    def added_flops(self, sequence: Iterable[int]) -> int:
        """Returns the floating-point operations of a sequence of operators, minus those of running each operator once."""
        return sum(self.flops[number] for number in sequence) - sum(self.flops)


def is_tuple_element(node: Any) -> bool:
    """Whether a node picks an element of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node)


def is_mutable(node: Any) -> bool:
    """Whether a node overwrites one of its arguments."""
    return bool(getattr(schema_of(node), "is_mutable", False))


#: A function of the nodes of operators, their floating-point operations, and flags that are true for operators that must run
#: exactly once. It returns the cost of running each operator once, in floating-point operations or picoseconds.
CostFunction = Callable[[Sequence[Any], Sequence[int], Sequence[bool]], list[int]]


def read(graph: Any, num_fwd_outputs: int, counted: Counted = Counted(), cost_function: CostFunction = costs.costs) -> Reading:
    """Reads a joint graph and builds its problem of rematerialization.

    Parameters
    ----------
    graph
        ``torch.fx.Graph`` of ATen operators with values in ``meta["val"]``. Its inputs are primals (parameters and arguments)
        and tangents; its outputs are those of the forward pass, followed by the gradients.
    num_fwd_outputs
        How many outputs belong to the forward pass.
    counted
        Which tensors count against the limit.
    cost_function
        Cost of operators, in floating-point operations or in picoseconds.

    Raises
    ------
    UnsupportedError
        The graph has side effects that cannot be moved, or sizes that depend on data.
    """
    (last,) = (node for node in graph.nodes if node.op == "output")
    outputs = list(last.args[0])
    reading = Reading(graph, outputs[:num_fwd_outputs], outputs[num_fwd_outputs:])
    for node in graph.nodes:
        _classify(reading, node)
    _Builder(reading, counted, cost_function).build()
    return reading


def _classify(reading: Reading, node: Any) -> None:
    """Add a node to the reading as an input, a tangent, a size, a view, or an operator.

    Raises UnsupportedError for any other node, and for an operator that cannot be moved.
    """
    if node.op in ("get_attr", "output"):
        return
    if node.op not in ("placeholder", "call_function"):
        raise UnsupportedError(f"found a node of the kind {node.op}, expected a graph of operators")
    value = node.meta.get("val")
    is_tensor = bool(tensors_of(value))
    if node.op == "placeholder":
        if "seed" in str(node.target) or "offset" in str(node.target):
            raise UnsupportedError("random numbers are functions of a seed that is an argument")
        if not is_tensor and value is not None and not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int):
            raise UnsupportedError(f"found an input of the type {type(value).__name__}, expected tensors and sizes")
        if not is_tensor:
            reading.symbols.add(node)
        elif "tangents" in str(node.target):
            reading.tangents.append(node)
        else:
            reading.inputs.append(node)
        return
    if is_tuple_element(node):
        tuple_node = node.args[0]
        if tuple_node in reading.base:
            reading.base[node] = reading.base[tuple_node]
        elif tuple_node in reading.symbols:
            reading.symbols.add(node)
        return
    _check(node)
    if not is_tensor and value is not None and not isinstance(value, tuple | list):
        reading.symbols.add(node)
        return
    base = None if is_mutable(node) else _viewed(node)
    if base is not None:
        reading.base[node] = base
        return
    reading.number[node] = len(reading.nodes)
    reading.nodes.append(node)


def _check(node: Any) -> None:
    """Raise UnsupportedError if an operator has side effects, or reads a number out of a tensor."""
    name = str(node.target)
    if isinstance(node.target, HigherOrderOperator) and not name.endswith(_PURE_HIGHER_ORDER):
        raise UnsupportedError(f"{name} cannot be moved")
    if name.startswith("aten._local_scalar_dense"):
        raise UnsupportedError("a number is read out of a tensor")
    warn_of_unknown(node.target, node.name)


def _viewed(node: Any) -> Any:
    """Returns the argument of which a node's value is a view; None if the node allocates bytes."""
    own_tensors = tensors_of(node.meta.get("val"))
    for used in node.all_input_nodes:
        used_tensors = tensors_of(used.meta.get("val"))
        if own_tensors and used_tensors and all(_share(one, other) for one in own_tensors for other in used_tensors):
            return used
    return None


def _share(one: Any, other: Any) -> bool:
    """Whether two tensors share a storage."""
    return bool(_storage_key(one, "one") == _storage_key(other, "other"))


class _Builder:
    """Builds the tensors, operators and precedences of a reading's problem."""

    def __init__(self, reading: Reading, counted: Counted, cost_function: CostFunction):
        self.reading, self.counted, self.cost_function = reading, counted, cost_function
        self.tensors: list[Tensor] = []
        self.tensor = reading.tensor
        self.ops: list[Op] = []
        self.precedences: dict[tuple[int, int], None] = {}

    def build(self) -> None:
        """Fill the reading: its problem, its border, its floating-point operations, and the unit of its costs."""
        reading = self.reading
        reading.border = len(reading.nodes)
        reading.nodes.append(None)
        gradients = {reading.root(node) for node in reading.backward_outputs if isinstance(node, torch.fx.Node)}
        uncounted = set() if self.counted.gradients else gradients
        resident = self._inputs()
        writes = [self._written(node, uncounted) for node in reading.nodes[:-1]]
        tangent_tensors = [self._add(node, costs.storage_bytes(node.meta["val"])) for node in reading.tangents]
        reads = [self._read(node) for node in reading.nodes[:-1]]
        self._order()
        reading.flops = [*(costs.flops(node) for node in reading.nodes[:-1]), 0]
        is_fixed = [self._is_fixed(node) for node in reading.nodes[:-1]]
        costs_of_runs = self.cost_function(reading.nodes[:-1], reading.flops[:-1], is_fixed)
        reading.unit = max(1, -(-sum(costs_of_runs) // MOST_COST))
        returned = {reading.root(node) for node in reading.forward_outputs if isinstance(node, torch.fx.Node)}
        results = [self.tensor[root] for root in returned if root in self.tensor]
        # Results of the forward pass stay live until the end, so that running their operators again would free nothing.
        self.precedences |= {(op, reading.border): None for op, row in enumerate(writes) if row and {*row} <= {*results}}
        returned_views = []
        for tensor in results:
            base = self.tensors[tensor]
            self.tensors.append(Tensor(id=f"{base.id} returned", size=0, alias_of=tensor))
            returned_views.append(len(self.tensors) - 1)
        for number, node in enumerate(reading.nodes[:-1]):
            self.ops.append(
                Op(
                    id=node.name,
                    reads=tuple(reads[number]),
                    writes=tuple(writes[number]),
                    cost=-(-costs_of_runs[number] // reading.unit),
                    once=is_fixed[number],
                    kind=str(node.target),
                )
            )
        self.ops.append(
            Op(id="border", reads=tuple(results), writes=(*tangent_tensors, *returned_views), once=True, kind="border")
        )
        reading.problem = Problem(
            tensors=tuple(self.tensors),
            ops=tuple(self.ops),
            inputs=tuple(resident),
            outputs=tuple(
                dict.fromkeys(
                    [*returned_views, *tangent_tensors, *(self.tensor[root] for root in gradients if root in self.tensor)]
                )
            ),
            free_inputs=False,
            precedences=tuple(self.precedences),
            name="torch",
        )

    def _add(self, root: Any, size: int) -> int:
        """Add the tensor of a root, of this many bytes; returns its index."""
        self.tensors.append(Tensor(id=root if isinstance(root, str) else root.name, size=size))
        self.tensor[root] = len(self.tensors) - 1
        return self.tensor[root]

    def _inputs(self) -> list[int]:
        """Add one tensor for all inputs together, and return its index in a list.

        All inputs are live all the time, so that it does not matter which operator reads which input.
        """
        total = sum(self.reading.input_bytes().values()) if self.counted.parameters else 0
        return [self._add("inputs", total)]

    def _written(self, node: Any, uncounted: set[Any]) -> list[int]:
        """Add the tensors that an operator writes, one for each element of a tuple, even if nothing reads it.

        Parameters
        ----------
        uncounted
            Nodes whose tensors do not count against the limit; these tensors get the size 0.

        Returns
        -------
        list of int
            Indices of the tensors.
        """
        value = node.meta.get("val")
        if is_mutable(node) or value is None:
            return []
        if not isinstance(value, tuple | list):
            return [self._add(node, 0 if node in uncounted else costs.written_bytes(node))]
        parts: dict[int, list[Any]] = {}
        for user in node.users:
            if is_tuple_element(user):
                parts.setdefault(user.args[1], []).append(user)
        written = []
        for at, item in enumerate(value):
            if not isinstance(item, torch.Tensor):
                continue
            elements = parts.get(at, [])
            size = 0 if any(part in uncounted for part in elements) else costs.storage_bytes(item)
            written.append(self._add(f"{node.name}#{at}" if not elements else elements[0], size))
            for part in elements[1:]:
                self.tensor[part] = written[-1]
        return written

    def _read(self, node: Any) -> list[int]:
        """Returns indices of the tensors that an operator reads; raises UnsupportedError if it reads a tuple as a whole."""
        numbers: dict[int, None] = {}
        for used in node.all_input_nodes:
            root = self.reading.root(used)
            if root in self.tensor:
                numbers[self.tensor[root]] = None
            elif root in self.reading.number:
                # The operator reads a tuple rather than one of its elements, or the token of an operator without results.
                raise UnsupportedError(f"{node.name} reads all results of {root.name} at once")
        return list(numbers)

    # ------------------------------------------------------------------------------------------------ effects and their order

    def _is_fixed(self, node: Any) -> bool:
        """Whether an operator must run exactly once."""
        policy = str(node.meta.get("recompute", ""))
        return (
            is_random(node)
            or is_mutable(node)
            or node.meta.get("val") is None
            or is_collective(node)
            or policy.endswith("MUST_SAVE")
        )

    def _order(self) -> None:
        """Add precedences, which keep operators in an order:

        - operators stay in the pass to which they belong
        - random operators stay in their order, and so do collectives
        - readers of a value stay in order with the operators that overwrite it
        """
        reading = self.reading
        behind_tangents = self._behind_tangents()
        chains: dict[str, int] = {}
        for number, node in enumerate(reading.nodes[:-1]):
            half = node.meta.get("stowplan_half") or _half(node)
            if half is None and (is_random(node) or is_mutable(node)):
                half = "backward" if number in behind_tangents else "forward"
            if half == "forward":
                self.precedences[number, reading.border] = None
            elif half == "backward":
                self.precedences[reading.border, number] = None
            for kind, is_of_kind in (("random", is_random(node)), ("collective", is_collective(node))):
                if is_of_kind:
                    if kind in chains:
                        self.precedences[chains[kind], number] = None
                    chains[kind] = number
        self._order_writes()

    def _order_writes(self) -> None:
        """Add precedences for values that an operator overwrites: their other readers stay before or after that operator."""
        reading = self.reading
        written: dict[Any, list[int]] = {}
        for number, node in enumerate(reading.nodes[:-1]):
            for argument, given in arguments(node):
                if is_written(argument) and isinstance(given, torch.fx.Node):
                    written.setdefault(reading.root(given), []).append(number)
        for number, node in enumerate(reading.nodes[:-1]):
            for root in {reading.root(used) for used in node.all_input_nodes} & written.keys():
                for other in written[root]:
                    if number < other and not ignores_statistics(node, root):
                        self.precedences[number, other] = None
                    elif number > other:
                        self.precedences[other, number] = None

    def _behind_tangents(self) -> set[int]:
        """Returns indices of the operators that depend on a tangent."""
        seen = set(self.reading.tangents)
        numbers = set()
        for node in self.reading.graph.nodes:
            if any(used in seen for used in node.all_input_nodes):
                seen.add(node)
                if node in self.reading.number:
                    numbers.add(self.reading.number[node])
        return numbers


def _half(node: Any) -> str | None:
    """Returns the pass in which AOTAutograd or the user requires a node to run: ``forward`` or ``backward``.

    It is None if neither of them requires a pass.
    """
    tag = str(node.meta.get("partitioner_tag"))
    if tag in ("must_be_in_forward", "must_be_in_backward"):
        return tag.removeprefix("must_be_in_")
    if is_mutable(node):
        return "backward" if tag == "is_backward" else "forward"
    return None


def ignores_statistics(node: Any, root: Any) -> bool:
    """Whether an operator reads an input only to update running statistics, as a batch norm does in training.

    If such an operator runs again, its weight is passed instead of the statistics, because another call of the model may have
    overwritten them by then.

    Parameters
    ----------
    node
        The node of the operator.
    root
        The node of the input.
    """
    if str(getattr(node, "target", "")) != "aten._native_batch_norm_legit_functional.default" or not node.args[5]:
        return False
    weight = node.args[1]
    if root not in node.args[3:5] or root in node.args[:3] or not isinstance(weight, torch.fx.Node):
        return False
    one, other = weight.meta["val"], root.meta["val"]
    return bool(one.dtype == other.dtype and one.device == other.device and one.shape == other.shape)


def is_collective(node: Any) -> bool:
    """Whether a node is a collective operation, which all processes of a job must run in the same order."""
    return str(getattr(node.target, "namespace", "")).startswith("_c10d")


def _storage_key(value: Any, node: Any) -> Any:
    """Returns a key of the storage of a tensor; the node itself if the tensor has no storage."""
    try:
        return storage_key(value.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return node


def sequence_of(reading: Reading, halves: Sequence[Any]) -> list[int] | None:
    """Returns the sequence of operators that a forward and a backward graph run, which a partitioner made of this joint graph.

    Parameters
    ----------
    reading
        The joint graph and its problem.
    halves
        Two ``torch.fx.Graph`` whose nodes have the names of the nodes of the joint graph.

    Returns
    -------
    list of int or None
        Indices of operators; None if some operator never runs.
    """
    index = {node.name: number for node, number in reading.number.items()}
    runs = [[index[node.name] for node in half.nodes if node.op == "call_function" and node.name in index] for half in halves]
    sequence = [*runs[0], *reading.arrival, reading.border, *runs[1]]
    return sequence if len(set(sequence)) == len(reading.nodes) else None
