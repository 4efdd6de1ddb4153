"""Checks affine programs: accesses stay in bounds, and tensors are completely written before they are read.

The checks use interval arithmetic on index expressions. If it does not decide a question, all iterations of the loop nest are
enumerated. Errors name the operator.

A load is a list of *pieces*, each with conditions on the loop indices. In each iteration, the first piece whose conditions hold
says what the load reads. An *option* of an operator is one way to spread its operands and outputs over banks: the dimension of
each, or -1 for those that are not spread. The options that an operator has are its bank rule.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from stowplan.checks import expect
from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.hardware.affine.expression import Expression, Extents, evaluate, span
from stowplan.hardware.affine.program import Bound, Copy, Load, Operator, Piece, Program, Store, Tensor

#: Largest number of iterations or elements that are enumerated if interval arithmetic does not decide a question.
MAX_POINTS = 1 << 24


def check(program: Program) -> None:
    """Checks a program.

    Raises
    ------
    InputError
        A tensor has a size less than 1; two operators have the same name; or an operator reads or writes an unknown tensor, has
        a wrong number of indices or an access out of bounds, reads a tensor that is not completely written, writes a tensor
        that was read or completely written before, or has no valid bank rule. The error is also raised if a program is too
        large for these checks. Its place names the operator or the tensor, or is ``inputs`` or ``outputs``.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    written: dict[str, list[Copy]] = {}
    complete = set(program.inputs)
    read: set[str] = set()
    names: set[str] = set()
    for name in program.inputs:
        program.tensor(name, "inputs")
    for tensor in program.tensors.values():
        if any(size < 1 for size in tensor.shape) or tensor.item_bytes < 1:
            raise InputError(f"found shape {list(tensor.shape)}, expected sizes of at least 1", place=f"tensor {tensor.name}")
    for statement in program.statements:
        check_reading()
        place = f"operator {statement.name}"
        expect(statement.name not in names, place, "this name twice", "every name once")
        names.add(statement.name)
        for load in statement.loads:
            _check_load(program, load, place)
            for name in load.tensors:
                if name not in complete:
                    _check_complete(program.tensors[name], written.get(name), place)
                    complete.add(name)
                read.add(name)
        for name in statement.outputs:
            program.tensor(name, place)
            if name in read or name in complete:
                why = "an input" if name in program.inputs else "read or written in whole before"
                raise InputError(f"writes tensor {name!r}, which is {why}", place=place)
        if isinstance(statement, Copy):
            _check_store(program.tensors[statement.store.tensor], statement, place)
            written.setdefault(statement.store.tensor, []).append(statement)
        else:
            _check_rule(program, statement, place)
            for name in statement.outputs:
                if name in written:
                    raise InputError(f"writes tensor {name!r}, which others have written in part", place=place)
            complete.update(statement.outputs)
    for name in program.outputs:
        tensor = program.tensor(name, "outputs")
        if name not in complete:
            _check_complete(tensor, written.get(name), "outputs")


def _check_rule(program: Program, operator: Operator, place: str) -> None:
    """Checks the options of an operator: there is one at least, and each has a valid dimension for every operand and output."""
    ports = len(operator.loads) + len(operator.outputs)
    expect(bool(operator.options), place, "no bank mapping that its rule allows", "at least one")
    ranks = [len(load.extents) for load in operator.loads]
    ranks += [len(program.tensors[name].shape) for name in operator.outputs]
    for option in operator.options:
        expect(len(option) == ports, place, f"a bank rule for {len(option)} operands and outputs", f"{ports}")
        for dimension, rank in zip(option, ranks, strict=True):
            expect(-1 <= dimension < rank, place, f"dimension {dimension} in a bank rule", f"-1 to {rank - 1}")


