"""JSON Schemas (draft 2020-12) of the files of problems and plans, for programs that read or write them without this package.

Types come from the classes of problems and plans. Descriptions, with units, come from the docstrings of these classes and of
their fields.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from stowplan.document import Document
from stowplan.json_schema import components, whole_schema

#: A reference to Python code in a docstring; a schema only keeps the name in it.
_ROLE = re.compile(r":\w+:`~?([^`]*)`")


def json_schema(document: type[Document]) -> dict[str, Any]:
    """Returns the JSON Schema of the files of a class of problems or plans.

    The schema describes structure and units. Rules between fields, which files must also obey, are on the reference page of the
    kind of problem.
    """
    _, parts = components([document])
    classes = {each.__name__: each for each in _classes(document)}
    for name, part in parts.items():
        if name in classes:
            _describe(part, classes[name])
    whole = parts.pop(document.__name__)
    defaults = {field.name: field.default for field in msgspec.structs.fields(document)}
    for name in ("format", "version"):
        whole["properties"][name] = {"const": defaults[name]}
    required = [*dict.fromkeys((*whole.get("required", ()), "format", "version"))]
    schema = whole_schema(str(defaults["format"]), whole | {"required": required}, parts)
    # Defaults may be tuples, which JSON does not have.
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return decoded


def _classes(document: type[Document]) -> Iterator[type[Any]]:
    """All structs and named tuples that occur in the fields of a class, the class included."""
    waiting: list[Any] = [msgspec.inspect.type_info(document)]
    seen: set[type[Any]] = set()
    while waiting:
        node = waiting.pop()
        own = getattr(node, "cls", None)
        if own in seen:
            continue
        if isinstance(own, type) and hasattr(node, "fields"):
            seen.add(own)
            yield own
        inner = [
            getattr(node, name, ()) for name in ("item_type", "item_types", "types", "key_type", "value_type", "fields", "type")
        ]
        waiting += [each for part in inner for each in (part if isinstance(part, tuple) else (part,))]


def _describe(part: dict[str, Any], owner: type[Any]) -> None:
    """Adds the docstrings of a class and of its fields to a schema, and the names of a tuple's entries."""
    texts = field_docstrings(owner)
    if "description" in part:
        part["description"] = _plain(part["description"])
    for name, field in part.get("properties", {}).items():
        if name in texts:
            # Some readers of schemas ignore a description next to a reference.
            field["description"] = texts[name]
    for name, entry in zip(getattr(owner, "_fields", ()), part.get("prefixItems", ()), strict=False):
        entry["title"] = name
        if name in texts:
            entry["description"] = texts[name]


def field_docstrings(owner: type[Any]) -> dict[str, str]:
    """Returns the docstrings below the fields of a class and of its bases, as plain text by the name of the field.

    Fields without a docstring, and classes whose source code is not available, are left out.
    """
    texts: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        body = getattr(tree, "body", [])
        for field, below in pairwise(body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr)):
                continue
            if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                texts[field.target.id] = _plain(below.value.value)
    return texts


def _plain(docstring: str) -> str:
    """A docstring as one line of text, without the markup of reStructuredText."""
    return " ".join(_ROLE.sub(r"\1", docstring).replace("``", "").split())
