"""Reads the subgraphs of a TensorFlow Lite model as graphs; side effects of operators keep their order.

Some operators have *effects* that outlive the inference: they read or write variables, have a state, draw random numbers, call
subgraphs with effects, or are unknown operators. Operators that use the same variable keep their order, and so do all
operators whose effects are not known to be independent. Some operators may *end the inference* early, so that no later
operator runs. Such an operator is a barrier: if an operator with effects moved across it, its state would be updated in other
inferences than before. The table ``effects`` of ``tflite.toml`` lists these operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

from stowplan.errors import naming
from stowplan.frontends import load_facts
from stowplan.frontends.tflite.model import ALIGNMENT, TYPES, Operator, TfliteModel, read_tflite
from stowplan.graph.graph import Graph, Op, Tensor
from stowplan.log import warn_unmodelled
from stowplan.models.operator_order.structure import build, stable_order

_TABLE = load_facts("tflite")["effects"]
#: Numbers of operators whose effects work on shared state, and names of custom operators with a state of their own.
_SHARED, _OWN_STATE = frozenset(_TABLE["shared"]), frozenset(_TABLE["own_state"].split())
#: For each operator that may end the inference, by its name or number, the positions of the operands that decide whether it
#: ends the inference. If there are no such operands, it may always end it.
_ENDS: dict[str, list[int]] = _TABLE["ends"]

#: Operators whose reference kernels request scratch memory from the runtime: SVDF, MEAN, LSTM, TRANSPOSE_CONV, SUM,
#: REDUCE_MAX, REDUCE_MIN, MIRROR_PAD, ADD_N, REDUCE_ALL.
_WITH_SCRATCH = frozenset({27, 40, 44, 67, 74, 82, 89, 100, 106, 140})

#: Flags of an operator: it has effects, and it may end the inference.
_HAS_EFFECTS, _MAY_END = 1, 2


def read_tflite_graph(path: str | Path) -> Graph:
    """Reads the graph of a model's first subgraph. An operator that calls subgraphs needs their peak as additional memory.

    Raises
    ------
    InputError
        The model cannot be read (:func:`~stowplan.frontends.tflite.model.read_tflite`), or a tensor has two writers.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    model = read_tflite(path)
    warn_of_scratch(model)
    with naming(path):
        return TfliteGraphs(model).with_calls(0)


def warn_of_scratch(model: TfliteModel) -> None:
    """Warns of operators of the first subgraph that request scratch memory from the runtime, because it is not planned."""
    for position, operator in enumerate(model.subgraphs[0].operators):
        if operator.code in _WITH_SCRATCH:
            text = "its kernel asks for scratch memory that is not planned: the arena may have to be larger"
            warn_unmodelled(f"{text} ('stowplan tflm' plans it)", f"operator {position}")