def _check_load(program: Program, load: Load, place: str) -> None:
    """Checks the indices and bounds of the pieces of a load, and that every iteration has a piece."""
    if any(extent < 1 for extent in load.extents):
        raise InputError(f"found loops over {list(load.extents)}, expected at least 1 iteration each", place=place)
    expect(bool(load.pieces), place, "a load without pieces", "at least one")
    for number, piece in enumerate(load.pieces):
        _check_indices((*piece.index, *(bound.expression for bound in piece.domain)), load.extents, place)
        if piece.tensor is None:
            continue
        tensor = program.tensor(piece.tensor, place)
        if len(piece.index) != len(tensor.shape):
            raise InputError(f"found {len(piece.index)} indices of {tensor.name!r}, expected {len(tensor.shape)}", place=place)
        if not _within(piece, load, tensor.shape):
            _raise_outside(load, number, tensor, place)
    if all(piece.domain for piece in load.pieces):
        if prod(load.extents) > MAX_POINTS:
            raise InputError("cannot show that every iteration reads something: give the last piece no domain", place=place)
        uncovered = np.argwhere(which_piece(load) < 0)
        if len(uncovered):
            raise InputError(f"reads nothing in iteration {uncovered[0].tolist()}, expected a piece for it", place=place)


def _check_indices(expressions: tuple[Expression, ...], extents: Extents, place: str) -> None:
    """Checks that expressions contain only indices of existing loops."""
    loops = len(extents)
    for expression in expressions:
        if any(number >= loops for number in expression.indices()):
            raise InputError(f"found loop index in {expression.text()} beyond its {loops} loops", place=place)


def narrowed(expression: Expression, domain: tuple[Bound, ...], extents: Extents) -> tuple[int, int]:
    """Bounds (inclusive) of an expression's values in the iterations in which the conditions of ``domain`` hold.

    The bounds over all iterations are tightened by those conditions whose expression is the same up to a constant. For example,
    ``i0 <= 3`` bounds ``i0 + 2`` by 5. Other conditions are ignored.
    """
    low, high = span(expression, extents)
    for bound in domain:
        if bound.expression.terms == expression.terms:
            difference = expression.constant - bound.expression.constant
            low, high = max(low, bound.low + difference), min(high, bound.high + difference)
    return low, high


def _within(piece: Piece, load: Load, shape: tuple[int, ...]) -> bool:
    """Whether bounds of the index expressions prove that a piece stays within a tensor of this shape."""
    for expression, size in zip(piece.index, shape, strict=True):
        low, high = narrowed(expression, piece.domain, load.extents)
        if low < 0 or high >= size:
            return False
    return True


def _raise_outside(load: Load, number: int, tensor: Tensor, place: str) -> None:
    """Raises InputError for the first iteration in which a piece reads out of bounds, if there is one.

    All iterations are enumerated, since the bounds of expressions may be wider than their values.
    """
    if prod(load.extents) > MAX_POINTS:
        raise InputError(f"cannot show that its reads of {tensor.name!r} stay within {list(tensor.shape)}", place=place)
    chosen = which_piece(load) == number
    points = grid(load.extents)
    for dimension, expression in enumerate(load.pieces[number].index):
        values = np.broadcast_to(evaluate(expression, points), load.extents)
        outside = chosen & ((values < 0) | (values >= tensor.shape[dimension]))
        if outside.any():
            at = tuple(int(places[0]) for places in np.nonzero(outside))
            raise InputError(
                f"reads {tensor.name!r} out of bounds: index {int(values[at])} of dimension {dimension} "
                f"in iteration {list(at)}, expected 0 to {tensor.shape[dimension] - 1}",
                place=place,
            )


def grid(extents: Extents) -> list[NDArray[np.int64]]:
    """Values of every loop index in all iterations, as arrays that broadcast to shape ``extents``."""
    rank = len(extents)
    return [np.arange(size).reshape([size if at == axis else 1 for at in range(rank)]) for axis, size in enumerate(extents)]


def which_piece(load: Load) -> NDArray[np.int64]:
    """The number of the piece that applies to each iteration, in an array of shape ``load.extents``; -1 if none does."""
    points = grid(load.extents)
    chosen = np.full(load.extents, -1, np.int64)
    for number, piece in enumerate(load.pieces):
        holds = chosen < 0
        for bound in piece.domain:
            values = evaluate(bound.expression, points)
            holds = holds & (values >= bound.low) & (values <= bound.high)
        chosen[holds] = number
    return chosen


