"""A loss as jax traces it: the parts of it that are planned, names for their values, and the loss rebuilt with a policy.

The traced program is run again by an interpreter, equation by equation, inner ``jit`` and ``jax.checkpoint`` inlined. Parts are
the scans where they have most of the work; else blocks of equations that follow each other again and again, as an unrolled
model's layers do; else the whole. Each is put under ``jax.checkpoint`` with the policy, and each float value in it gets a name
by ``checkpoint_name``, unless it has one. Equal programs get equal names.
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

#: Equations that are replaced by what is in them.
_INLINED = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint")

_PRODUCTS = ("dot_general", "conv_general_dilated")

#: Parts are of a kind that has this share of all floating-point operations at least.
_SHARE = 0.5

Values = list[Any]
#: Given an equation and its values, the values in their place.
Renaming = Callable[[Any, Values], Values]


@dataclass(frozen=True, eq=False)
class Part:
    """Equations ``[start, stop)`` of a program, which get a policy of their own.

    Attributes
    ----------
    name
        Equal for repetitions of one block.
    times
        How often it runs.
    reads, writes
        Variables of the program.
    shapes
        Of what one run takes: of a scan, an iteration's slices.
    body
        One run.
    scan
        Parameters of the scan; None for a block.
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
        """One run of it, under a policy."""

        def named(*inputs: Any) -> Values:
            return self.body(inputs, _naming(self.name) if policy.kind == "planned" else None)

        # Within a loop nothing can be merged across its backward pass.
        under: Callable[..., Values] = jax.checkpoint(named, policy=policy.rule(), prevent_cse=self.scan is None)
        return under

    def run(self, values: Values, policy: Policy) -> Values:
        """All runs of it, under a policy."""
        under = self.once(policy)
        if self.scan is None:
            return list(under(*values))
        constants, carried = self.scan["num_consts"], self.scan["num_carry"]
        first = constants + carried

        def step(carry: Values, slices: Values) -> tuple[Values, Values]:
            results = list(under(*values[:constants], *carry, *slices))
            return results[:carried], results[carried:]

        options = {name: self.scan[name] for name in ("length", "reverse", "unroll", "_split_transpose") if name in self.scan}
        last, stacked = jax.lax.scan(step, values[constants:first], values[first:], **options)
        return [*last, *stacked]

    def graph(self, roofline: Roofline) -> Graph:
        """Its forward pass, as its backward pass has it made, and what that reads of it."""
        floats = [number for number, shape in enumerate(self.shapes) if _is_float(shape)]

        def forward(*inputs: Any) -> Any:
            def results(*given: Any) -> Values:
                changed = dict(zip(floats, given, strict=True))
                filled = [changed.get(number, value) for number, value in enumerate(inputs)]
                return [value for value in self.body(filled, _naming(self.name)) if _is_float(value)]

            return jax.vjp(results, *(inputs[number] for number in floats))[1]

        jaxpr = _inlined(jax.make_jaxpr(forward)(*self.shapes)).jaxpr
        maker: dict[Any, int] = {}
        nodes: list[Node] = []
        for number, equation in enumerate(jaxpr.eqns):
            sources = tuple(dict.fromkeys(maker[var] for var in _variables(equation.invars) if var in maker))
            if equation.primitive.name == "name":
                source = made_by = jaxpr.eqns[sources[0]] if sources else equation
                before = sources
                while made_by.primitive.name == "name" and (before := nodes[before[0]].inputs if before else ()):
                    made_by = jaxpr.eqns[before[0]]
                nodes.append(self._named(equation, source, sources, made_by))
            else:
                nodes.append(Node(_seconds(equation, roofline), sources, flops=_flops(equation)))
            maker.update(dict.fromkeys(equation.outvars, number))
        read = dict.fromkeys(var for var in _variables(jaxpr.outvars) if var in maker)
        return Graph(self.times, tuple(nodes), tuple((maker[var], _bytes(var.aval)) for var in read))

    def _named(self, equation: Any, source: Any, sources: tuple[int, ...], made_by: Any) -> Node:
        """A node for a value that has a name, and for what made it, be it by another name."""
        name, shape = equation.params["name"], equation.outvars[0].aval
        traits = [] if name.startswith(f"{self.name}.") else ["names"]
        if source.primitive.name in _PRODUCTS:
            traits.append("dots")
        if source.primitive.name == "dot_general" and not any(source.params["dimension_numbers"][1]):
            traits.append("dots_no_batch")
        line = f"{shape.str_short()} {made_by.primitive.name} {source_info_util.summarize(made_by.source_info)}"
        return Node(0.0, sources, name, _bytes(shape), tuple(traits), line)


