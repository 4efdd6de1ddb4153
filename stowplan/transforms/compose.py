"""Reversing stores and composing accesses (equations 1 and 2 of the paper), by rules for common quasi-affine forms and by
integer sets for any.

Integer sets need the integer set library, islpy (the extra ``poly``). Tests also compare the rules with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import MissingDependencyError, to_install
from stowplan.hardware.affine.expression import (
    Expression,
    Extents,
    add,
    constant,
    floor_divide,
    index,
    modulo,
    scale,
    span,
    substitute,
)
from stowplan.hardware.affine.program import Bound, Copy, Load, Piece


class NotInvertibleError(Exception):
    """Several iterations write one element, so that the access cannot be reversed."""


def reverse_store(copy: Copy, shape: tuple[int, ...]) -> tuple[tuple[Expression, ...], tuple[Bound, ...]] | None:
    """Reverses the access of a store: (loop indices as expressions over tensor indices, where a tensor index was written).

    The rules apply to stores in which each tensor index is a number in a mixed radix, ``constant + sum of factor * index``,
    where each factor is a multiple of the next smaller one that the smaller terms cannot reach. Returns None for all other
    stores.

    Raises
    ------
    NotInvertibleError
        A loop index occurs in no tensor index, so that all its iterations write the same elements.
    """
    values: dict[int, Expression] = {}
    conditions: list[tuple[Expression, int, int]] = []
    for dimension, expression in enumerate(copy.store.index):
        if not expression.is_affine:
            return None
        rest = add(index(dimension), constant(expression.constant), shape, -1)
        open_terms: list[tuple[int, int]] = []
        for atom, factor in expression.terms:
            assert isinstance(atom, int)
            if copy.extents[atom] == 1:
                values.setdefault(atom, constant(0))
            elif atom in values:
                rest = add(rest, values[atom], shape, -factor)
            else:
                open_terms.append((abs(factor), atom if factor > 0 else ~atom))
                if factor < 0:
                    # Replace the index i by extent - 1 - i, which makes the factor positive.
                    rest = add(rest, constant(factor * (copy.extents[atom] - 1)), shape, -1)
        if not open_terms:
            conditions.append((rest, 0, 0))
            continue
        open_terms.sort()
        step = open_terms[0][0]
        conditions.append((modulo(rest, step, shape), 0, 0))
        for (factor, signed), after in zip(open_terms, [*open_terms[1:], None], strict=True):
            atom = signed if signed >= 0 else ~signed
            value = floor_divide(rest, factor, shape)
            if after is not None:
                if after[0] % factor or copy.extents[atom] * factor > after[0]:
                    return None
                value = modulo(value, after[0] // factor, shape)
            last = copy.extents[atom] - 1
            conditions.append((value, 0, last))
            values[atom] = value if signed >= 0 else add(constant(last), value, shape, -1)
    for number, extent in enumerate(copy.extents):
        if number not in values:
            if extent > 1:
                raise NotInvertibleError
            values[number] = constant(0)
    domain = conjunction(conditions, shape)
    if domain is None:
        return None
    return tuple(values[number] for number in range(len(copy.extents))), domain


def conjunction(conditions: Iterable[tuple[Expression, int, int]], extents: Extents) -> tuple[Bound, ...] | None:
    """Bounds that are equivalent to all of ``low <= expression <= high``; None if interval arithmetic shows that they cannot
    all hold."""
    bounds: dict[Expression, tuple[int, int]] = {}
    for expression, low, high in conditions:
        first, last = span(expression, extents)
        if last < low or first > high:
            return None
        if first >= low and last <= high:
            continue
        bare = Expression(0, expression.terms)
        low, high = low - expression.constant, high - expression.constant
        if bare.terms[0][1] < 0:
            bare, low, high = scale(bare, -1), -high, -low
        before = bounds.get(bare)
        if before is not None:
            low, high = max(low, before[0]), min(high, before[1])
            if low > high:
                return None
        bounds[bare] = low, high
    return tuple(Bound(expression, low, high) for expression, (low, high) in bounds.items())


def view_of(writers: Sequence[Copy], shape: tuple[int, ...]) -> Load | None:
    """The content of a tensor as a load from where its writers copied it (equation 1); None if the rules do not apply.

    The pieces of later writers come first, because they overwrite those of earlier ones.
    """
    pieces: list[Piece] = []
    for copy in reversed(writers):
        reversed_store = reverse_store(copy, shape)
        if reversed_store is None:
            return None
        values, domain = reversed_store
        pieces += substituted(copy.load, values, domain, shape)
    return Load(shape, until_certain(pieces))


def substituted(load: Load, values: Sequence[Expression], domain: Sequence[Bound], extents: Extents) -> list[Piece]:
    """The pieces of a load with its loop indices replaced by expressions over other indices, restricted to a domain of the
    latter."""
    pieces = []
    for piece in load.pieces:
        check_reading()
        own = ((substitute(bound.expression, values, extents), bound.low, bound.high) for bound in piece.domain)
        both = conjunction([*domain, *own], extents)
        if both is not None:
            indices = tuple(substitute(expression, values, extents) for expression in piece.index)
            pieces.append(replace(piece, index=indices, domain=both))
    return pieces


def until_certain(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Pieces up to the first one that always applies."""
    needed = []
    for piece in pieces:
        needed.append(piece)
        if not piece.domain:
            break
    return tuple(needed)


