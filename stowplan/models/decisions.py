"""What plans decide, and what two plans of one problem decide differently: the same words for every kind.

A kind declares its sorts of decisions as ``DECISIONS`` in one module (``Kind.decisions``), beside the table of its offsets.
:func:`field_by_field` is for kinds that declare none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

Value = int | str | bool
Values = dict[str, Value]
_Key = TypeVar("_Key", bound=Hashable)

#: Fields that every plan has, or that are there for people.
COMMON = ("problem", "objective", "name", "target", "format", "version")


class Change(msgspec.Struct, frozen=True):
    """One thing that is not the same in both plans."""

    name: str
    change: Literal["moved", "added", "dropped"]
    """``moved``: in both, with other values. ``added``: only in the second. ``dropped``: only in the first."""
    before: Values | None
    """Its values in the first plan; of what moved, only those that changed."""
    after: Values | None


class Part(msgspec.Struct, frozen=True):
    """All things of one sort."""

    what: str
    """In the singular: ``buffer``, ``fast use``."""
    total: int
    """How many there are in either plan."""
    changes: tuple[Change, ...]

    def count(self, change: str) -> int:
        """How many changes of a sort."""
        return sum(made.change == change for made in self.changes)


class Decision(NamedTuple):
    """A sort of decisions that plans of a kind make. One of ``values`` and ``paired`` is given."""

    what: str
    """In the singular, for people: ``buffer``, ``fast use``."""
    label: Callable[[Any, Any], str]
    """``(problem, key)`` to what a decision is called."""
    values: Callable[[Any, Any], Mapping[Any, Values]] | None = None
    """``(problem, plan)`` to what is decided, by keys that mean the same in every plan."""
    paired: Callable[[Any, Any, Any], tuple[Mapping[Any, Values], Mapping[Any, Values]]] | None = None
    """``(problem, first, second)`` to what is decided in each, where it takes both plans to say what means the same."""

    def compare(self, problem: Any, first: Any, second: Any) -> Part:
        """What changed from the first plan to the second; both are valid for the problem."""
        if self.paired is not None:
            before, after = self.paired(problem, first, second)
        else:
            assert self.values is not None
            before, after = self.values(problem, first), self.values(problem, second)
        return compare_parts(self.what, before, after, lambda key: self.label(problem, key))


def compare_parts(what: str, first: Mapping[_Key, Values], second: Mapping[_Key, Values], name: Callable[[_Key], str]) -> Part:
    """What changed between things that are known by their keys, in the order of the first plan, then of the second."""
    changes = []
    every = dict.fromkeys((*first, *second))
    for key in every:
        before, after = first.get(key), second.get(key)
        if before is None or after is None:
            changes.append(Change(name(key), "added" if before is None else "dropped", before, after))
        elif before != after:
            names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
            changes.append(Change(name(key), "moved", _only(before, names), _only(after, names)))
    return Part(what, len(every), tuple(changes))


def _only(values: Values, names: Iterable[str]) -> Values:
    return {name: values[name] for name in names if name in values}


def field_by_field(first: Any, second: Any) -> tuple[Part, ...]:
    """Fields of the plans, those that are sequences place by place."""
    names = [name for name in first.__struct_fields__ if name not in COMMON]
    return tuple(
        compare_parts(name, _places(name, getattr(first, name)), _places(name, getattr(second, name)), str) for name in names
    )


def _places(name: str, value: object) -> dict[str, Values]:
    if isinstance(value, (list, tuple)):
        return {f"{name}[{place}]": {"value": _plain(part)} for place, part in enumerate(value)}
    return {name: {"value": _plain(value)}}


def _plain(value: object) -> Value:
    return value if isinstance(value, int | str) else str(value)
