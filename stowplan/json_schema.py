"""The parts that all JSON Schemas of the package share (draft 2020-12).

The schemas of files are in :mod:`stowplan.library.schema`, and that of the messages of ``stowplan serve`` is in
:mod:`stowplan.backends.serve.messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def components(types: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Schemas of types, and the definitions that they refer to, by name, as a schema has them in ``$defs``."""
    schemas, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    return list(schemas), definitions


def whole_schema(title: str, body: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with its draft, its title and its definitions."""
    return {"$schema": DRAFT, "title": title} | {**body, "title": title, "$defs": definitions}