def compose(load: Load, views: Mapping[str, Load]) -> Load:
    """Rewrites a load so that it reads through the views of eliminated tensors (equation 2)."""
    if not any(piece.tensor in views for piece in load.pieces):
        return load
    pieces: list[Piece] = []
    for piece in load.pieces:
        view = None if piece.tensor is None else views.get(piece.tensor)
        pieces += [piece] if view is None else substituted(view, piece.index, piece.domain, load.extents)
    return replace(load, pieces=until_certain(pieces))


def _isl() -> Any:
    """The module islpy."""
    try:
        import islpy
    except ImportError as error:
        raise MissingDependencyError(f"reversing this access needs islpy: {to_install('poly')}") from error
    return islpy


def relation(extents: Extents, indices: Sequence[Expression], domain: Sequence[Bound] = ()) -> Any:
    """The ``islpy.Map`` from loop indices, within their extents and a domain, to tensor indices."""
    names = [f"i{number}" for number in range(len(extents))]
    conditions = [f"0 <= {name} < {extent}" for name, extent in zip(names, extents, strict=True)]
    conditions += [f"{bound.low} <= {bound.expression.text()} <= {bound.high}" for bound in domain]
    text = f"{{ [{', '.join(names)}] -> [{', '.join(expression.text() for expression in indices)}]"
    return _isl().Map(f"{text} : {' and '.join(conditions)} }}" if conditions else f"{text} }}")


def accesses(access_map: Any, extents: Extents) -> list[tuple[tuple[Expression, ...], tuple[Bound, ...]]]:
    """Converts a single-valued ``islpy.Map`` to pairs (expressions, domain) over indices within ``extents``."""
    isl = _isl()
    pieces: list[tuple[Any, Any]] = []
    isl.PwMultiAff.from_map(access_map).foreach_piece(lambda where, what: pieces.append((where, what)))
    result = []
    for where, what in pieces:
        rank = what.dim(isl.dim_type.out)
        expressions = tuple(_expression(what.get_aff(number), extents) for number in range(rank))
        for basic in where.make_disjoint().compute_divs().get_basic_sets():
            conditions = []
            for constraint in basic.get_constraints():
                value = _expression(constraint.get_aff(), extents)
                conditions.append((value, 0, 0 if constraint.is_equality() else max(0, span(value, extents)[1])))
            domain = conjunction(conditions, extents)
            if domain is not None:
                result.append((expressions, domain))
    return result


def _expression(aff: Any, extents: Extents) -> Expression:
    """Converts an ``islpy.Aff`` with integer values to an expression."""
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
            # The division is multiplied by its denominator, so that the floor is applied to integers.
            total = add(total, _expression(aff.get_div(number), extents), extents, factor)
    return floor_divide(total, denominator.to_python(), extents)


def view_of_by_sets(writers: Sequence[Copy], shape: tuple[int, ...]) -> Load:
    """The same as :func:`view_of` by integer sets, for every store that can be reversed.

    Raises
    ------
    NotInvertibleError
        Several iterations write one element.
    MissingDependencyError
        islpy is not installed.
    """
    pieces: list[Piece] = []
    for copy in reversed(writers):
        store = relation(copy.extents, copy.store.index)
        if not store.is_injective():
            raise NotInvertibleError
        back = store.reverse()
        for piece in copy.load.pieces:
            read = relation(copy.extents, piece.index, piece.domain)
            # The indices are always within the tensor, so that bounds which follow from that are dropped.
            together = back.apply_range(read).gist_domain(box(shape))
            pieces += [replace(piece, index=indices, domain=domain) for indices, domain in accesses(together, shape)]
    return Load(shape, until_certain(pieces))


def box(extents: Extents) -> Any:
    """The ``islpy.Set`` of all indices within the extents."""
    return relation(extents, ()).domain()
