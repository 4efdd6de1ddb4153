"""Loop bodies written in Python: a function is run once on symbolic values, and its operations become a data-flow graph.

Values of earlier iterations come from :func:`carried`. Outside of a function that :func:`trace` runs, Python's operators on
symbolic values and the functions of this module raise UsageError.

>>> def distance(x, y, z, x0=0.0, y0=0.0, z0=0.0):
...     return (x - x0) ** 2 + (y - y0) ** 2 + (z - z0) ** 2
>>> problem = lower(trace(distance))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

import msgspec

from stowplan.errors import InputError, UsageError
from stowplan.frontends.dfg.graph import Dfg
from stowplan.frontends.dfg.lower import fuse_multiply_add
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Variable

#: Powers up to this exponent are expanded into multiplications; larger ones are refused.
MOST_POWER = 64

#: A value of the loop body, or a number.
Term: TypeAlias = "Expression | int | float"

#: The trace to which operations on values add instructions; it is set while :func:`trace` runs a function.
_TRACE: ContextVar[_Trace] = ContextVar("trace")


class _Trace:
    """The instructions that the function has executed so far."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.carried: list[Carried] = []
        """Values of earlier iterations, in the order in which the function requested them."""
        self._value_of: dict[tuple[str, tuple[Operand, ...]], Expression] = {}
        """The value of each operation on some operands that has been executed."""

    def add(self, op: str, *terms: Term) -> Expression:
        """Adds an instruction, unless an earlier one computes the same; returns its value."""
        operands = tuple(_operand(term) for term in terms)
        if (op, operands) not in self._value_of:
            name = f"{op}{len(self.instructions)}"
            self.instructions.append(Instruction(id=name, op=op, operands=operands))
            self._value_of[op, operands] = Expression(Operand(instruction=name))
        return self._value_of[op, operands]


def _active_trace() -> _Trace:
    """The trace that is running; raises UsageError if there is none."""
    try:
        return _TRACE.get()
    except LookupError:
        raise UsageError(
            "found an operation on values of a loop body outside of a loop body, expected it in a function that trace() runs"
        ) from None


#: A special method of a Python operator, which gets the other operand.
_Method: TypeAlias = "Callable[[Expression, Term], Expression]"


def _from_left(op: str) -> _Method:
    """The method of a Python operator whose left operand is a value."""

    def method(self: Expression, other: Term) -> Expression:
        return _active_trace().add(op, self, other)

    return method


def _from_right(op: str) -> _Method:
    """The method of a Python operator whose left operand is a number."""

    def method(self: Expression, other: Term) -> Expression:
        return _active_trace().add(op, other, self)

    return method


