"""The demos of the games are what is said to have made them."""

from __future__ import annotations

from benchmarks.lib.memory_mapping.demo import made
from benchmarks.lib.modulo_scheduling import kernels
from stowplan.frontends.dfg import lower
from stowplan.learned_guidance.memory_mapping.game.programs import demo_problem
from stowplan.learned_guidance.modulo_scheduling import environment as modulo_scheduling


def test_the_demo_is_as_it_was_made() -> None:
    assert demo_problem() == made()
    assert modulo_scheduling.demo_problem() == lower(kernels.unrolled(kernels.distance(), 3))
