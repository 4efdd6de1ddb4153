"""Reversing and composing accesses with the integer set library: any quasi-affine access, and the reference for the rules.

Needs islpy (the extra ``poly``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import MissingDependencyError
from stowplan.hardware.affine.expression import Expression, Extents, add, constant, floor_divide, index, span
from stowplan.hardware.affine.program import Bound, Copy, Load, Piece
from stowplan.transforms.compose import NotInvertibleError, conjunction, until_certain


def _isl() -> Any:
    try:
        import islpy
    except ImportError as error:
        raise MissingDependencyError("reversing this access needs islpy: pip install 'stowplan[poly]'") from error
    return islpy


def relation(extents: Extents, indices: Sequence[Expression], domain: Sequence[Bound] = ()) -> Any:
    """The ``islpy.Map`` from loop indices, within their extents and a domain, to tensor indices."""
    names = [f"i{number}" for number in range(len(extents))]
    conditions = [f"0 <= {name} < {extent}" for name, extent in zip(names, extents, strict=True)]
    conditions += [f"{bound.low} <= {bound.expression.text()} <= {bound.high}" for bound in domain]
    text = f"{{ [{', '.join(names)}] -> [{', '.join(each.text() for each in indices)}]"
    return _isl().Map(f"{text} : {' and '.join(conditions)} }}" if conditions else f"{text} }}")


def accesses(found: Any, extents: Extents) -> list[tuple[tuple[Expression, ...], tuple[Bound, ...]]]:
    """A single-valued ``islpy.Map`` as (expressions, domain) pairs, over indices within ``extents``."""
    isl = _isl()
    pieces: list[tuple[Any, Any]] = []
    isl.PwMultiAff.from_map(found).foreach_piece(lambda where, what: pieces.append((where, what)))
    result = []
    for where, what in pieces:
        rank = what.dim(isl.dim_type.out)
        expressions = tuple(_expression(what.get_aff(number), extents) for number in range(rank))
        for basic in where.make_disjoint().compute_divs().get_basic_sets():
            conditions = []
            for each in basic.get_constraints():
                value = _expression(each.get_aff(), extents)
                conditions.append((value, 0, 0 if each.is_equality() else max(0, span(value, extents)[1])))
            domain = conjunction(conditions, extents)
            if domain is not None:
                result.append((expressions, domain))
    return result


def _expression(aff: Any, extents: Extents) -> Expression:
    """An ``islpy.Aff`` with integer values as an expression."""
    isl = _isl()
    denominator = aff.get_denominator_val()
    inputs, divisions = isl.dim_type.in_, isl.dim_type.div
    total = constant(aff.get_constant_val().mul(denominator).to_python())
    for number in range(aff.dim(inputs)):
        factor = aff.get_coefficient_val(inputs, number).mul(denominator).to_python()
        if factor:
            total = add(total, index(number), extents, factor)
    for number in range(aff.dim(divisions)):
        factor = aff.get_coefficient_val(divisions, number).mul(denominator).to_python()
        if factor:
            # Clearing the denominator of a division makes it whole before the floor is taken.
            total = add(total, _expression(aff.get_div(number), extents), extents, factor)
    return floor_divide(total, denominator.to_python(), extents)


def view_of(writers: Sequence[Copy], shape: tuple[int, ...]) -> Load:
    """As :func:`stowplan.transforms.compose.view_of`, for every store that can be reversed.

    Raises
    ------
    NotInvertibleError
        Several iterations write one element.
    MissingDependencyError
        There is no islpy.
    """
    pieces: list[Piece] = []
    for copy in reversed(writers):
        store = relation(copy.extents, copy.store.index)
        if not store.is_injective():
            raise NotInvertibleError
        back = store.reverse()
        for piece in copy.load.pieces:
            read = relation(copy.extents, piece.index, piece.domain)
            # The box of the tensor is known wherever the result is used: what it implies need not be said.
            together = back.apply_range(read).gist_domain(_box(shape))
            pieces += [replace(piece, index=indices, domain=domain) for indices, domain in accesses(together, shape)]
    return Load(shape, until_certain(pieces))


def compose(load: Load, views: Mapping[str, Load]) -> Load:
    """As :func:`stowplan.transforms.compose.compose`."""
    if not any(piece.tensor in views for piece in load.pieces):
        return load
    found: list[Piece] = []
    for piece in load.pieces:
        view = None if piece.tensor is None else views.get(piece.tensor)
        if view is None:
            found.append(piece)
            continue
        read = relation(load.extents, piece.index, piece.domain)
        for part in view.pieces:
            check_reading()
            together = read.apply_range(relation(view.extents, part.index, part.domain)).gist_domain(_box(load.extents))
            found += [replace(part, index=indices, domain=domain) for indices, domain in accesses(together, load.extents)]
    return replace(load, pieces=until_certain(found))


def _box(extents: Extents) -> Any:
    return relation(extents, ()).domain()
