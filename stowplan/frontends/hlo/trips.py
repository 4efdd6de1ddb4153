"""Finds how often the body of a while loop runs: from the compiler's annotation, or from its condition, step and initial value.

The loop's parameter is a tuple. A *leaf* is one of its entries, such as the counter of the loop. The count follows if the
condition compares a leaf with a constant, the body adds a constant to the leaf, and the leaf has a constant initial value.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stowplan.frontends.hlo.module import Computation, HloModule, Instruction

#: The compiler's annotation of a loop with the number of its iterations.
_KNOWN = re.compile(r'"known_trip_count":\{"n":"([0-9]{1,18})"')
_INTEGER = re.compile(r"-?[0-9]{1,18}")
#: Opcodes that pass on the value of a scalar operand.
_SAME_VALUE = frozenset({"bitcast", "copy", "convert", "reshape"})
#: The direction of each comparison after its operands are exchanged.
_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}
#: Largest number of instructions that are followed from one value to the value that it depends on. Real loops need a few.
_MAX_CHAIN = 1000


class _Value(NamedTuple):
    """The value ``leaf + offset``, with a leaf of the loop's parameter, or the integer ``offset`` if ``leaf`` is None."""

    leaf: int | None
    offset: int


def trip_count(loop: Instruction, computation: Computation, module: HloModule) -> int | None:
    """The number of times that the body of a ``while`` runs; None if it cannot be determined.

    ``computation`` is the computation of ``module`` that contains the loop. No error is raised for a loop of another form.
    """
    match = _KNOWN.search(loop.attributes_text)
    if match is not None:
        return int(match[1])
    condition, body = (module.computations[name] for name in loop.called)
    compare = _comparison(condition, module)
    if compare is None:
        return None
    left, right, direction = compare
    if left.leaf is None:
        left, right, direction = right, left, _FLIPPED.get(direction, direction)
    if left.leaf is None:
        return None
    limit = _constant_in_loop(right, loop, computation, body, module)
    start = _initial(loop, computation, left.leaf, module)
    stepped = _root_leaf(body, left.leaf, module)
    if limit is None or start is None or stepped is None or stepped.leaf != left.leaf:
        return None
    return _count(start + left.offset, stepped.offset, limit, direction)


def _count(start: int, step: int, limit: int, direction: str) -> int | None:
    """The number of iterations of a counter that begins at ``start`` and grows by ``step`` while it compares true with
    ``limit``; None if the loop may not end."""
    if direction in ("GT", "GE"):
        start, step, limit = -start, -step, -limit
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction == "LE":
        limit, direction = limit + 1, "LT"
    if direction == "LT" and step > 0:
        return max(0, -(-(limit - start) // step))
    if direction == "NE" and step and (limit - start) % step == 0 and (limit - start) // step >= 0:
        return (limit - start) // step
    return None


def _comparison(condition: Computation, module: HloModule) -> tuple[_Value, _Value, str] | None:
    """The two values that a condition compares, and the direction, such as ``LT``; None if it does something else."""
    root, home, arguments = condition.root, condition, None
    if root.opcode == "fusion":
        arguments = _arguments(root, condition, module, None)
        home = module.computations[root.called[0]]
        root = home.root
    direction = root.attribute("direction")
    if root.opcode != "compare" or direction is None or len(root.operands) != 2:
        return None
    left, right = (_evaluate(home.by_name[name], home, module, arguments) for name in root.operands)
    return None if left is None or right is None else (left, right, direction)


def _arguments(
    fusion: Instruction, home: Computation, module: HloModule, arguments: list[_Value | None] | None
) -> list[_Value | None]:
    """Values of a fusion's operands; each operand is evaluated once."""
    value_of = {name: _evaluate(home.by_name[name], home, module, arguments) for name in dict.fromkeys(fusion.operands)}
    return [value_of[name] for name in fusion.operands]


def _constant_in_loop(value: _Value, loop: Instruction, home: Computation, body: Computation, module: HloModule) -> int | None:
    """The integer that a value has in all iterations of a loop: a constant, or the initial value of a leaf that the loop does
    not change. None if it cannot be determined. ``home`` contains the loop."""
    if value.leaf is None:
        return value.offset
    if _root_leaf(body, value.leaf, module) != _Value(value.leaf, 0):
        return None
    start = _initial(loop, home, value.leaf, module)
    return None if start is None else start + value.offset


def _initial(loop: Instruction, home: Computation, leaf: int, module: HloModule) -> int | None:
    """The integer that a leaf has before the first iteration; None if it is not a constant. ``home`` contains the loop."""
    operand = home.by_name[loop.operands[0]] if loop.operands else None
    if operand is None or operand.opcode != "tuple" or leaf >= len(operand.operands):
        return None
    value = _evaluate(home.by_name[operand.operands[leaf]], home, module, None)
    return value.offset if value is not None and value.leaf is None else None


def _root_leaf(body: Computation, leaf: int, module: HloModule) -> _Value | None:
    """The value that a leaf has after one iteration; None if it cannot be determined."""
    root = body.root
    if root.opcode != "tuple" or leaf >= len(root.operands):
        return None
    return _evaluate(body.by_name[root.operands[leaf]], body, module, None)


def _evaluate(
    instruction: Instruction,
    home: Computation,
    module: HloModule,
    arguments: list[_Value | None] | None,
    *,
    is_plain: bool = False,
) -> _Value | None:
    """Evaluates an instruction by following copies, additions of constants, and one level of fusion.

    Parameters
    ----------
    home
        The computation that contains the instruction.
    arguments
        In a fused computation, the values of its parameters; otherwise None.
    is_plain
        Whether to follow only copies. The operands of an addition are evaluated in this way, because nested additions would
        otherwise take exponential time.

    Returns
    -------
    _Value or None
        The value; None if it is neither a constant nor a leaf plus a constant.
    """
    offset = 0
    for _ in range(_MAX_CHAIN):
        operands = [home.by_name[name] for name in instruction.operands]
        opcode = instruction.opcode
        if opcode == "constant":
            return _Value(None, offset + int(instruction.argument)) if _INTEGER.fullmatch(instruction.argument) else None
        if opcode == "parameter" and arguments is not None:
            number = int(instruction.argument)
            value = arguments[number] if number < len(arguments) else None
            return None if value is None else _Value(value.leaf, value.offset + offset)
        if opcode in _SAME_VALUE and operands:
            instruction = operands[0]
        elif is_plain:
            return None
        elif opcode == "get-tuple-element" and not arguments and operands and operands[0].opcode == "parameter":
            index = instruction.attribute("index") or ""
            return _Value(int(index), offset) if index.isdecimal() and len(index) < 9 else None
        elif opcode in ("add", "subtract") and len(operands) == 2:
            plain = [_evaluate(operand, home, module, arguments, is_plain=True) for operand in operands]
            constants = [value.offset if value is not None and value.leaf is None else None for value in plain]
            if constants[1] is not None:
                offset += constants[1] if opcode == "add" else -constants[1]
                instruction = operands[0]
            elif constants[0] is not None and opcode == "add":
                offset += constants[0]
                instruction = operands[1]
            else:
                return None
        elif opcode == "fusion" and arguments is None:
            inner = _arguments(instruction, home, module, [])
            called = module.computations[instruction.called[0]]
            value = _evaluate(called.root, called, module, inner)
            return None if value is None else _Value(value.leaf, value.offset + offset)
        else:
            return None
    return None