def _check_store(tensor: Tensor, copy: Copy, place: str) -> None:
    """Checks that a copy writes within its tensor."""
    store: Store = copy.store
    if len(store.index) != len(tensor.shape):
        raise InputError(f"found {len(store.index)} indices of {tensor.name!r}, expected {len(tensor.shape)}", place=place)
    _check_indices(store.index, copy.extents, place)
    for dimension, (expression, size) in enumerate(zip(store.index, tensor.shape, strict=True)):
        low, high = span(expression, copy.extents)
        if low < 0 or high >= size:
            if expression.is_affine:
                # The bounds of an affine expression are values of it.
                outside = low if low < 0 else high
            elif prod(copy.extents) > MAX_POINTS:
                raise InputError(
                    f"cannot show that its writes of {tensor.name!r} stay within {list(tensor.shape)}", place=place
                )
            else:
                values = evaluate(expression, grid(copy.extents))
                wrong = values[(values < 0) | (values >= size)]
                if not wrong.size:
                    continue
                outside = int(wrong.flat[0])
            message = (
                f"writes {tensor.name!r} out of bounds: index {outside} of dimension {dimension}, expected 0 to {size - 1}"
            )
            raise InputError(message, place=place)


def _check_complete(tensor: Tensor, writers: list[Copy] | None, place: str) -> None:
    """Raises InputError unless it is shown that these copies together write all elements of a tensor."""
    if not writers:
        raise InputError(f"reads tensor {tensor.name!r} before it is written", place=place)
    boxes = [_box(copy) for copy in writers]
    full = tuple((0, size) for size in tensor.shape)
    if full in boxes:
        return
    covered: bool | None = None
    if all(box is not None for box in boxes):
        covered = _covers([box for box in boxes if box is not None], tensor.shape)
    elif max(tensor.elements, *(prod(copy.extents) for copy in writers)) <= MAX_POINTS:
        marks = np.zeros(tensor.shape, bool)
        for copy in writers:
            points = grid(copy.extents)
            marks[tuple(evaluate(expression, points) for expression in copy.store.index)] = True
        covered = bool(marks.all())
    if covered is None:
        raise InputError(f"cannot show that all of tensor {tensor.name!r} is written before it is read", place=place)
    if not covered:
        raise InputError(f"reads tensor {tensor.name!r} before all of it is written", place=place)


#: A range ``[low, high)`` of indices for each dimension of a tensor.
_Box = tuple[tuple[int, int], ...]


def _box(copy: Copy) -> _Box | None:
    """The box of the elements that a copy writes, or None if they are not known to form one.

    They form a box if the index of each dimension is a constant ``c``, or ``c + i`` or ``c - i`` with a loop index ``i`` that
    occurs in no other dimension.
    """
    ranges = []
    seen: set[int] = set()
    for expression in copy.store.index:
        if expression.is_constant:
            ranges.append((expression.constant, expression.constant + 1))
            continue
        atom, factor = expression.terms[0]
        if len(expression.terms) > 1 or not isinstance(atom, int) or abs(factor) != 1 or atom in seen:
            return None
        seen.add(atom)
        low, high = span(expression, copy.extents)
        ranges.append((low, high + 1))
    return tuple(ranges)


def _covers(boxes: list[_Box], shape: tuple[int, ...]) -> bool | None:
    """Whether boxes together cover an array of this shape; None if there are too many cells to check.

    The sides of all boxes cut the array into cells, each of which is in a box completely or not at all.
    """
    cuts = [sorted({0, size, *(side for box in boxes for side in box[dimension])}) for dimension, size in enumerate(shape)]
    if prod(len(sides) for sides in cuts) > MAX_POINTS:
        return None
    marks = np.zeros(tuple(len(sides) - 1 for sides in cuts), bool)
    places = [{side: number for number, side in enumerate(sides)} for sides in cuts]
    for box in boxes:
        marks[tuple(slice(places[d][low], places[d][high]) for d, (low, high) in enumerate(box))] = True
    return bool(marks.all())
