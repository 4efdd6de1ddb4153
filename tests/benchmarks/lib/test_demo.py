"""The demo of MMapGame is what is said to have made it."""

from __future__ import annotations

from benchmarks.lib.memory_mapping.demo import made
from stowplan.learned_guidance.memory_mapping.game.programs import demo_problem


def test_the_demo_is_as_it_was_made() -> None:
    assert demo_problem() == made()