class TfliteGraphs:
    """The subgraphs of a model as graphs. ``number`` and ``graph`` are positions of subgraphs in the model; methods raise
    IndexError if there is no such subgraph."""

    def __init__(self, model: TfliteModel):
        self.model = model
        self._kinds: dict[int, list[int]] = {}
        self._peaks: dict[int, int] = {}

    def with_calls(self, number: int) -> Graph:
        """The graph of a subgraph, in which an operator that calls subgraphs needs their peak in addition to its results.

        The peak is that of the called subgraphs in the order of the file. Raises InputError as :meth:`graph` does.
        """
        operators = self.model.subgraphs[number].operators
        inside = [max(map(self._peak, operator.calls), default=0) for operator in operators]
        return self.graph(number, inside, stored=False)

    def _peak(self, number: int) -> int:
        """The peak of a subgraph in bytes."""
        if number not in self._peaks:
            structure = build(self.with_calls(number))
            self._peaks[number] = structure.peak(stable_order(structure))
        return self._peaks[number]

    def graph(self, number: int, inside: Sequence[int] = (), *, stored: bool = True) -> Graph:
        """The graph of a subgraph; its operators are named by their positions in the file.

        Parameters
        ----------
        number
            Position of the subgraph in the model.
        inside
            For each operator, the bytes that it needs while it runs, such as scratch memory. They become a tensor that the
            operator writes and that no operator reads. An empty sequence means that no operator needs any.
        stored
            Whether tensors that no operator writes and that need no memory in the arena, such as weights, are included, with
            0 bytes.

        Raises
        ------
        InputError
            Several operators write the same tensor, so that they must keep their order.
        """
        subgraph, tensors = self.model.subgraphs[number], self.model.tensors
        written = {tensor for operator in subgraph.operators for tensor in operator.writes}
        touched = {tensor for operator in subgraph.operators for tensor in (*operator.reads, *operator.writes)}
        all_numbers = sorted({*subgraph.inputs, *subgraph.outputs, *touched})
        returned = {*subgraph.outputs}
        numbers = [at for at in all_numbers if stored or at in written or tensors[at].is_planned or at in returned]
        index = {tensor: at for at, tensor in enumerate(numbers)}
        every = [
            Tensor(
                id=tensors[tensor].name,
                size=tensors[tensor].size * tensors[tensor].is_planned,
                alignment=ALIGNMENT,
                dtype=TYPES.get(tensors[tensor].kind, ""),
                shape=tensors[tensor].shape,
            )
            for tensor in numbers
        ]
        ops = []
        for position, (operator, kind) in enumerate(zip(subgraph.operators, self.effects(number), strict=True)):
            writes = [index[tensor] for tensor in dict.fromkeys(operator.writes)]
            if inside and inside[position]:
                writes.append(len(every))
                every.append(Tensor(id=f"inside {position}", size=inside[position], alignment=ALIGNMENT))
            reads = [index[tensor] for tensor in dict.fromkeys(operator.reads) if tensor in index]
            ops.append(
                Op(
                    id=str(position),
                    kind=operator.what,
                    reads=tuple(at for at in reads if at not in writes),
                    writes=tuple(writes),
                    has_effects=bool(kind),
                )
            )
        return Graph(
            name=self.model.name,
            tensors=tuple(every),
            ops=tuple(ops),
            # Tensors that no operator writes, such as weights, are inputs.
            inputs=tuple(at for tensor, at in index.items() if tensor not in written),
            outputs=tuple(index[tensor] for tensor in dict.fromkeys(subgraph.outputs)),
            results=tuple(index[tensor] for tensor in subgraph.outputs),
            precedences=self._precedences(number),
        )

    def _precedences(self, graph: int) -> tuple[tuple[int, int], ...]:
        """Pairs of operators of which the first must run before the second because of their effects."""
        # Operators that keep their order, by the variable that they use; -1 is the key of effects that may be dependent.
        chains: dict[int, list[int]] = {}
        # A run is a sequence of operators with the same flags. Operators of neighbouring runs must not change places.
        runs: list[tuple[int, list[int]]] = [(0, [])]
        for position, (operator, kind) in enumerate(
            zip(self.model.subgraphs[graph].operators, self.effects(graph), strict=True)
        ):
            if operator.code in _SHARED or operator.is_opaque or (operator.calls and kind & _HAS_EFFECTS):
                chains.setdefault(-1, []).append(position)
            for number in dict.fromkeys((*operator.reads, *operator.writes)):
                if self.model.tensors[number].is_variable:
                    chains.setdefault(number, []).append(position)
            if kind and (kind != runs[-1][0] or kind == _HAS_EFFECTS | _MAY_END):
                runs.append((kind, []))
            if kind:
                runs[-1][1].append(position)
        pairs = [pair for chain in chains.values() for pair in pairwise(chain)]
        pairs += [pair for (_, before), (_, after) in pairwise(runs) for pair in product(before, after)]
        return tuple(dict.fromkeys(pairs))

    def effects(self, graph: int) -> list[int]:
        """For each operator of a subgraph, its flags, which include those of the subgraphs that it calls: the sum of 1 if it
        has effects and 2 if it may end the inference."""
        if graph not in self._kinds:
            self._kinds[graph] = [self._kind(graph, operator) for operator in self.model.subgraphs[graph].operators]
        return self._kinds[graph]

    def _kind(self, graph: int, operator: Operator) -> int:
        """The flags of an operator."""
        tensors, inputs = self.model.tensors, self.model.subgraphs[graph].inputs
        variables = any(tensors[number].is_variable for number in (*operator.reads, *operator.writes))
        has_effects = operator.code in _SHARED or operator.custom in _OWN_STATE or operator.is_opaque or variables
        deciding = _ENDS.get(operator.custom or str(operator.code))
        # Constants are the same in all inferences. Inputs that are preserved are not planned, but may change between
        # inferences.
        changing = {
            at
            for at, number in enumerate(operator.reads)
            if number in inputs or tensors[number].is_planned or tensors[number].is_variable
        }
        ends = operator.is_opaque or deciding == [] or not changing.isdisjoint(deciding or ())
        kind = _HAS_EFFECTS * has_effects | _MAY_END * ends
        for called in operator.calls:
            for inner in self.effects(called):
                kind |= inner
        return kind
