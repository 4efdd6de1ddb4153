"""JSON Schemas: files of every kind obey them, damaged ones do not, and they say in which units numbers are."""

from __future__ import annotations

import importlib.util
import json
import random
from typing import Any

import pytest

from stowplan import files, kinds
from stowplan.backends.serve.messages import VERSION
from stowplan.backends.serve.messages import schema as messages_schema
from stowplan.json_schema import DRAFT
from stowplan.library.schema import json_schema
from stowplan.library.table import OWN_FOLDER, Library
from tests.certificates.cases import CASES
from tests.library.json_schemas import violations
from tests.paths import ROOT

KINDS = [*CASES]


def documents(kind: str) -> dict[str, list[Any]]:
    """Problems of the tests and of the library as JSON, and the library's plans."""
    problems = [json.loads(files.encode(CASES[kind](seed)[0])) for seed in range(12)]
    library = Library.open(OWN_FOLDER)
    rows = [
        row for row in library.rows.values() if row.kind == kind and library.instance(row) and len(library.data(row)) < 200_000
    ]
    problems += [json.loads(library.data(row)) for row in rows]
    return {"problem": problems, "plan": [json.loads(files.read_bytes(library.folder / row.plan)) for row in rows if row.plan]}


def schema_of(kind: str, what: str) -> dict[str, Any]:
    return json_schema(getattr(kinds.by_name(kind), what))


@pytest.mark.parametrize("kind", KINDS)
def test_files_obey_the_schema_of_their_kind(kind: str) -> None:
    for what, found in documents(kind).items():
        schema = schema_of(kind, what)
        assert found
        for document in found:
            assert [*violations(document, schema, schema)] == []


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, part in inside for place in ((value, key), *places(part))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["problem", "plan"])
def test_what_the_reader_refuses_as_another_type_the_schema_refuses(kind: str, what: str) -> None:
    """A value of another type, an unknown field, and a field that is missing: reader and schema agree."""
    schema, reader = schema_of(kind, what), getattr(kinds.by_name(kind), what)
    chance = random.Random(kind)
    refused = 0
    document = min(documents(kind)[what], key=lambda each: len(json.dumps(each)))
    for _ in range(60):
        damaged = json.loads(json.dumps(document))
        container, key = chance.choice(places(damaged))
        if chance.random() < 0.2 and isinstance(container, dict):
            del container[key]
        elif chance.random() < 0.2 and isinstance(container, dict):
            container["more"] = 1
        else:
            container[key] = chance.choice(["text", 1.5, {}, [[]], None, True])
        try:
            files.decode_json(json.dumps(damaged).encode(), reader, "a file")
            is_read = True
        except Exception as error:
            # Rules between fields are no matter of a schema.
            is_read = not isinstance(error.__cause__, Exception)
        said = [*violations(damaged, schema, schema)]
        is_head = {"format", "version"} & {each.split(":")[0].strip(".") or each.split()[-1] for each in said}
        refused += bool(said)
        assert bool(said) == (not is_read) or is_head, (container, key, said)
    assert refused > 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_describes_fields(kind: str) -> None:
    for what in ("problem", "plan"):
        schema = schema_of(kind, what)
        assert schema["$schema"] == DRAFT
        assert schema["properties"]["format"] == {"const": f"stowplan.{kind}.{what}"}
        assert {"format", "version"} <= {*schema["required"]}
        assert schema["additionalProperties"] is False
        text = json.dumps(schema)
        assert ":class:" not in text
        assert "``" not in text
        fields = [field for part in (schema, *schema["$defs"].values()) for field in part.get("properties", {}).values()]
        assert sum("description" in field for field in fields) > 0.4 * len(fields)
    assert "bytes" in json.dumps(schema_of("packing", "problem")["$defs"]["Buffer"]["properties"]["size"])


def test_the_library_has_the_schemas() -> None:
    for kind in kinds.registered():
        for what in ("problem", "plan"):
            path = OWN_FOLDER / "schemas" / f"{kind.name}.{what}.json"
            stale = "stale: run python -m benchmarks.instances.make"
            assert json.loads(path.read_bytes()) == schema_of(kind.name, what), stale


@pytest.mark.skipif(importlib.util.find_spec("jsonschema") is None, reason="needs jsonschema")
@pytest.mark.parametrize("kind", KINDS)
def test_another_validator_says_the_same(kind: str) -> None:
    import jsonschema

    for what, found in documents(kind).items():
        schema = schema_of(kind, what)
        jsonschema.Draft202012Validator.check_schema(schema)
        for document in found:
            jsonschema.validate(document, schema)


def test_files_and_messages_share_the_head_of_their_schemas() -> None:
    head = {"$schema": DRAFT, "title": f"stowplan serve, version {VERSION}"}
    assert head.items() <= messages_schema().items()
    naming = [path.name for path in (ROOT / "stowplan").rglob("*.py") if DRAFT in path.read_text(encoding="utf-8")]
    assert naming == ["json_schema.py"]
