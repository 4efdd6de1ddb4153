"""A traced loss: finds the parts of it that get a policy, gives names to their values, and rebuilds the loss with the policy.

A policy of ``jax.checkpoint`` says which values of the forward pass are saved for the backward pass. An interpreter runs the
traced program equation by equation; inner ``jit`` and ``jax.checkpoint`` are inlined. The program is divided into *parts*:

- the scans, if they have at least half of the floating-point operations
- otherwise the repeated blocks of equations, such as the layers of an unrolled model, if these have at least half
- otherwise the whole program as one part

Each part is wrapped in ``jax.checkpoint`` with the policy, and each floating-point value in it gets a name by
``checkpoint_name``, unless it has one. Equal programs get equal names. The functions raise only the errors that jax raises
while it traces the program.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.extend.core as core
import jax.numpy as jnp
import numpy as np
from jax._src import source_info_util
from jax.ad_checkpoint import checkpoint_name

from stowplan.backends.jax.graph import Graph, Node
from stowplan.backends.jax.policy import Policy
from stowplan.hardware.targets import Roofline

#: Names of the operators whose equations are replaced by the program inside of them.
_INLINED = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint")

#: Names of the operators that are matrix products.
_PRODUCTS = ("dot_general", "conv_general_dilated")

#: Scans or blocks become parts if they have at least this share of all floating-point operations.
_MIN_SHARE_OF_WORK = 0.5

Values = list[Any]
#: A function that takes an equation and its results, and returns the results to use instead, for example with names.
Renaming = Callable[[Any, Values], Values]


@dataclass(frozen=True, eq=False)
class Part:
    """Equations ``[start, stop)`` of a program, which are wrapped in ``jax.checkpoint``.

    Attributes
    ----------
    name
        Name of the part, which is equal for repetitions of one block.
    start, stop
        Indices of its first equation and of the one after its last.
    times
        How often it runs: the iterations of a scan, or the repetitions of a block.
    reads, writes
        Variables of the program that it reads and writes.
    shapes
        Shapes of the inputs of one run; for a scan, those of one iteration.
    body
        A function that evaluates one run and returns the values of ``writes``. It takes the values of ``reads`` and a
        :data:`Renaming`, which is None if values get no names. For a scan, one run is one iteration.
    scan
        Parameters of the scan's equation; None for a block.
    """

    name: str
    start: int
    stop: int
    times: int
    reads: Sequence[Any]
    writes: Sequence[Any]
    shapes: Sequence[Any]
    body: Callable[[Sequence[Any], Renaming | None], Values]
    scan: dict[str, Any] | None = None

    def once(self, policy: Policy) -> Callable[..., Values]:
        """Returns a function that evaluates one run of the part with a policy."""

        def named(*inputs: Any) -> Values:
            return self.body(inputs, _renaming(self.name) if policy.kind == "planned" else None)

        # ``prevent_cse`` keeps XLA from merging the recomputation with the forward pass. Inside of a loop XLA cannot merge
        # them.
        checkpointed: Callable[..., Values] = jax.checkpoint(named, policy=policy.rule(), prevent_cse=self.scan is None)
        return checkpointed

    def run(self, values: Values, policy: Policy) -> Values:
        """Evaluates the part with a policy; a scan is evaluated with all its iterations.

        It takes the values of the variables ``reads``, and returns the values of ``writes``.
        """
        checkpointed = self.once(policy)
        if self.scan is None:
            return list(checkpointed(*values))
        constants, carried = self.scan["num_consts"], self.scan["num_carry"]
        first = constants + carried

        def step(carry: Values, slices: Values) -> tuple[Values, Values]:
            results = list(checkpointed(*values[:constants], *carry, *slices))
            return results[:carried], results[carried:]

        options = {name: self.scan[name] for name in ("length", "reverse", "unroll", "_split_transpose") if name in self.scan}
        last, stacked = jax.lax.scan(step, values[constants:first], values[first:], **options)
        return [*last, *stacked]

    def graph(self, roofline: Roofline) -> Graph:
        """Returns the graph of the part's forward pass, with the values that its backward pass reads.

        The times of its nodes are predicted by a roofline model, from floating-point operations and bytes.
        """
        floats = [number for number, shape in enumerate(self.shapes) if _is_float(shape)]

        def forward(*inputs: Any) -> Any:
            def results(*given: Any) -> Values:
                changed = dict(zip(floats, given, strict=True))
                filled = [changed.get(number, value) for number, value in enumerate(inputs)]
                return [value for value in self.body(filled, _renaming(self.name)) if _is_float(value)]

            return jax.vjp(results, *(inputs[number] for number in floats))[1]

        jaxpr = _inlined(jax.make_jaxpr(forward)(*self.shapes)).jaxpr
        node_of: dict[Any, int] = {}
        nodes: list[Node] = []
        for number, equation in enumerate(jaxpr.eqns):
            sources = tuple(dict.fromkeys(node_of[var] for var in _variables(equation.invars) if var in node_of))
            if equation.primitive.name == "name":
                # A value may be named several times; its producer is the equation before all of them.
                source = producer = jaxpr.eqns[sources[0]] if sources else equation
                operands = sources
                while producer.primitive.name == "name" and (operands := nodes[operands[0]].inputs if operands else ()):
                    producer = jaxpr.eqns[operands[0]]
                nodes.append(self._named(equation, source, sources, producer))
            else:
                nodes.append(Node(_seconds(equation, roofline), sources, flops=_flops(equation)))
            node_of.update(dict.fromkeys(equation.outvars, number))
        read = dict.fromkeys(var for var in _variables(jaxpr.outvars) if var in node_of)
        return Graph(self.times, tuple(nodes), tuple((node_of[var], _bytes(var.aval)) for var in read))

    def _named(self, equation: Any, source: Any, sources: tuple[int, ...], producer: Any) -> Node:
        """Returns the node of an equation that names a value.

        Parameters
        ----------
        source
            The equation whose value is named.
        sources
            Indices of the nodes that the equation reads.
        producer
            The equation that computed the value; it differs from ``source`` if ``source`` names the value as well.
        """
        name, shape = equation.params["name"], equation.outvars[0].aval
        traits = [] if name.startswith(f"{self.name}.") else ["names"]
        if source.primitive.name in _PRODUCTS:
            traits.append("dots")
        if source.primitive.name == "dot_general" and not any(source.params["dimension_numbers"][1]):
            traits.append("dots_no_batch")
        line = f"{shape.str_short()} {producer.primitive.name} {source_info_util.summarize(producer.source_info)}"
        return Node(0.0, sources, name, _bytes(shape), tuple(traits), line)


class Loss:
    """A traced function, which can be run with a policy.

    Parameters
    ----------
    function
        A function for ``jax.make_jaxpr``.
    arguments
        Trees of arrays, shapes, or tracers. Errors that the function raises while jax traces it are raised.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any]):
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        self._results = jax.tree.structure(shapes)
        self._traced = _inlined(traced)

    def run(self, policy: Policy, arguments: Sequence[Any]) -> Any:
        """Evaluates the function with its parts under a policy."""
        jaxpr, position = self._traced.jaxpr, 0
        values = _initial_values(self._traced, jax.tree.leaves(tuple(arguments)))
        for part in self.parts:
            _evaluate(jaxpr.eqns[position : part.start], values)
            results = part.run(_values_of(part.reads, values), policy)
            values.update(zip(part.writes, results, strict=True))
            position = part.stop
        _evaluate(jaxpr.eqns[position:], values)
        return jax.tree.unflatten(self._results, _values_of(jaxpr.outvars, values))

    @cached_property
    def parts(self) -> list[Part]:
        """The parts that get a policy, in the order of the program."""
        equations = self._traced.jaxpr.eqns
        work = [_flops(equation) for equation in equations]
        scans = [number for number, eqn in enumerate(equations) if work[number] and eqn.primitive.name == "scan"]
        scans = [number for number in scans if equations[number].params["length"] > 1]
        if scans and sum(work[number] for number in scans) >= _MIN_SHARE_OF_WORK * sum(work):
            return [_scan(f"scan{place}", number, equations[number]) for place, number in enumerate(scans)]
        start, length, times = repeated([_signature(equation) for equation in equations])
        if times < 2 or sum(work[start : start + length * times]) < _MIN_SHARE_OF_WORK * sum(work):
            start, length, times = 0, len(equations), 1
        starts = range(start, start + length * times, length)
        return [self._block(start, start + length, times) for start in starts] if length else []

    def graphs(self, roofline: Roofline) -> list[Graph]:
        """Returns the graphs of the parts' forward passes; a block that is repeated has one graph for all repetitions."""
        different = {part.name: part for part in reversed(self.parts)}
        return [part.graph(roofline) for part in reversed(different.values())]

    def _block(self, start: int, stop: int, times: int) -> Part:
        """Returns the part that consists of the equations ``[start, stop)``, a block that is repeated ``times`` times."""
        jaxpr = self._traced.jaxpr
        equations = jaxpr.eqns[start:stop]
        computed = {var for equation in equations for var in equation.outvars}
        read_later = {var for equation in jaxpr.eqns[stop:] for var in _variables(equation.invars)}
        read_later.update(_variables(jaxpr.outvars))
        reads = [*dict.fromkeys(var for eqn in equations for var in _variables(eqn.invars) if var not in computed)]
        writes = [var for eqn in equations for var in eqn.outvars if var in read_later]

        def body(inputs: Sequence[Any], renaming: Renaming | None) -> Values:
            values = dict(zip(reads, inputs, strict=True))
            _evaluate(equations, values, renaming)
            return _values_of(writes, values)

        shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in reads]
        return Part("block", start, stop, times, reads, writes, shapes, body)


