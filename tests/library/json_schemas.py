"""What JSON Schema says of a value, for the keywords that the schemas of this package have; any other keyword is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}

#: Keywords that say nothing about a value.
NOTES = {"$schema", "$defs", "title", "description", "default", "examples"}


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], place: str = "") -> Iterator[str]:
    """Yields a line for each part of a value that a schema does not allow."""
    for keyword, wanted in schema.items():
        if keyword in NOTES:
            continue
        yield from CHECKS[keyword](value, wanted, schema, root, place)


def _type(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    types = TYPES[wanted]
    if not isinstance(value, types) or (isinstance(value, bool) and wanted in ("integer", "number")):
        yield f"{place}: {value!r} is no {wanted}"


def _properties(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    for name, part in wanted.items():
        if isinstance(value, dict) and name in value:
            yield from violations(value[name], part, root, f"{place}.{name}")


def _required(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{place}: no {name}" for name in wanted if name not in value)


def _additional(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    for name in value if isinstance(value, dict) else ():
        if name in schema.get("properties", {}):
            continue
        if wanted is False:
            yield f"{place}: the field {name}"
        elif isinstance(wanted, dict):
            yield from violations(value[name], wanted, root, f"{place}.{name}")


def _prefix(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    if isinstance(value, list):
        for at, (part, each) in enumerate(zip(wanted, value, strict=False)):
            yield from violations(each, part, root, f"{place}[{at}]")


def _items(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    rest = value[len(schema.get("prefixItems", ())) :] if isinstance(value, list) else []
    for at, each in enumerate(rest):
        yield from [f"{place}: too many entries"] if wanted is False else violations(each, wanted, root, f"{place}[{at}]")


def _any_of(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    if all(any(violations(value, part, root)) for part in wanted):
        yield f"{place}: {value!r} is none of the {len(wanted)} alternatives"


def _reference(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    yield from violations(value, root["$defs"][wanted.removeprefix("#/$defs/")], root, place)


def _compared(holds: Any) -> Any:
    def check(value: Any, wanted: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
        if not holds(value, wanted):
            yield f"{place}: {value!r} is not within {wanted!r}"

    return check


CHECKS: dict[str, Any] = {
    "type": _type,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "prefixItems": _prefix,
    "items": _items,
    "anyOf": _any_of,
    "$ref": _reference,
    "const": _compared(lambda value, wanted: value == wanted and type(value) is type(wanted)),
    "enum": _compared(lambda value, wanted: value in wanted),
    "minItems": _compared(lambda value, wanted: not isinstance(value, list) or len(value) >= wanted),
    "maxItems": _compared(lambda value, wanted: not isinstance(value, list) or len(value) <= wanted),
    "minimum": _compared(lambda value, wanted: not isinstance(value, int | float) or value >= wanted),
    "maximum": _compared(lambda value, wanted: not isinstance(value, int | float) or value <= wanted),
}
