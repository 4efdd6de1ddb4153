"""Quasi-affine expressions over loop indices: sums of indices, and of floors and remainders of such sums by constants.

They are closed under composition, which plain affine functions are not once a reshape is reversed: what stands at ``[a, b]``
of a ``[m, n]`` tensor stands at ``[n * a + b]`` of the flat one, and back at ``[k // n, k % n]``. Every operation returns a
normal form, so that a reshape and its reverse cancel. Indices run over ``[0, extent)``, and ``extents`` is what a normal
form may rely on: an expression is equal to what it was made of within that box only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from typing import Any, NamedTuple

Extents = Sequence[int]


class Division(NamedTuple):
    """``floor(of / by)``, or with ``rest`` the remainder ``of - by * floor(of / by)``, which is never negative."""

    of: Expression
    by: int
    """At least 2."""
    rest: bool


Atom = int | Division
"""Number of a loop index, or a floor or remainder."""


class Expression:
    """``constant + sum of factor * atom``, in normal form. Immutable; equal and hashed by value."""

    __slots__ = ("_hash", "_key", "constant", "terms")

    constant: int
    terms: tuple[tuple[Atom, int], ...]
    """(atom, factor), sorted; factors are not 0."""

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
        """Whether no index is in it."""
        return not self.terms

    @property
    def is_affine(self) -> bool:
        """Whether it has neither floors nor remainders."""
        return all(isinstance(atom, int) for atom, _ in self.terms)

    def indices(self) -> Iterator[int]:
        """Numbers of all indices in it, inner ones too, some of them more than once."""
        for atom, _ in self.terms:
            if isinstance(atom, int):
                yield atom
            else:
                yield from atom.of.indices()

    @property
    def size(self) -> int:
        """Terms, inner ones too."""
        return sum(1 if isinstance(atom, int) else 1 + atom.of.size for atom, _ in self.terms)

    def text(self, names: Sequence[str] | None = None) -> str:
        """As the integer set library and people read it: ``2*i0 + floor((i1)/3)``."""
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
    # Indices before divisions; tuples of different kinds differ in their first entry, so all compare.
    return (0, atom) if isinstance(atom, int) else (1, atom.by, atom.rest, atom.of._key)


def constant(value: int) -> Expression:
    """The expression of one value."""
    return Expression(value)


def index(number: int) -> Expression:
    """The expression of one loop index."""
    return Expression(0, ((number, 1),))


def span(expression: Expression, extents: Extents) -> tuple[int, int]:
    """Least and largest value it may take, both inclusive: exact for one index a term, never too narrow otherwise."""
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
    return _joined(one.constant + factor * two.constant, terms, extents)


def scale(one: Expression, factor: int) -> Expression:
    """``factor * one``."""
    return Expression(factor * one.constant, [(atom, factor * multiple) for atom, multiple in one.terms])


def _joined(value: int, terms: dict[Atom, int], extents: Extents, within: int = 0) -> Expression:
    """Floors and remainders that belong together made one: ``d * (e // d) + e % d`` is ``e``; modulo ``within``, if given."""
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
    """(other term, what both are together over ``factor``) for a remainder among ``terms``, or None."""
    whole: Expression | None = None
    for other, multiple in terms.items():
        missing = multiple - factor * rest.by
        if isinstance(other, int) or (missing % within if within else missing):
            continue
        floor = other
        if other.rest:
            # d * ((e // d) % m) + e % d is e % (d * m).
            if len(other.of.terms) != 1 or other.of.constant or other.of.terms[0][1] != 1:
                continue
            inner = other.of.terms[0][0]
            if isinstance(inner, int):
                continue
            floor = inner
        if floor.rest:
            continue
        if floor.by == rest.by and _congruent(floor.of, rest.of, rest.by):
            both = floor.of
        else:
            # The floor of a floor has become one floor; the remainder still has the inner one.
            if whole is None:
                whole = floor_divide(rest.of, rest.by, extents)
            if whole != Expression(0, ((floor, 1),)):
                continue
            both = rest.of
        return other, modulo(both, rest.by * other.by, extents) if other.rest else both
    return None


def _congruent(one: Expression, two: Expression, by: int) -> bool:
    """Whether two expressions differ by a multiple of ``by``, term by term."""
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
    whole = [(atom, factor // by) for atom, factor in one.terms if factor % by == 0]
    rest = Expression(one.constant, [(atom, factor) for atom, factor in one.terms if factor % by])
    return _sum(whole, _floor_of_rest(rest, by, extents), extents)


def _floor_of_rest(rest: Expression, by: int, extents: Extents) -> Expression:
    """Floor where no factor is a multiple of ``by``."""
    low, high = span(rest, extents)
    if low // by == high // by:
        return Expression(low // by)
    reduced = _reduced(rest, by, extents)
    if reduced is not None:
        step, large, _ = reduced
        return floor_divide(large, by // step, extents)
    # Whole multiples of the constant come out.
    turns, left = divmod(rest.constant, by)
    inner = Expression(left, rest.terms)
    if len(inner.terms) == 1 and inner.terms[0][1] == 1 and isinstance(inner.terms[0][0], Division):
        atom = inner.terms[0][0]
        if not atom.rest:
            # floor((floor(e / a) + c) / b) = floor((e + a * c) / (a * b))
            more = floor_divide(Expression(atom.of.constant + atom.by * left, atom.of.terms), atom.by * by, extents)
            return Expression(more.constant + turns, more.terms)
        if left == 0 and atom.by % by == 0:
            # floor((e % (by * m)) / by) = floor(e / by) % m
            more = modulo(floor_divide(atom.of, by, extents), atom.by // by, extents)
            return Expression(more.constant + turns, more.terms)
    return Expression(turns, ((Division(inner, by, rest=False), 1),))


def modulo(one: Expression, by: int, extents: Extents) -> Expression:
    """``one - by * floor(one / by)`` for ``by >= 1``."""
    if by == 1:
        return Expression(0)
    terms: dict[Atom, int] = {}
    for atom, factor in one.terms:
        left = factor % by
        if not left:
            continue
        if isinstance(atom, Division) and atom.rest and left * atom.by % by == 0 and atom.by != by // gcd(left, by):
            # Within this remainder the term is equal to one without its own, or with a smaller one.
            inner = modulo(scale(atom.of, left), by, extents)
            others = Expression(one.constant, [pair for pair in one.terms if pair[0] != atom])
            return modulo(add(others, inner, extents), by, extents)
        terms[atom] = left
    low, high = span(one, extents)
    if low // by == high // by:
        return Expression(one.constant - by * (low // by), one.terms)
    count = len(terms)
    rest = _joined(one.constant % by, terms, extents, by)
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
    """(step, large, small) with ``rest = step * large + small``, 0 <= small < step, step a divisor of ``by``; or None."""
    for step in sorted({gcd(factor, by) for _, factor in rest.terms} - {1}, reverse=True):
        large = [(atom, factor // step) for atom, factor in rest.terms if factor % step == 0]
        small = Expression(rest.constant % step, [(atom, factor) for atom, factor in rest.terms if factor % step])
        low, high = span(small, extents)
        if low // step == high // step:
            moved = low // step
            return (
                step,
                Expression(rest.constant // step + moved, large),
                Expression(small.constant - moved * step, small.terms),
            )
    return None


def _sum(terms: Iterable[tuple[Atom, int]], rest: Expression, extents: Extents) -> Expression:
    first = Expression(0, terms)
    return add(first, rest, extents) if first.terms else rest


def substitute(one: Expression, values: Sequence[Expression], extents: Extents) -> Expression:
    """``one`` with index ``i`` replaced by ``values[i]``, which are expressions over indices of ``extents``."""
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
    """Value for values of the indices: whole numbers, or arrays of them that broadcast."""
    total: Any = one.constant
    for atom, factor in one.terms:
        if isinstance(atom, int):
            value = values[atom]
        else:
            inner = evaluate(atom.of, values)
            value = inner % atom.by if atom.rest else inner // atom.by
        total = total + factor * value
    return total