def _scan(name: str, number: int, equation: Any) -> Part:
    """Returns the part that consists of a scan; ``number`` is the index of its equation."""
    inner = equation.params["jaxpr"]

    def body(inputs: Sequence[Any], renaming: Renaming | None) -> Values:
        values = _initial_values(inner, inputs)
        _evaluate(inner.jaxpr.eqns, values, renaming)
        return _values_of(inner.jaxpr.outvars, values)

    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in inner.in_avals]
    times = equation.params["length"]
    return Part(name, number, number + 1, times, equation.invars, equation.outvars, shapes, body, equation.params)


def repeated(signatures: Sequence[str]) -> tuple[int, int, int]:
    """Finds the most items that consist of equal blocks, one directly after the other.

    Parameters
    ----------
    signatures
        [items] A text for each item; items with equal texts count as equal.

    Returns
    -------
    (int, int, int)
        Index of the first item of the first block, number of items of a block, and number of blocks. If there are no two equal
        neighbouring blocks, the result is one block of all items.
    """
    numbers = np.unique(np.array(signatures, dtype=object), return_inverse=True)[1] if signatures else np.zeros(0, int)
    best, covered = (0, len(numbers), 1), 0
    for period in range(1, len(numbers) // 2 + 1):
        equal = np.concatenate([[False], numbers[period:] == numbers[:-period], [False]])
        edges = np.flatnonzero(np.diff(equal.astype(int)))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            times = (end - begin) // period + 1
            if times > 1 and times * period > covered:
                best, covered = (begin, period, times), times * period
    return best


def text_of(traced: Any) -> str:
    """Returns a traced program as text without memory addresses; the text is part of the keys of stored results."""
    return re.sub(r"0x[0-9a-f]+", "0x", str(traced))


def has_checkpoints(traced: Any) -> bool:
    """Whether a traced program itself contains a ``jax.checkpoint``."""
    return "remat2[" in str(traced) or "checkpoint[" in str(traced)


def _inlined(traced: Any) -> Any:
    """Returns the traced program with inner ``jit`` and ``jax.checkpoint`` inlined."""

    def inlined(*inputs: Any) -> Values:
        values = _initial_values(traced, inputs)
        _evaluate(traced.jaxpr.eqns, values)
        return _values_of(traced.jaxpr.outvars, values)

    return jax.make_jaxpr(inlined)(
        *(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in traced.in_avals)
    )


def _initial_values(traced: Any, inputs: Iterable[Any]) -> dict[Any, Any]:
    """Returns a dictionary from the variables of a program to their values before its first equation."""
    return dict(zip((*traced.jaxpr.constvars, *traced.jaxpr.invars), (*traced.consts, *inputs), strict=True))


def _values_of(variables: Iterable[Any], values: dict[Any, Any]) -> Values:
    """Returns the values of variables and literals."""
    return [var.val if isinstance(var, core.Literal) else values[var] for var in variables]


def _variables(variables: Iterable[Any]) -> Iterator[Any]:
    """Returns the operands or results that are variables, without those that are literals."""
    return (var for var in variables if not isinstance(var, core.Literal))


def _evaluate(equations: Sequence[Any], values: dict[Any, Any], renaming: Renaming | None = None) -> None:
    """Evaluate equations, with inner programs inlined; their results are added to ``values``."""
    for equation in equations:
        inputs = _values_of(equation.invars, values)
        inner = _inner(equation)
        source = equation.source_info
        stack = source_info_util.current_name_stack() + source.name_stack
        if inner is not None:
            inside = _initial_values(inner, inputs)
            _evaluate(inner.jaxpr.eqns, inside, renaming)
            results = _values_of(inner.jaxpr.outvars, inside)
        else:
            with source_info_util.user_context(source.traceback, name_stack=stack), equation.ctx.manager:
                output = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
                results = list(output) if equation.primitive.multiple_results else [output]
                if renaming is not None:
                    results = renaming(equation, results)
        values.update(zip(equation.outvars, results, strict=True))


def _inner(equation: Any) -> Any:
    """Returns the closed program that replaces an equation; None if the equation is evaluated unchanged.

    A ``jit`` with shardings of its own is not replaced, because they would be lost.
    """
    if equation.primitive.name not in _INLINED:
        return None
    if any(hasattr(sharding, "spec") for sharding in equation.params.get("in_shardings", ())):
        return None
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return core.ClosedJaxpr(inner, ()) if isinstance(inner, core.Jaxpr) else inner


def _renaming(prefix: str) -> Renaming:
    """Returns a function that names floating-point values by the order of their equations: ``prefix.0``, ``prefix.1``."""
    counter = itertools.count()

    def named(equation: Any, results: Values) -> Values:
        number = next(counter)
        if equation.primitive.name == "name":
            return results
        names = [f"{prefix}.{number}" + (f".{place}" if place else "") for place in range(len(results))]
        return [checkpoint_name(value, name) if _is_float(value) else value for value, name in zip(results, names, strict=True)]

    return named


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, np.floating))


