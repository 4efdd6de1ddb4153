"""Configurations of agents: msgspec structs that check their values and can be changed by ``name=value`` strings.

The presets are in ``presets.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin

import msgspec

from stowplan.arguments import show
from stowplan.errors import UsageError

C = TypeVar("C", bound=msgspec.Struct)
H = TypeVar("H", bound="Hyperparameters")


@dataclass(frozen=True)
class Range:
    """The closed range ``[least, most]`` of a number, by default without an upper end. It annotates the type of a field, as in
    ``Annotated[int, Range(1)]``."""

    least: float
    most: float = math.inf

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most == math.inf else f"{self.least} to {self.most}"


#: A number from 0 to 1; and a positive integer.
Fraction = Annotated[float, Range(0, 1)]
Size = Annotated[int, Range(1)]


class Hyperparameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of training; raises UsageError if a value has a wrong type or is out of range."""

    def __post_init__(self) -> None:
        check(self)

    def changed(self, **changes: Any) -> Self:
        """Return a copy with other values for some fields; raise UsageError if a value has a wrong type or is out of range, and
        TypeError for an unknown field."""
        return msgspec.structs.replace(self, **changes)

    @classmethod
    def cpu(cls, **changes: Any) -> Self:
        """Return the preset for CPUs, with some changes, as :meth:`changed` makes them; raise KeyError if there is none."""
        preset: Self = _preset(cls, "cpu")
        return preset.changed(**changes)

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return the preset of the agent's paper, with some changes, as :meth:`changed` makes them; raise KeyError if there is
        none."""
        preset: Self = _preset(cls, "paper")
        return preset.changed(**changes)


@cache
def _preset(kind: type[H], name: str) -> H:
    """Return the configuration in a table of ``presets.toml``."""
    tables = msgspec.toml.decode((resources.files(__package__) / "presets.toml").read_bytes())
    values = {field: None if value == "none" else value for field, value in tables[kind.__name__][name].items()}
    return msgspec.convert(values, kind)


def check(config: msgspec.Struct) -> None:
    """Check that fields have their types and are in their :class:`Range`. A value of None has no range.

    A ``__post_init__`` should call this function: msgspec checks types only when it reads a file.

    Raises
    ------
    UsageError
        If a field has another type or is out of range; the message states the field, the found value, and the expected value.
    """
    ranges: list[tuple[str, Any, Range]] = []
    for field in _fields(type(config)):
        value, kind = getattr(config, field.name), field.type
        if get_origin(kind) is Annotated:
            kind, *given = get_args(kind)
            ranges += [(field.name, value, allowed) for allowed in given if isinstance(allowed, Range)]
        _check_type(field.name, value, kind)
    for name, value, allowed in ranges:
        if value is not None and not allowed.least <= value <= allowed.most:
            raise UsageError(f"training: {name} is {value}, expected {allowed}")


def with_settings(config: C, settings: Iterable[str]) -> C:
    """Change fields by ``name=value`` strings. ``group.name`` is a field of the configuration in the field ``group``.

    A value that is not JSON is a string.

    Raises
    ------
    UsageError
        If a string is not valid, or a value has a wrong type or is out of range. The message states the expected form.
    InputError
        If a value is not consistent with the values of other fields.
    """
    values: dict[str, Any] = msgspec.to_builtins(config)
    for text in settings:
        name, equals, value = text.partition("=")
        *groups, last = name.strip().split(".")
        place = values
        for group in groups:
            inner = place.get(group)
            place = inner if isinstance(inner, dict) else {}
        if not equals or last not in place or isinstance(place[last], dict):
            names = ", ".join(f"{key}.NAME" if isinstance(place[key], dict) else key for key in place)
            raise UsageError(f"--set: found {text!r}, expected NAME=VALUE with one of {names or 'the hyperparameters'}")
        try:
            place[last] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            place[last] = value.strip()
    try:
        changed = msgspec.convert(values, type(config))
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}") from error
    check(changed)
    return changed


#: Cached, because resolving the annotations of a class takes longer than the checks.
_fields = cache(msgspec.structs.fields)


def _check_type(name: str, value: Any, kind: Any) -> None:
    """Raise UsageError if a value does not have the type of its field."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"training: {name} is {show(value)}: {str(error)[0].lower()}{str(error)[1:]}") from None
    # msgspec accepts floats such as 1.0 for integers, and NaN and infinity for floats.
    for element in value if isinstance(value, tuple) else (value,):
        if isinstance(element, float) and (kind in (int, int | None) or not math.isfinite(element)):
            wanted = "a whole number" if kind in (int, int | None) else "a finite number"
            raise UsageError(f"training: {name} is {show(value)}, expected {wanted}")
