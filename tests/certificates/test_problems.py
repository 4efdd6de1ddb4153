"""The checker's table of what problems may say has all that they say, and refuses all else."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from stowplan import files, kinds
from stowplan.certificates.checker import check_parsed
from stowplan.certificates.checker.reading import KNOWN, NUMBERS, TYPES, MalformedError, UnprovenError, digest
from stowplan.certificates.maker import certify
from tests.certificates.cases import CASES

WORDS = {"text": str, "flag": bool, "number": float} | dict.fromkeys(NUMBERS, int)


def assert_same(hint: Any, known: Any, name: str, place: str) -> None:
    """The type of a field, and what the table has for it under ``name``."""
    parts = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        # What most files leave out is not null where it is there.
        assert name.endswith("?") == (types.NoneType in parts), f"{place} may be null"
        inner = [each for each in parts if each not in (types.NoneType, msgspec.UnsetType)]
        assert len(inner) == 1, place
        return assert_same(inner[0], known, "", place)
    assert not name.endswith("?"), f"{place} may not be null"
    if get_origin(hint) is tuple:
        assert isinstance(known, list), place
        assert len({each for each in parts if each is not Ellipsis}) == 1, place
        return assert_same(parts[0], known[0], "", f"{place}[]")
    if get_origin(hint) is Literal:
        assert {*parts} == {*known.split(" | ")}, place
        return None
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return assert_covers(hint, known, place)
    assert WORDS.get(known) is hint, f"{place}: {known} for {hint}"
    return None


def assert_covers(struct: type[msgspec.Struct], known: dict[str, Any], place: str) -> None:
    """The fields of a struct are those of the table."""
    hints = get_type_hints(struct)
    names = {name.removesuffix("?"): name for name in known}
    fields = msgspec.structs.fields(struct)
    assert {*names} == {field.encode_name for field in fields}, place
    for field in fields:
        name = names[field.encode_name]
        if field.encode_name in ("format", "version"):
            assert known[name] == field.default, f"{place}.{name}"
        else:
            assert_same(hints[field.name], known[name], name, f"{place}.{field.encode_name}")


def test_the_table_has_every_kind() -> None:
    assert {*KNOWN} == {each.name for each in kinds.registered()} == {*CASES}


@pytest.mark.parametrize("kind", KNOWN)
def test_a_new_field_or_value_of_a_problem_must_be_known_to_the_checker(kind: str) -> None:
    assert_covers(kinds.by_name(kind).problem, KNOWN[kind], kind)


def test_the_comparison_sees_what_is_new() -> None:
    """The test above is no test unless these fail."""
    problem = kinds.by_name("memory_mapping").problem
    known = KNOWN["memory_mapping"]
    for changed in (
        {name: value for name, value in known.items() if name != "evictions"},
        known | {"prefetches": "whole"},
        known | {"version": 2},
        known | {"capacity": "text"},
        known | {"more": "flag"},
        known | {"steps": [known["steps"][0] | {"uses": [{"tensor": "natural"}]}]},
    ):
        with pytest.raises(AssertionError):
            assert_covers(problem, changed, "memory_mapping")


def objects(value: Any, known: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """All objects of a document, each with what the table has for it."""
    if isinstance(value, dict):
        yield value, {name.removesuffix("?"): part for name, part in known.items()}
        for name, part in known.items():
            yield from objects(value.get(name.removesuffix("?")), part)
    elif isinstance(value, list) and isinstance(known, list):
        for each in value:
            yield from objects(each, known[0])


def certified(kind: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A document and its certificate, which holds."""
    problem, best = CASES[kind](seed)
    rules, stated = json.loads(files.encode(problem)), json.loads(files.encode(certify(problem, infeasible=best is None)))
    return rules, stated


def refused(rules: dict[str, Any], stated: dict[str, Any]) -> str:
    """What the checker says of a problem that was changed, signed anew, so that the digest holds."""
    with pytest.raises((MalformedError, UnprovenError)) as caught:
        check_parsed(rules, stated | {"problem": digest(rules)})
    found = str(caught.value)
    assert "\n" not in found
    assert len(found) < 400
    return found


@pytest.mark.parametrize("kind", KNOWN)
def test_what_the_checker_does_not_know_is_refused(kind: str) -> None:
    """A field more in any object; another value of any rule; a value of another type: never certified by silence."""
    tried = 0
    for seed in range(6):
        rules, stated = certified(kind, seed)
        if stated["proof"]["form"] == "trusted":
            continue
        assert check_parsed(rules, stated)
        for part, known in objects(rules, KNOWN[kind]):
            part["stowage"] = True
            assert "the field 'stowage', which the checker does not know" in refused(rules, stated)
            del part["stowage"]
            for name, words in known.items():
                if name not in part or part[name] is None:
                    continue
                kept = part[name]
                for wrong in wrong_values(words):
                    tried += 1
                    part[name] = wrong
                    # A format of another kind is a certificate for another kind.
                    assert ("kind: found" if name == "format" else f".{name}: found") in refused(rules, stated)
                part[name] = kept
        assert check_parsed(rules, stated)
    assert tried > 50


def wrong_values(words: Any) -> list[Any]:
    """Values that no field of these words has."""
    if isinstance(words, list):
        return [{}, 1, "text"]
    if isinstance(words, dict):
        return [[], 1, "text"]
    if words in NUMBERS:
        return [NUMBERS[words].start - 1, NUMBERS[words].stop, 1.0, "1", True, [], {}]
    if words in TYPES:
        return [[], {}] + ([1] if words != "number" else ["1", True])
    return ["on_sundays", "", f"{words} ", True, 2, []]


def test_a_rule_that_is_newly_allowed_is_not_certified() -> None:
    """Where copies may be sliced, plans are cheaper; were the word another, the bound without slices must not pass for it."""
    rules, stated = certified("memory_mapping", 1)
    for name in ("stalls", "alias_rule", "evictions", "prefetches"):
        found = refused(rules | {name: "anything_goes"}, stated)
        assert found.startswith(f"problem.{name}: found anything_goes, expected "), found
    assert "problem.version: found 2" in refused(rules | {"version": 2}, stated)


def test_the_choices_of_a_front_end_say_nothing_of_plans() -> None:
    rules, stated = certified("modulo_scheduling", 0)
    choices = [{"name": "fan_out", "value": "4", "instead": "--set fan_out=2"}]
    assert check_parsed(rules | {"choices": choices}, stated)
    assert "problem.choices[0].value" in refused(rules | {"choices": [choices[0] | {"value": 4}]}, stated)


def test_a_field_that_is_missing_proves_nothing() -> None:
    rules, stated = certified("memory_mapping", 0)
    for name in ("stalls", "evictions", "capacity", "steps", "tensors"):
        without = {key: value for key, value in rules.items() if key != name}
        with pytest.raises((MalformedError, UnprovenError)):
            check_parsed(without, stated | {"problem": digest(without)})