class Loss:
    """A function that was traced.

    Parameters
    ----------
    function
        Any that ``jax.make_jaxpr`` takes.
    arguments
        Trees of arrays, of shapes, or of what is being traced.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any]):
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        self._results = jax.tree.structure(shapes)
        self._traced = _inlined(traced)

    def run(self, policy: Policy, arguments: Sequence[Any]) -> Any:
        """The function's results, its parts under a policy."""
        jaxpr, done = self._traced.jaxpr, 0
        values = _bound(self._traced, jax.tree.leaves(tuple(arguments)))
        for part in self.parts:
            _run(jaxpr.eqns[done : part.start], values)
            results = part.run(_read(part.reads, values), policy)
            values.update(zip(part.writes, results, strict=True))
            done = part.stop
        _run(jaxpr.eqns[done:], values)
        return jax.tree.unflatten(self._results, _read(jaxpr.outvars, values))

    @cached_property
    def parts(self) -> list[Part]:
        """What is planned, in the order of the program."""
        equations = self._traced.jaxpr.eqns
        work = [_flops(equation) for equation in equations]
        scans = [number for number, eqn in enumerate(equations) if work[number] and eqn.primitive.name == "scan"]
        scans = [number for number in scans if equations[number].params["length"] > 1]
        if scans and sum(work[number] for number in scans) >= _SHARE * sum(work):
            return [_scan(f"scan{place}", number, equations[number]) for place, number in enumerate(scans)]
        start, length, times = repeated([_signature(equation) for equation in equations])
        if times < 2 or sum(work[start : start + length * times]) < _SHARE * sum(work):
            start, length, times = 0, len(equations), 1
        starts = range(start, start + length * times, length)
        return [self._block(start, start + length, times) for start in starts] if length else []

    def graphs(self, roofline: Roofline) -> list[Graph]:
        """The forward passes of its parts, one for all repetitions of a block; seconds as a roofline has them."""
        different = {part.name: part for part in reversed(self.parts)}
        return [part.graph(roofline) for part in reversed(different.values())]

    def _block(self, start: int, stop: int, times: int) -> Part:
        jaxpr = self._traced.jaxpr
        equations = jaxpr.eqns[start:stop]
        made = {var for equation in equations for var in equation.outvars}
        read_later = {var for equation in jaxpr.eqns[stop:] for var in _variables(equation.invars)}
        read_later.update(_variables(jaxpr.outvars))
        reads = [*dict.fromkeys(var for eqn in equations for var in _variables(eqn.invars) if var not in made)]
        writes = [var for eqn in equations for var in eqn.outvars if var in read_later]

        def body(inputs: Sequence[Any], renaming: Renaming | None) -> Values:
            values = dict(zip(reads, inputs, strict=True))
            _run(equations, values, renaming)
            return _read(writes, values)

        shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in reads]
        return Part("block", start, stop, times, reads, writes, shapes, body)


def _scan(name: str, number: int, equation: Any) -> Part:
    inner = equation.params["jaxpr"]

    def body(inputs: Sequence[Any], renaming: Renaming | None) -> Values:
        values = _bound(inner, inputs)
        _run(inner.jaxpr.eqns, values, renaming)
        return _read(inner.jaxpr.outvars, values)

    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in inner.in_avals]
    times = equation.params["length"]
    return Part(name, number, number + 1, times, equation.invars, equation.outvars, shapes, body, equation.params)


def repeated(signatures: Sequence[str]) -> tuple[int, int, int]:
    """The stretch of items that repeats itself and covers most: where it begins, its length, and how often it is there."""
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
    """A traced program as text, without addresses: what results are kept by."""
    return re.sub(r"0x[0-9a-f]+", "0x", str(traced))


def has_checkpoints(traced: Any) -> bool:
    """Whether the program has a ``jax.checkpoint`` of its own."""
    return "remat2[" in str(traced) or "checkpoint[" in str(traced)


def _inlined(traced: Any) -> Any:
    def again(*inputs: Any) -> Values:
        values = _bound(traced, inputs)
        _run(traced.jaxpr.eqns, values)
        return _read(traced.jaxpr.outvars, values)

    return jax.make_jaxpr(again)(
        *(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in traced.in_avals)
    )


def _bound(traced: Any, inputs: Iterable[Any]) -> dict[Any, Any]:
    """Values of a program's variables before its first equation."""
    return dict(zip((*traced.jaxpr.constvars, *traced.jaxpr.invars), (*traced.consts, *inputs), strict=True))


def _read(variables: Iterable[Any], values: dict[Any, Any]) -> Values:
    return [var.val if isinstance(var, core.Literal) else values[var] for var in variables]


def _variables(variables: Iterable[Any]) -> Iterator[Any]:
    return (var for var in variables if not isinstance(var, core.Literal))


def _run(equations: Sequence[Any], values: dict[Any, Any], renaming: Renaming | None = None) -> None:
    """Run equations, what is inlined by what is in it; ``values`` gets theirs."""
    for equation in equations:
        inputs = _read(equation.invars, values)
        inner = _inner(equation)
        source = equation.source_info
        stack = source_info_util.current_name_stack() + source.name_stack
        if inner is not None:
            inside = _bound(inner, inputs)
            _run(inner.jaxpr.eqns, inside, renaming)
            results = _read(inner.jaxpr.outvars, inside)
        else:
            with source_info_util.user_context(source.traceback, name_stack=stack), equation.ctx.manager:
                made = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
                results = list(made) if equation.primitive.multiple_results else [made]
                if renaming is not None:
                    results = renaming(equation, results)
        values.update(zip(equation.outvars, results, strict=True))


def _inner(equation: Any) -> Any:
    """The program that stands for an equation, closed; None where it stays as it is."""
    if equation.primitive.name not in _INLINED:
        return None
    if any(hasattr(sharding, "spec") for sharding in equation.params.get("in_shardings", ())):
        return None
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return core.ClosedJaxpr(inner, ()) if isinstance(inner, core.Jaxpr) else inner


def _naming(prefix: str) -> Renaming:
    """Names for float values, by the order of their equations."""
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
    return int(math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 0))


def _signature(equation: Any) -> str:
    return f"{equation.primitive.name} {[str(var.aval) for var in (*equation.invars, *equation.outvars)]}"


def _flops(equation: Any) -> int:
    """Floating-point operations of the matrix products in an equation, loops as often as they run."""
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
    """What it takes by a roofline: its matrix products, or its bytes; what is fused into others has its results alone."""
    read = equation.invars if equation.primitive.name in _PRODUCTS else ()
    moved = sum(_bytes(var.aval) for var in (*read, *equation.outvars) if hasattr(var.aval, "shape"))
    return max(_flops(equation) / roofline.compute, moved / roofline.slow_write_bandwidth)