class Expression:
    """A value of the loop body; Python's operators on it add instructions to the current trace.

    The other operand is a value or a number; the operators raise UsageError for anything else, and so does the use of a value
    as a condition of Python.
    """

    __array_ufunc__ = None

    def __init__(self, operand: Operand):
        self.operand = operand

    __add__, __radd__ = _from_left("add"), _from_right("add")
    __sub__, __rsub__ = _from_left("sub"), _from_right("sub")
    __mul__, __rmul__ = _from_left("mul"), _from_right("mul")
    __truediv__, __rtruediv__ = _from_left("div"), _from_right("div")
    __lshift__ = _from_left("shl")
    __rshift__ = _from_left("shr")
    __lt__ = _from_left("lt")
    __gt__ = _from_left("gt")

    def __neg__(self) -> Expression:
        return _active_trace().add("neg", self)

    def __pow__(self, power: int) -> Expression:
        if not isinstance(power, int) or not 1 <= power <= MOST_POWER:
            raise UsageError(f"found the power {power!r}, expected a whole number from 1 to {MOST_POWER}")
        half = self if power < 4 else self ** (power // 2)
        if power == 1:
            return self
        if power < 4:
            return self * self if power == 2 else self * self * self
        return half * half if power % 2 == 0 else half * half * self

    def __bool__(self) -> bool:
        raise UsageError("a value of the loop body is not known while it is traced: use select(condition, a, b)")


class Carried(Expression):
    """A value of an earlier iteration; see :func:`carried`."""

    def __init__(self, name: str, initial: float):
        super().__init__(Operand(instruction=name, distance=1, initial=initial))
        self.source: Expression | None = None
        self.distance = 1

    def becomes(self, value: Expression, distance: int = 1) -> Expression:
        """Says that this value is the one that ``value`` had ``distance`` iterations ago; returns ``value``.

        Raises
        ------
        UsageError
            ``value`` is not computed by the loop body in this iteration, or the distance is less than 1.
        """
        if not isinstance(value, Expression) or value.operand.instruction is None or isinstance(value, Carried):
            raise UsageError("expected a value that the loop body computes")
        if distance < 1:
            raise UsageError(f"found distance {distance}, expected 1 or more")
        self.source, self.distance = value, distance
        return value


def carried(initial: float = 0.0) -> Carried:
    """Returns a value from an earlier iteration, which is ``initial`` in the first iterations.

    Call its method ``becomes`` to say which value it is. Otherwise :func:`trace` raises UsageError.
    """
    active = _active_trace()
    value = Carried(f"carried {len(active.carried)}", initial)
    active.carried.append(value)
    return value


def select(condition: Term, when: Term, otherwise: Term) -> Expression:
    """Returns ``when`` if the condition is not zero, otherwise ``otherwise``.

    This function, :func:`minimum` and :func:`maximum` take values of the loop body and numbers, and raise UsageError for
    anything else.
    """
    return _active_trace().add("select", condition, when, otherwise)


def minimum(one: Term, two: Term) -> Expression:
    """The smaller of two values."""
    return _active_trace().add("min", one, two)


def maximum(one: Term, two: Term) -> Expression:
    """The larger of two values."""
    return _active_trace().add("max", one, two)


def _operand(term: Term) -> Operand:
    """The operand for a value or a number; raises UsageError for anything else."""
    if isinstance(term, Expression):
        return term.operand
    if isinstance(term, int | float) and not isinstance(term, bool):
        return Operand(constant=float(term))
    raise UsageError(f"found {term!r} in a loop body, expected a number or a value of the loop body")


def trace(function: Callable[..., Any], *, name: str | None = None, fuse: bool = True) -> Dfg:
    """Makes the graph of a function that computes one iteration of a loop.

    The parameters of the function are variables in the memory of tiles. Those without a default are streams, which have a new
    value in every iteration. Those with a default have the same value in all iterations; the default itself is not used. The
    function returns one or several values; instructions on which none of them depends are removed. Errors that the function
    raises are passed on.

    Parameters
    ----------
    function
        A function that applies Python's operators to its parameters.
    name
        Name of the graph; by default that of the function.
    fuse
        Whether a multiplication that only one addition reads is fused with it. A product that the function returns stays.

    Raises
    ------
    UsageError
        The function uses a value in a way for which there is no instruction, or does not define a value of an earlier
        iteration.
    InputError
        It returns no value that the loop body computes, or it returns one of its parameters.
    """
    label = str(name or getattr(function, "__name__", "loop"))
    active = _Trace()
    token = _TRACE.set(active)
    try:
        parameters = inspect.signature(function).parameters.values()
        variables = [
            Variable(id=parameter.name, streams=parameter.default is inspect.Parameter.empty) for parameter in parameters
        ]
        returned = function(*(Expression(Operand(variable=variable.id)) for variable in variables))
    finally:
        _TRACE.reset(token)
    results = returned if isinstance(returned, tuple | list) else (returned,)
    result_ids = [result.operand.instruction for result in results if isinstance(result, Expression)]
    if not result_ids or None in result_ids:
        raise InputError("found no computed value returned, expected one or more", place=label)
    graph = _live(label, active, [name for name in result_ids if name is not None], variables)
    return fuse_multiply_add(graph) if fuse else graph


def _live(label: str, active: _Trace, result_ids: list[str], variables: list[Variable]) -> Dfg:
    """The graph of the instructions on which the returned values depend, with values of earlier iterations resolved.

    Raises
    ------
    UsageError
        A value of an earlier iteration was not defined.
    """
    sources: dict[str, tuple[str, int]] = {}
    for value in active.carried:
        if value.source is None:
            raise UsageError(f"a carried value of {label} never says what it becomes")
        sources[value.operand.instruction or ""] = (value.source.operand.instruction or "", value.distance)

    def resolved(operand: Operand) -> Operand:
        if operand.instruction not in sources:
            return operand
        source, distance = sources[operand.instruction]
        return msgspec.structs.replace(operand, instruction=source, distance=distance)

    instructions = {
        instruction.id: msgspec.structs.replace(instruction, operands=tuple(map(resolved, instruction.operands)))
        for instruction in active.instructions
    }
    live: set[str] = set()
    results = frozenset(sources[name][0] if name in sources else name for name in result_ids)
    open_names = [*results]
    while open_names:
        name = open_names.pop()
        if name not in live:
            live.add(name)
            open_names += [o.instruction for o in instructions[name].operands if o.instruction is not None]
    body = tuple(instruction for name, instruction in instructions.items() if name in live)
    used = {name for instruction in body for name in instruction.variables}
    return Dfg(label, body, tuple(variable for variable in variables if variable.id in used), results=results)
