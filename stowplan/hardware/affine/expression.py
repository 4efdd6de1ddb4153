"""Quasi-affine expressions over loop indices: sums of indices, and of quotients and remainders of such sums by constants.

Affine functions do not suffice for reshapes: element ``[a, b]`` of an ``[m, n]`` tensor is element ``[n * a + b]`` of the flat
tensor, but element ``[k]`` of the flat tensor is element ``[k // n, k % n]``. Quasi-affine expressions include both, and are
closed under composition.

Every operation returns a normal form, so that a reshape and its inverse cancel. Loop index ``i`` runs over
``[0, extents[i])``. Simplifications use these ranges: a normal form is equal to the original expression for indices in these
ranges, but perhaps not for others. Comments write ``a // b`` and ``a % b`` for quotients and remainders, as in Python.

Unless a function says so, nothing here raises an error for expressions whose indices all have an extent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from typing import Any, NamedTuple

#: Number of iterations of each loop.
Extents = Sequence[int]


class Division(NamedTuple):
    """The quotient ``floor(of / by)``; or, if ``rest``, the remainder ``of - by * floor(of / by)``, which is not negative."""

    of: Expression
    """The dividend."""
    by: int
    """The divisor, at least 2."""
    rest: bool
    """Whether it is the remainder; otherwise it is the quotient."""


Atom = int | Division
"""A factor of a term: the number of a loop index, or a quotient or remainder."""


class Expression:
    """The sum ``constant + sum of factor * atom`` in normal form. Immutable; equal and hashed by value."""

    __slots__ = ("_hash", "_key", "constant", "terms")

    constant: int
    terms: tuple[tuple[Atom, int], ...]
    """Pairs (atom, factor) with different atoms, sorted by atom; factors are not 0."""

    def __init__(self, constant: int, terms: Iterable[tuple[Atom, int]] = ()):
        keyed = sorted((_atom_key(atom), factor, atom) for atom, factor in terms if factor)
        self.constant = constant
        self.terms = tuple((atom, factor) for _, factor, atom in keyed)
        self._key: tuple[Any, ...] = (constant, tuple((key, factor) for key, factor, _ in keyed))
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._hash == other._hash and self._key == other._key

    def __lt__(self, other: Expression) -> bool:
        return bool(self._key < other._key)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.constant, self.terms)

    @property
    def is_constant(self) -> bool:
        """Whether it contains no index."""
        return not self.terms

    @property
    def is_affine(self) -> bool:
        """Whether it contains no quotient and no remainder."""
        return all(isinstance(atom, int) for atom, _ in self.terms)

    def indices(self) -> Iterator[int]:
        """Yields the numbers of all indices that occur in it, also within quotients and remainders; a number may repeat."""
        for atom, _ in self.terms:
            if isinstance(atom, int):
                yield atom
            else:
                yield from atom.of.indices()

    @property
    def size(self) -> int:
        """Number of terms, also those within quotients and remainders."""
        return sum(1 if isinstance(atom, int) else 1 + atom.of.size for atom, _ in self.terms)

    def text(self, names: Sequence[str] | None = None) -> str:
        """The expression in the syntax of the integer set library (isl), such as ``2*i0 + floor((i1)/3)``.

        ``names`` has a name for each loop index; without it, the indices are ``i0``, ``i1`` and so on.
        """
        parts = []
        for atom, factor in self.terms:
            if isinstance(atom, int):
                inner = f"i{atom}" if names is None else names[atom]
            else:
                of = atom.of.text(names)
                inner = f"(({of}) mod {atom.by})" if atom.rest else f"floor(({of})/{atom.by})"
            parts.append(inner if factor == 1 else f"{factor}*{inner}")
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def __repr__(self) -> str:
        return f"Expression({self.text()})"


def _atom_key(atom: Atom) -> tuple[Any, ...]:
    """Key by which atoms are sorted."""
    # The first entry puts indices before divisions. It also makes all keys comparable, because later entries differ in type.
    return (0, atom) if isinstance(atom, int) else (1, atom.by, atom.rest, atom.of._key)


def constant(value: int) -> Expression:
    """The expression with this value."""
    return Expression(value)


def index(number: int) -> Expression:
    """The expression that is the loop index with this number."""
    return Expression(0, ((number, 1),))


def span(expression: Expression, extents: Extents) -> tuple[int, int]:
    """Lower and upper bound (inclusive) of an expression's values.

    They are exact if every term is a multiple of an index. With quotients and remainders, they may be wider than necessary.
    """
    low = high = expression.constant
    for atom, factor in expression.terms:
        if isinstance(atom, int):
            first, last = 0, extents[atom] - 1
        elif atom.rest:
            first, last = 0, atom.by - 1
        else:
            first, last = (side // atom.by for side in span(atom.of, extents))
        low += min(factor * first, factor * last)
        high += max(factor * first, factor * last)
    return low, high


def add(one: Expression, two: Expression, extents: Extents, factor: int = 1) -> Expression:
    """``one + factor * two``."""
    if two.is_constant:
        return Expression(one.constant + factor * two.constant, one.terms)
    terms = dict(one.terms)
    for atom, multiple in two.terms:
        terms[atom] = terms.get(atom, 0) + factor * multiple
    return _simplified_sum(one.constant + factor * two.constant, terms, extents)


def scale(one: Expression, factor: int) -> Expression:
    """``factor * one``."""
    return Expression(factor * one.constant, [(atom, factor * multiple) for atom, multiple in one.terms])


def _simplified_sum(value: int, terms: dict[Atom, int], extents: Extents, within: int = 0) -> Expression:
    """The sum of ``value`` and of factors times atoms, in which a quotient and a remainder of one expression are combined.

    For example, ``d * (e // d) + e % d`` becomes ``e``. If ``within`` is not 0, the result only needs to be equal modulo
    ``within``.
    """
    joining = True
    while joining:
        joining = False
        for atom, factor in list(terms.items()):
            pairing = _partner(atom, factor, terms, extents, within) if isinstance(atom, Division) and atom.rest else None
            if pairing is not None:
                partner, replaced = pairing
                del terms[atom], terms[partner]
                value += factor * replaced.constant
                for inner, multiple in replaced.terms:
                    terms[inner] = terms.get(inner, 0) + factor * multiple
                terms = {inner: multiple for inner, multiple in terms.items() if multiple}
                joining = True
                break
    return Expression(value, terms.items())


def _partner(
    rest: Division, factor: int, terms: dict[Atom, int], extents: Extents, within: int
) -> tuple[Division, Expression] | None:
    """The atom of another term that can be combined with a remainder, and the combined expression; None if there is none.

    ``factor`` is the factor of the remainder. The sum of the two terms is ``factor`` times the combined expression; if
    ``within`` is not 0, the two only need to be equal modulo ``within``.
    """
    quotient: Expression | None = None
    for other, multiple in terms.items():
        missing = multiple - factor * rest.by
        if isinstance(other, int) or (missing % within if within else missing):
            continue
        floor = other
        if other.rest:
            # The sum d * ((e // d) % m) + e % d is e % (d * m).
            if len(other.of.terms) != 1 or other.of.constant or other.of.terms[0][1] != 1:
                continue
            inner = other.of.terms[0][0]
            if isinstance(inner, int):
                continue
            floor = inner
        if floor.rest:
            continue
        if floor.by == rest.by and _congruent(floor.of, rest.of, rest.by):
            combined = floor.of
        else:
            # In a normal form, the quotient of a quotient is one quotient, but the remainder still contains the inner quotient.
            # Therefore the quotient of the remainder's dividend is computed and compared.
            if quotient is None:
                quotient = floor_divide(rest.of, rest.by, extents)
            if quotient != Expression(0, ((floor, 1),)):
                continue
            combined = rest.of
        return other, modulo(combined, rest.by * other.by, extents) if other.rest else combined
    return None


def _congruent(one: Expression, two: Expression, by: int) -> bool:
    """Whether the constant and all factors of the difference of two expressions are multiples of ``by``."""
    if (one.constant - two.constant) % by:
        return False
    factors = dict(one.terms)
    for atom, factor in two.terms:
        factors[atom] = factors.get(atom, 0) - factor
    return all(factor % by == 0 for factor in factors.values())


def floor_divide(one: Expression, by: int, extents: Extents) -> Expression:
    """``floor(one / by)`` for ``by >= 1``."""
    if by == 1 or (one.is_constant and one.constant == 0):
        return one
    multiples = [(atom, factor // by) for atom, factor in one.terms if factor % by == 0]
    rest = Expression(one.constant, [(atom, factor) for atom, factor in one.terms if factor % by])
    return _sum(multiples, _floor_of_rest(rest, by, extents), extents)


def _floor_of_rest(rest: Expression, by: int, extents: Extents) -> Expression:
    """``floor(rest / by)`` if no factor of ``rest`` is a multiple of ``by``."""
    low, high = span(rest, extents)
    if low // by == high // by:
        return Expression(low // by)
    reduced = _reduced(rest, by, extents)
    if reduced is not None:
        step, large, _ = reduced
        return floor_divide(large, by // step, extents)
    # The part of the constant that is a multiple of the divisor is moved out of the quotient.
    quotient, remainder = divmod(rest.constant, by)
    inner = Expression(remainder, rest.terms)
    if len(inner.terms) == 1 and inner.terms[0][1] == 1 and isinstance(inner.terms[0][0], Division):
        atom = inner.terms[0][0]
        if not atom.rest:
            # floor((floor(e / a) + c) / b) = floor((e + a * c) / (a * b))
            result = floor_divide(Expression(atom.of.constant + atom.by * remainder, atom.of.terms), atom.by * by, extents)
            return Expression(result.constant + quotient, result.terms)
        if remainder == 0 and atom.by % by == 0:
            # floor((e % (by * m)) / by) = floor(e / by) % m
            result = modulo(floor_divide(atom.of, by, extents), atom.by // by, extents)
            return Expression(result.constant + quotient, result.terms)
    return Expression(quotient, ((Division(inner, by, rest=False), 1),))


def modulo(one: Expression, by: int, extents: Extents) -> Expression:
    """``one - by * floor(one / by)`` for ``by >= 1``."""
    if by == 1:
        return Expression(0)
    terms: dict[Atom, int] = {}
    for atom, factor in one.terms:
        coefficient = factor % by
        if not coefficient:
            continue
        if (
            isinstance(atom, Division)
            and atom.rest
            and coefficient * atom.by % by == 0
            and atom.by != by // gcd(coefficient, by)
        ):
            # Modulo ``by``, the term is equal to a term without the remainder, or to a remainder by a smaller divisor.
            inner = modulo(scale(atom.of, coefficient), by, extents)
            others = Expression(one.constant, [pair for pair in one.terms if pair[0] != atom])
            return modulo(add(others, inner, extents), by, extents)
        terms[atom] = coefficient
    low, high = span(one, extents)
    if low // by == high // by:
        return Expression(one.constant - by * (low // by), one.terms)
    count = len(terms)
    rest = _simplified_sum(one.constant % by, terms, extents, by)
    if len(rest.terms) < count:
        return modulo(rest, by, extents)
    low, high = span(rest, extents)
    if low // by == high // by:
        return Expression(rest.constant - by * (low // by), rest.terms)
    reduced = _reduced(rest, by, extents)
    if reduced is not None:
        step, large, small = reduced
        outer = modulo(large, by // step, extents)
        return add(small, outer, extents, step)
    return Expression(0, ((Division(rest, by, rest=True), 1),))


def _reduced(rest: Expression, by: int, extents: Extents) -> tuple[int, Expression, Expression] | None:
    """(step, large, small) with ``rest = step * large + small`` and ``0 <= small < step``, where ``step`` divides ``by``; None
    if there is no such triple.

    Then ``rest // by`` is ``large // (by // step)``, a quotient by a smaller divisor.
    """
    for step in sorted({gcd(factor, by) for _, factor in rest.terms} - {1}, reverse=True):
        large = [(atom, factor // step) for atom, factor in rest.terms if factor % step == 0]
        small = Expression(rest.constant % step, [(atom, factor) for atom, factor in rest.terms if factor % step])
        low, high = span(small, extents)
        if low // step == high // step:
            quotient = low // step
            return (
                step,
                Expression(rest.constant // step + quotient, large),
                Expression(small.constant - quotient * step, small.terms),
            )
    return None


def _sum(terms: Iterable[tuple[Atom, int]], rest: Expression, extents: Extents) -> Expression:
    """The sum of the terms and ``rest``."""
    first = Expression(0, terms)
    return add(first, rest, extents) if first.terms else rest


def substitute(one: Expression, values: Sequence[Expression], extents: Extents) -> Expression:
    """The expression ``one`` in which every index ``i`` is replaced by ``values[i]``.

    The values are expressions over the indices of another loop nest, which has the given extents. Raises IndexError if there
    are too few values.
    """
    substituted = Expression(one.constant)
    for atom, factor in one.terms:
        if isinstance(atom, int):
            value = values[atom]
        else:
            inner = substitute(atom.of, values, extents)
            value = modulo(inner, atom.by, extents) if atom.rest else floor_divide(inner, atom.by, extents)
        substituted = add(substituted, value, extents, factor)
    return substituted


def evaluate(one: Expression, values: Sequence[Any]) -> Any:
    """The value of an expression for given values of the indices, which are integers, or integer arrays that broadcast.

    Raises IndexError if there are too few values.
    """
    total: Any = one.constant
    for atom, factor in one.terms:
        if isinstance(atom, int):
            value = values[atom]
        else:
            inner = evaluate(atom.of, values)
            value = inner % atom.by if atom.rest else inner // atom.by
        total = total + factor * value
    return total