def _bytes(aval: Any) -> int:
    """Returns the bytes of an array of this abstract value."""
    return int(math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 0))


def _signature(equation: Any) -> str:
    """Returns text that is equal for equations with the same operator and the same types of operands and results."""
    return f"{equation.primitive.name} {[str(var.aval) for var in (*equation.invars, *equation.outvars)]}"


def _flops(equation: Any) -> int:
    """Returns the number of floating-point operations of the matrix products in an equation.

    The operations inside of a scan are multiplied by the number of its iterations.
    """
    if equation.primitive.name in _PRODUCTS:
        sizes, output = [math.prod(var.aval.shape) for var in equation.invars], math.prod(equation.outvars[0].aval.shape)
        if equation.primitive.name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            return int(2 * output * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted))
        channels = equation.params["dimension_numbers"].rhs_spec[0]
        return int(2 * output * sizes[1] // equation.invars[1].aval.shape[channels])
    inner = sum(
        _flops(inside) for jaxpr in core.jaxprs_in_params(equation.params) for inside in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )
    return inner * int(equation.params.get("length", 1) if equation.primitive.name == "scan" else 1)


def _seconds(equation: Any, roofline: Roofline) -> float:
    """Returns the seconds of an equation by a roofline model.

    These are the time of its matrix products or the time of moving its bytes, whichever is longer.

    Matrix products read and write their operands and results; other equations are assumed to be fused and only write results.
    """
    read = equation.invars if equation.primitive.name in _PRODUCTS else ()
    moved = sum(_bytes(var.aval) for var in (*read, *equation.outvars) if hasattr(var.aval, "shape"))
    return max(_flops(equation) / roofline.compute, moved / roofline.slow_write_bandwidth)
