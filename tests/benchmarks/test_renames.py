"""The check that a change only renames: what it accepts, and what it refuses."""

import pytest

from benchmarks.house.renames import Comparison

BEFORE = '''"""A module."""
LIMIT = 3


def told(whole, *, kept=LIMIT):
    """Adds."""
    taken = [whole + kept for _ in range(2)]
    ahead = {"kept": taken}

    def inner():
        return taken, ahead

    return inner()


def caller():
    return told(1, kept=2)
'''


def _compare(after: str) -> Comparison:
    comparison = Comparison()
    comparison.files("example.py", BEFORE, after)
    return comparison


def test_names_docstrings_and_wrapping_may_differ() -> None:
    renamed = BEFORE.replace('"""Adds."""', "# why")
    for old, new in {"told": "add_twice", "taken": "sums", "whole": "number", "kept": "step"}.items():
        renamed = renamed.replace(old, new)
    comparison = _compare(renamed)
    assert comparison.differences == []
    assert ("told", "add_twice") in comparison.names
    assert {"taken": "sums", "whole": "number", "kept": "step"} in comparison.locals.values()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("taken", "whole"),  # two names become one
        ("ahead = {", "taken = {"),
        ("whole + kept", "whole - kept"),
        ("range(2)", "range(3)"),
        ("whole + kept", "kept + whole"),
        ("*, kept", "kept"),
        ("return taken, ahead", "return ahead, taken"),
        ("kept=2)", "kept=LIMIT)"),
        ('"kept": taken', '"kept it": taken'),
    ],
)
def test_anything_else_is_a_difference(old: str, new: str) -> None:
    assert old in BEFORE
    assert _compare(BEFORE.replace(old, new)).differences


def test_a_name_with_two_new_names_is_shown() -> None:
    comparison = _compare(BEFORE.replace("told(1", "added(1"))
    assert "told became added and told" in comparison.ambiguous()
