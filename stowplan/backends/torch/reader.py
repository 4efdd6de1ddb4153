"""The joint graph of a forward and a backward pass, as AOTAutograd makes it, as a problem of rematerialization.

An operator is a node that makes tensors; parts of a tuple belong to it. A view is none: whoever reads it reads its base, and it
is made anew wherever it is needed. Between the passes one more operator runs, the *border*: it reads what the forward pass
returns, and writes the tangents. Both stay from there on: the caller holds them. What is live across it is saved for the
backward pass. Inputs are there from the start to the end.
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

#: All costs together stay below this; those of larger graphs are counted in a larger unit.
MOST_COST = 1 << 46

#: Higher-order operators that compute, and do nothing else.
_PLAIN_HIGHER_ORDER = ("flex_attention", "flex_attention_backward", "triton_kernel_wrapper_functional")


@dataclass(frozen=True)
class Counted:
    """What a limit is a limit of."""

    parameters: bool = True
    """Whether inputs of the graph count: parameters, buffers, and what the model is called with."""
    gradients: bool = True
    """Whether what the backward pass returns counts."""


@dataclass
class Reading:
    """A joint graph and its problem."""

    graph: Any
    """``torch.fx.Graph``."""
    forward_outputs: list[Any]
    backward_outputs: list[Any]
    problem: Problem = field(init=False)
    unit: int = 1
    """Costs of the problem are in so many floating-point operations, or picoseconds."""
    nodes: list[Any] = field(default_factory=list)
    """[operators] node; None for the border."""
    flops: list[int] = field(default_factory=list)
    """[operators] floating-point operations, without those that stand for moved bytes."""
    number: dict[Any, int] = field(default_factory=dict)
    """Operator of a node."""
    tensor: dict[Any, int] = field(default_factory=dict)
    """Number of the problem's tensor of a root."""
    base: dict[Any, Any] = field(default_factory=dict)
    """Of a view the node that it is a view of."""
    symbols: set[Any] = field(default_factory=set)
    """Nodes whose values are sizes, not tensors."""
    inputs: list[Any] = field(default_factory=list)
    """Placeholders that are there from the start."""
    tangents: list[Any] = field(default_factory=list)
    border: int = 0
    """Number of the border among the operators."""
    arrival: tuple[int, ...] = ()
    """That of the operator right before it that writes the tangents, where that is one of its own."""

    def root(self, node: Any) -> Any:
        """The node whose bytes a node's value has: an operator, a part of one, or an input."""
        while node in self.base:
            node = self.base[node]
        return node

    def owner(self, node: Any) -> int | None:
        """Operator that makes a value; None for inputs and constants."""
        node = self.root(node)
        if is_part(node):
            node = node.args[0]
        return self.number.get(node)

    def input_bytes(self) -> dict[int, int]:
        """Bytes of the inputs that are tensors, by their numbers among all inputs; of those that share storage the first's."""
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
        """Floating-point operations of a sequence beyond those of each operator once."""
        return sum(self.flops[number] for number in sequence) - sum(self.flops)


def is_part(node: Any) -> bool:
    """Whether a node is a part of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node)


def is_mutable(node: Any) -> bool:
    """Whether a node writes over one of its arguments."""
    return bool(getattr(schema_of(node), "is_mutable", False))


#: Of operators' nodes, their floating-point operations and whether they never run again, what a run of each costs.
Prices = Callable[[Sequence[Any], Sequence[int], Sequence[bool]], list[int]]


def read(graph: Any, num_fwd_outputs: int, counted: Counted = Counted(), prices: Prices = costs.costs) -> Reading:
    """The problem of a joint graph.

    Parameters
    ----------
    graph
        ``torch.fx.Graph`` of ATen operators with values in ``meta["val"]``: primals and tangents in, outputs of the forward
        pass and then gradients out.
    num_fwd_outputs
        How many of its outputs are the forward pass's.
    prices
        In floating-point operations, or in picoseconds.

    Raises
    ------
    UnsupportedError
        It has effects that cannot be moved, or sizes that depend on data.
    """
    (last,) = (node for node in graph.nodes if node.op == "output")
    outputs = list(last.args[0])
    reading = Reading(graph, outputs[:num_fwd_outputs], outputs[num_fwd_outputs:])
    for node in graph.nodes:
        _classify(reading, node)
    _Builder(reading, counted, prices).build()
    return reading


def _classify(reading: Reading, node: Any) -> None:
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
    if is_part(node):
        whole = node.args[0]
        if whole in reading.base:
            reading.base[node] = reading.base[whole]
        elif whole in reading.symbols:
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
    name = str(node.target)
    if isinstance(node.target, HigherOrderOperator) and not name.endswith(_PLAIN_HIGHER_ORDER):
        raise UnsupportedError(f"{name} cannot be moved")
    if name.startswith("aten._local_scalar_dense"):
        raise UnsupportedError("a number is read out of a tensor")
    warn_of_unknown(node.target, node.name)


def _viewed(node: Any) -> Any:
    """The argument that all of a node's value is a view of; None where it has bytes of its own."""
    made = tensors_of(node.meta.get("val"))
    for used in node.all_input_nodes:
        given = tensors_of(used.meta.get("val"))
        if made and given and all(_share(own, other) for own in made for other in given):
            return used
    return None


