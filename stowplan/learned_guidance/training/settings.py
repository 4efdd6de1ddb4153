"""Configurations of agents: msgspec structs whose values are checked, and changed by ``name=value`` texts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from stowplan.arguments import show
from stowplan.errors import UsageError

C = TypeVar("C", bound=msgspec.Struct)


def check_types(config: msgspec.Struct) -> None:
    """For ``__post_init__``: msgspec itself looks at types only where it reads a file.

    Raises
    ------
    UsageError
        Naming the field, what was found, and what was expected.
    """
    for field in msgspec.structs.fields(type(config)):
        _check_type(field.name, getattr(config, field.name), field.type)


def check_ranges(config: msgspec.Struct, at_least: Mapping[str, float], fractions: Collection[str]) -> None:
    """That fields are at least so much, and those of ``fractions`` from 0 to 1; None is not looked at.

    Raises
    ------
    UsageError
        Naming the field, what was found, and what was expected.
    """
    for name, least in at_least.items():
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise UsageError(f"training: {name} is {value}, expected {least} or more")
    for name in fractions:
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise UsageError(f"training: {name} is {getattr(config, name)}, expected 0 to 1")


def with_settings(config: C, settings: Iterable[str]) -> C:
    """Fields changed by ``name=value`` texts; ``group.name`` is a field of the configuration that the field ``group`` is.

    Values are JSON, or else texts.

    Raises
    ------
    UsageError
        Naming the text, and what was expected.
    InputError
        Where a value does not fit the others.
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
            raise UsageError(f"--set: found {text!r}, expected NAME=VALUE with the name of a hyperparameter")
        try:
            place[last] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            place[last] = value.strip()
    try:
        changed = msgspec.convert(values, type(config))
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}") from error
    check_types(changed)
    return changed


def _check_type(name: str, value: Any, kind: Any) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"training: {name} is {show(value)}: {str(error)[0].lower()}{str(error)[1:]}") from None
    # Whole numbers written as fractions, and what is no number, pass for the fields' types.
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, float) and (kind in (int, int | None) or not math.isfinite(each)):
            wanted = "a whole number" if kind in (int, int | None) else "a finite number"
            raise UsageError(f"training: {name} is {show(value)}, expected {wanted}")
