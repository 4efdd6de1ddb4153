"""Results of players where there is room."""

from __future__ import annotations

import pytest

from benchmarks.lib.memory_mapping import scarce
from benchmarks.muzero.room import interval, rewards


def test_whole_modules_are_drawn() -> None:
    """Two modules of one value each: means are those of the modules, or half way, however many cases there are."""
    low, high = interval([0.0] * 10 + [1.0] * 10, ["a"] * 10 + ["b"] * 10)
    assert (low, high) == (0.0, 1.0)
    assert interval([0.5] * 4, ["a", "a", "b", "c"]) == (0.5, 0.5)


def test_the_best_plan_known_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scarce, "cases", lambda part: iter(["x 0.5", "y 0.5"]))
    rows = [
        {"case": "x 0.5", "R": {"relaxation": 0.9, "greedy": 0.5}},
        {"case": "x 0.5", "R": {"solve": 0.6}},
        {"case": "of another part", "R": {"greedy": 1.0}},
    ]
    ways = rewards("testing", rows)
    assert ways == {"x 0.5": {"relaxation": 0.9, "greedy": 0.5, "solve": 0.6, "best known": 0.6}}
