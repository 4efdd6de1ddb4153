"""Compares two plans of the same problem, decision by decision, in a form that is the same for every kind of problem.

A kind declares which sorts of decisions its plans make, such as the offset of each buffer. The declarations are a constant
``DECISIONS``, usually in the kind's module ``plan``; the field ``decisions`` of :class:`stowplan.kernel.kind.Kind` names it. If
a kind has no such constant, :func:`field_by_field` compares all fields of its plans. The *key* of a decision identifies it, for
example the number of the buffer. Nothing here raises an error for valid plans.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

#: One value of a decision, such as an offset.
Value = int | str | bool

#: The values of one decision by their names, such as ``{"offset": 64}``.
Values = dict[str, Value]
_Key = TypeVar("_Key", bound=Hashable)

#: Fields that are not compared, because they identify the problem, follow from other fields, or are for people only.
COMMON = ("problem", "objective", "name", "target", "format", "version")


class Change(msgspec.Struct, frozen=True):
    """A decision that differs between two plans."""

    name: str
    """Name of the decision, for people."""
    change: Literal["moved", "added", "dropped"]
    """``moved``: both plans make this decision, with different values. ``added``: only the second plan makes it. ``dropped``:
    only the first one does."""
    before: Values | None
    """Its values in the first plan, None if added; if moved, only the values that changed."""
    after: Values | None
    """Its values in the second plan, None if dropped; if moved, only the values that changed."""


class Part(msgspec.Struct, frozen=True):
    """The comparison of all decisions of one sort."""

    what: str
    """The sort of decision in the singular, for people: ``buffer``, ``operator``."""
    total: int
    """Number of decisions that at least one of the plans makes."""
    changes: tuple[Change, ...]
    """The decisions that differ, in the order of the first plan; decisions that only the second plan makes come last."""

    def count(self, change: str) -> int:
        """The number of changes of one sort: ``moved``, ``added`` or ``dropped``."""
        return sum(entry.change == change for entry in self.changes)


class Decision(NamedTuple):
    """A sort of decision that plans of a kind make. Exactly one of ``values`` and ``paired`` is not None."""

    what: str
    """The sort of decision in the singular, for people: ``buffer``, ``operator``."""
    label: Callable[[Any, Any], str]
    """``label(problem, key)`` returns the name of a decision, for people."""
    values: Callable[[Any, Any], Mapping[Any, Values]] | None = None
    """``values(problem, plan)`` returns the values of all decisions of a plan, by keys that mean the same in every plan."""
    paired: Callable[[Any, Any, Any], tuple[Mapping[Any, Values], Mapping[Any, Values]]] | None = None
    """``paired(problem, first, second)`` returns the values of all decisions of each of two plans, by keys that mean the same
    in both. A kind uses it if only a look at both plans shows which decisions correspond."""

    def compare(self, problem: Any, first: Any, second: Any) -> Part:
        """The changes from the first plan to the second. Both must be valid for the problem; this is not checked."""
        if self.paired is not None:
            before, after = self.paired(problem, first, second)
        else:
            assert self.values is not None
            before, after = self.values(problem, first), self.values(problem, second)
        return compare_parts(self.what, before, after, lambda key: self.label(problem, key))


def compare_parts(what: str, first: Mapping[_Key, Values], second: Mapping[_Key, Values], name: Callable[[_Key], str]) -> Part:
    """Compare two mappings from keys of decisions to their values.

    Changes come in the order of the first mapping, followed by the keys that only the second one has.

    Parameters
    ----------
    what
        The sort of decision, for :attr:`Part.what`.
    name
        A function from a key to the name of the decision.
    """
    changes = []
    keys = dict.fromkeys((*first, *second))
    for key in keys:
        before, after = first.get(key), second.get(key)
        if before is None or after is None:
            changes.append(Change(name(key), "added" if before is None else "dropped", before, after))
        elif before != after:
            names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
            changes.append(Change(name(key), "moved", _only(before, names), _only(after, names)))
    return Part(what, len(keys), tuple(changes))


def _only(values: Values, names: Iterable[str]) -> Values:
    """The values that have one of these names."""
    return {name: values[name] for name in names if name in values}


def field_by_field(first: Any, second: Any) -> tuple[Part, ...]:
    """Compare two plans of the same class field by field; fields that are sequences are compared element by element.

    The fields in :data:`COMMON` are left out. There is one :class:`Part` for each other field.
    """
    names = [name for name in first.__struct_fields__ if name not in COMMON]
    return tuple(
        compare_parts(name, _places(name, getattr(first, name)), _places(name, getattr(second, name)), str) for name in names
    )


def _places(name: str, value: object) -> dict[str, Values]:
    """The decisions in a field of a plan: one for each element of a sequence (``offsets[3]``), otherwise a single one."""
    if isinstance(value, (list, tuple)):
        return {f"{name}[{place}]": {"value": _plain(part)} for place, part in enumerate(value)}
    return {name: {"value": _plain(value)}}


def _plain(value: object) -> Value:
    """The value itself, or its text if it is no number, text or truth value."""
    return value if isinstance(value, int | str) else str(value)
