"""Reverses stores and composes accesses, by rules for common quasi-affine forms and by integer sets for all others.

A *copy* is a loop nest that reads a value in each iteration (its *load*) and writes it to an element of a tensor (its *store*).
A load has *pieces*, each of which reads an element of one tensor in the iterations in which its conditions hold (its *domain*);
the first piece whose conditions hold applies (:mod:`stowplan.hardware.affine.program`).

Reversing the store of a copy says which of its iterations wrote an element, and the copy's load says which element of another
tensor that iteration read. The *view* of a tensor is the load that results (equation 1 of Zheng et al., "Optimizing
Memory-Access Patterns for Deep Learning Accelerators", 2020, arXiv 2002.12798). Composing substitutes views into the loads of
other statements (equation 2).

Integer sets need the integer set library isl and its Python package islpy (the extra ``poly``). Without islpy, these functions
raise :class:`~stowplan.errors.MissingDependencyError`: :func:`relation`, :func:`accesses`, :func:`box` and
:func:`view_of_by_sets`. Tests also compare the rules with integer sets. Functions that compose accesses raise
:class:`~stowplan.errors.TimeLimitError` if the time limit for reading the input is over
(:func:`stowplan.deadline.check_reading`).
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
    """Several iterations of a loop nest write the same element, so that the store cannot be reversed."""


def reverse_store(copy: Copy, shape: tuple[int, ...]) -> tuple[tuple[Expression, ...], tuple[Bound, ...]] | None:
    """Reverses the store of a copy, by rules.

    The rules apply to stores in which each tensor index is a number in a mixed radix: a constant plus a sum of terms
    ``factor * index``, in which each factor is a multiple of the next smaller one, and larger than all smaller terms together
    can become. An example is ``8 * i + j`` for ``j`` below 8.

    Parameters
    ----------
    copy
        The copy.
    shape
        Shape of the tensor that the copy writes.

    Returns
    -------
    (tuple of Expression, tuple of Bound) or None
        The loop indices as expressions over tensor indices, and the conditions that hold exactly for the elements that the copy
        writes. None if the rules do not apply to the store.

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
    """Returns bounds that are equivalent to all conditions ``low <= expression <= high`` together.

    Parameters
    ----------
    conditions
        Each as (expression, low, high).
    extents
        For each index of the expressions, the number of its values, which start at 0.

    Returns
    -------
    tuple of Bound or None
        The bounds, without conditions that always hold; None if interval arithmetic shows that not all can hold.
    """
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
    """Returns the view of a tensor: its content as a load from the tensors that its writers read (equation 1).

    The pieces of later writers come first, because later writers overwrite elements of earlier ones.

    Parameters
    ----------
    writers
        The copies that write the tensor, in the order in which they run.
    shape
        Shape of the tensor.

    Returns
    -------
    Load or None
        The view; None if the rules do not apply to a store.

    Raises
    ------
    NotInvertibleError
        Several iterations of a writer write one element.
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
    """Returns the pieces of a load with its loop indices replaced by expressions over other indices.

    Pieces that apply to no index are left out.

    Parameters
    ----------
    load
        The load.
    values
        The expression that replaces each loop index of the load.
    domain
        Conditions on the new indices under which the pieces apply.
    extents
        Extents of the new indices.
    """
    pieces = []
    for piece in load.pieces:
        check_reading()
        own_domain = ((substitute(bound.expression, values, extents), bound.low, bound.high) for bound in piece.domain)
        joint_domain = conjunction([*domain, *own_domain], extents)
        if joint_domain is not None:
            indices = tuple(substitute(expression, values, extents) for expression in piece.index)
            pieces.append(replace(piece, index=indices, domain=joint_domain))
    return pieces


def until_certain(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Returns the pieces up to the first one that always applies; later ones are never reached."""
    needed = []
    for piece in pieces:
        needed.append(piece)
        if not piece.domain:
            break
    return tuple(needed)


def compose(load: Load, views: Mapping[str, Load]) -> Load:
    """Rewrites a load so that it reads through the views of eliminated tensors (equation 2).

    Parameters
    ----------
    load
        The load; it is returned unchanged if it reads none of these tensors.
    views
        The view of each eliminated tensor, by the name of the tensor.
    """
    if not any(piece.tensor in views for piece in load.pieces):
        return load
    pieces: list[Piece] = []
    for piece in load.pieces:
        view = None if piece.tensor is None else views.get(piece.tensor)
        pieces += [piece] if view is None else substituted(view, piece.index, piece.domain, load.extents)
    return replace(load, pieces=until_certain(pieces))


def _isl() -> Any:
    """The module islpy; raises MissingDependencyError if it is not installed."""
    try:
        import islpy
    except ImportError as error:
        raise MissingDependencyError(f"reversing this access needs islpy: {to_install('poly')}") from error
    return islpy


def relation(extents: Extents, indices: Sequence[Expression], domain: Sequence[Bound] = ()) -> Any:
    """Returns the ``islpy.Map`` from loop indices, within their extents and a domain, to tensor indices."""
    names = [f"i{number}" for number in range(len(extents))]
    conditions = [f"0 <= {name} < {extent}" for name, extent in zip(names, extents, strict=True)]
    conditions += [f"{bound.low} <= {bound.expression.text()} <= {bound.high}" for bound in domain]
    text = f"{{ [{', '.join(names)}] -> [{', '.join(expression.text() for expression in indices)}]"
    return _isl().Map(f"{text} : {' and '.join(conditions)} }}" if conditions else f"{text} }}")


def accesses(access_map: Any, extents: Extents) -> list[tuple[tuple[Expression, ...], tuple[Bound, ...]]]:
    """Converts a single-valued ``islpy.Map`` to pairs (expressions, domain) over indices within ``extents``.

    The result of the map is given by the pair whose domain, a conjunction of conditions, contains the indices.
    """
    isl = _isl()
    pieces: list[tuple[Any, Any]] = []
    isl.PwMultiAff.from_map(access_map).foreach_piece(lambda region, function: pieces.append((region, function)))
    result = []
    for region, function in pieces:
        rank = function.dim(isl.dim_type.out)
        expressions = tuple(_expression(function.get_aff(number), extents) for number in range(rank))
        for basic in region.make_disjoint().compute_divs().get_basic_sets():
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
    """Returns the view of a tensor like :func:`view_of`, but by integer sets, which apply to every store that can be reversed.

    Raises
    ------
    NotInvertibleError
        Several iterations of a writer write one element.
    MissingDependencyError
        Islpy is not installed.
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
            composition = back.apply_range(read).gist_domain(box(shape))
            pieces += [replace(piece, index=indices, domain=domain) for indices, domain in accesses(composition, shape)]
    return Load(shape, until_certain(pieces))


def box(extents: Extents) -> Any:
    """Returns the ``islpy.Set`` of all indices within the extents."""
    return relation(extents, ()).domain()