def _share(one: Any, other: Any) -> bool:
    return bool(_storage_key(one, "one") == _storage_key(other, "other"))


class _Builder:
    """Makes the tensors, operators and precedences of a reading's problem."""

    def __init__(self, reading: Reading, counted: Counted, prices: Prices):
        self.reading, self.counted, self.prices = reading, counted, prices
        self.tensors: list[Tensor] = []
        self.tensor = reading.tensor
        self.ops: list[Op] = []
        self.precedences: dict[tuple[int, int], None] = {}

    def build(self) -> None:
        reading = self.reading
        reading.border = len(reading.nodes)
        reading.nodes.append(None)
        gradients = {reading.root(node) for node in reading.backward_outputs if isinstance(node, torch.fx.Node)}
        free = set() if self.counted.gradients else gradients
        resident = self._inputs()
        writes = [self._written(node, free) for node in reading.nodes[:-1]]
        arrived = [self._add(node, costs.storage_bytes(node.meta["val"])) for node in reading.tangents]
        reads = [self._read(node) for node in reading.nodes[:-1]]
        self._order()
        reading.flops = [*(costs.flops(node) for node in reading.nodes[:-1]), 0]
        is_fixed = [self._is_fixed(node) for node in reading.nodes[:-1]]
        spent = self.prices(reading.nodes[:-1], reading.flops[:-1], is_fixed)
        reading.unit = max(1, -(-sum(spent) // MOST_COST))
        returned = {reading.root(node) for node in reading.forward_outputs if isinstance(node, torch.fx.Node)}
        held = [self.tensor[root] for root in returned if root in self.tensor]
        # What the forward pass returns stays until the end: running its operator again frees nothing.
        self.precedences |= {(op, reading.border): None for op, made in enumerate(writes) if made and {*made} <= {*held}}
        stays = []
        for tensor in held:
            base = self.tensors[tensor]
            self.tensors.append(Tensor(id=f"{base.id} returned", size=0, alias_of=tensor))
            stays.append(len(self.tensors) - 1)
        for number, node in enumerate(reading.nodes[:-1]):
            self.ops.append(
                Op(
                    id=node.name,
                    reads=tuple(reads[number]),
                    writes=tuple(writes[number]),
                    cost=-(-spent[number] // reading.unit),
                    once=is_fixed[number],
                    kind=str(node.target),
                )
            )
        self.ops.append(Op(id="border", reads=tuple(held), writes=(*arrived, *stays), once=True, kind="border"))
        reading.problem = Problem(
            tensors=tuple(self.tensors),
            ops=tuple(self.ops),
            inputs=tuple(resident),
            outputs=tuple(dict.fromkeys([*stays, *arrived, *(self.tensor[root] for root in gradients if root in self.tensor)])),
            free_inputs=False,
            precedences=tuple(self.precedences),
            name="torch",
        )

    def _add(self, root: Any, size: int) -> int:
        self.tensors.append(Tensor(id=root if isinstance(root, str) else root.name, size=size))
        self.tensor[root] = len(self.tensors) - 1
        return self.tensor[root]

    def _inputs(self) -> list[int]:
        """One tensor for all inputs: they are there all the time, so that nothing depends on who reads them."""
        total = sum(self.reading.input_bytes().values()) if self.counted.parameters else 0
        return [self._add("inputs", total)]

    def _written(self, node: Any, free: set[Any]) -> list[int]:
        """Tensors of an operator: of a tuple one for each part, also of those that nobody takes."""
        value = node.meta.get("val")
        if is_mutable(node) or value is None:
            return []
        if not isinstance(value, tuple | list):
            return [self._add(node, 0 if node in free else costs.written_bytes(node))]
        parts: dict[int, list[Any]] = {}
        for user in node.users:
            if is_part(user):
                parts.setdefault(user.args[1], []).append(user)
        written = []
        for at, item in enumerate(value):
            if not isinstance(item, torch.Tensor):
                continue
            named = parts.get(at, [])
            size = 0 if any(part in free for part in named) else costs.storage_bytes(item)
            written.append(self._add(f"{node.name}#{at}" if not named else named[0], size))
            for part in named[1:]:
                self.tensor[part] = written[-1]
        return written

    def _read(self, node: Any) -> list[int]:
        numbers: dict[int, None] = {}
        for used in node.all_input_nodes:
            root = self.reading.root(used)
            if root in self.tensor:
                numbers[self.tensor[root]] = None
            elif root in self.reading.number:
                # A whole tuple is read, or the token of an operator without results.
                raise UnsupportedError(f"{node.name} reads all results of {root.name} at once")
        return list(numbers)

    # ------------------------------------------------------------------------------------------------ effects and their order

    def _is_fixed(self, node: Any) -> bool:
        """Whether an operator may not run again."""
        policy = str(node.meta.get("recompute", ""))
        return (
            is_random(node)
            or is_mutable(node)
            or node.meta.get("val") is None
            or is_collective(node)
            or policy.endswith("MUST_SAVE")
        )

    def _order(self) -> None:
        reading = self.reading
        behind = self._behind_tangents()
        chains: dict[str, int] = {}
        for number, node in enumerate(reading.nodes[:-1]):
            half = node.meta.get("stowplan_half") or _half(node)
            if half is None and (is_random(node) or is_mutable(node)):
                half = "backward" if number in behind else "forward"
            if half == "forward":
                self.precedences[number, reading.border] = None
            elif half == "backward":
                self.precedences[reading.border, number] = None
            for kind, is_one in (("random", is_random(node)), ("collective", is_collective(node))):
                if is_one:
                    if kind in chains:
                        self.precedences[chains[kind], number] = None
                    chains[kind] = number
        self._order_writes()

    def _order_writes(self) -> None:
        """Who reads what is written over does so before, or after, as in the graph."""
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
        """Operators that need a tangent."""
        seen = set(self.reading.tangents)
        numbers = set()
        for node in self.reading.graph.nodes:
            if any(used in seen for used in node.all_input_nodes):
                seen.add(node)
                if node in self.reading.number:
                    numbers.add(self.reading.number[node])
        return numbers


def _half(node: Any) -> str | None:
    """The pass that a node has to be in, where AOTAutograd or its user says so."""
    tag = str(node.meta.get("partitioner_tag"))
    if tag in ("must_be_in_forward", "must_be_in_backward"):
        return tag.removeprefix("must_be_in_")
    if is_mutable(node):
        return "backward" if tag == "is_backward" else "forward"
    return None


def ignores_statistics(node: Any, root: Any) -> bool:
    """Whether an operator's other results are the same whatever this input is: a batch norm in training, and its statistics.

    Where it runs again, its weight stands in for them: another call of the model may have written over them by then.
    """
    if str(getattr(node, "target", "")) != "aten._native_batch_norm_legit_functional.default" or not node.args[5]:
        return False
    weight = node.args[1]
    if root not in node.args[3:5] or root in node.args[:3] or not isinstance(weight, torch.fx.Node):
        return False
    one, other = weight.meta["val"], root.meta["val"]
    return bool(one.dtype == other.dtype and one.device == other.device and one.shape == other.shape)


def is_collective(node: Any) -> bool:
    """Whether all processes of a job have to run a node in one order."""
    return str(getattr(node.target, "namespace", "")).startswith("_c10d")


def _storage_key(value: Any, node: Any) -> Any:
    try:
        return storage_key(value.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return node


def sequence_of(reading: Reading, halves: Sequence[Any]) -> list[int] | None:
    """The runs of a forward and a backward graph that a partitioner made of this joint graph; None where one never runs.

    Parameters
    ----------
    halves
        Two ``torch.fx.Graph`` whose nodes have the names of those of the joint graph.
    """
    named = {node.name: number for node, number in reading.number.items()}
    runs = [[named[node.name] for node in half.nodes if node.op == "call_function" and node.name in named] for half in halves]
    sequence = [*runs[0], *reading.arrival, reading.border, *runs[1]]
    return sequence if len(set(sequence)) == len(reading.nodes) else None
