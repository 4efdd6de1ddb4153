"""Small programs for tests of MMapGame, and ways to play it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from benchmarks.lib.memory_mapping.plain_game import State
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use


def program(steps: Iterable[str], sizes: dict[str, int], *, inputs: str = "", outputs: str = "", **options: Any) -> Problem:
    """A program whose every step takes 10 ps, and 100 ps more for each use served from slow memory.

    A step lists its uses: ``"a b >c"`` reads a and b and writes c. Copies take 5 ps a byte: two bytes a step.
    """
    names = list(sizes)
    members = options.pop("members", "")
    return Problem(
        name="test",
        target="none",
        cost_model="test",
        capacity=options.pop("capacity", 100),
        steps=tuple(_step(index, text.split(), names, options.get("loops", ())) for index, text in enumerate(steps)),
        tensors=tuple(
            Tensor(
                name,
                size,
                5 * size,
                5 * size,
                is_input=name in inputs,
                is_output=name in outputs,
                members=("x", "y") if name in members else (),
            )
            for name, size in sizes.items()
        ),
        stalls="forbidden",
        **options,
    )


def _step(index: int, uses: list[str], names: list[str], loops: Any) -> Step:
    weight = 1
    for loop in loops:
        weight *= loop.trip_count if loop.start <= index < loop.end else 1
    slow, fast = (100,) * len(uses), (0,) * len(uses)
    listed = tuple(Use(names.index(use.lstrip(">")), use.startswith(">"), 1) for use in uses)
    return Step(f"s{index}", "test", weight, listed, (Piece(10, slow, fast),))


def play(state: State, actions: str) -> list[int]:
    """Play letters: c for Copy, n for NoCopy, d for Drop; the rewards."""
    letters = {"c": Action.COPY, "n": Action.NOCOPY, "d": Action.DROP}
    return [state.step(letters[letter]) for letter in actions]


def play_on(state: State, rng: random.Random, manner: str) -> int:
    """Play to the end: ``random``, ``greedy`` (the largest reward), or ``place`` (never Drop where it can be helped)."""
    total = 0
    while not state.is_over:
        legal = state.legal_actions()
        if manner == "greedy":
            action = max(legal, key=lambda action: state.copy().step(action))
        elif manner == "place":
            action = rng.choice([action for action in legal if action != Action.DROP] or legal)
        else:
            action = rng.choice(legal)
        total += state.step(action)
    return total
