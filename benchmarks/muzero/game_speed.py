"""Steps a second of random play in the compiled MMapGame, legality of every move included, on one core.

python -m benchmarks.muzero.game_speed                                 # random programs of 100, 1,000 and 10,000 uses
python -m benchmarks.muzero.game_speed --target tpu-v4 MODULE...       # and problems of compiled programs, or problem files
"""

from __future__ import annotations

import argparse
import random
import time

from benchmarks.lib.memory_mapping.random_play import play_random
from stowplan.frontends.read import read
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import POSITION, RESETS, RESIDENCIES
from stowplan.learned_guidance.memory_mapping.game.kernel.rules import reset
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame, play_greedy, warm_up
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use


def random_program(uses: int, seed: int = 0) -> Problem:
    """A program of some ``uses`` uses: each step reads three tensors, mostly recent ones, and makes one.

    Every fifth is updated in place instead. Fast memory holds some forty of the tensors; a copy takes about a step's time.
    """
    rng = random.Random(seed)
    sizes: list[int] = []
    inputs: list[bool] = []

    def tensor(is_input: bool) -> int:
        sizes.append(rng.randint(1, 64) * 1024)
        inputs.append(is_input)
        return len(sizes) - 1

    made = [tensor(is_input=True) for _ in range(20)]
    steps = []
    for number in range(uses // 4):
        reads = {rng.choice(made[-30:]) for _ in range(2)} | {rng.choice(made)}
        if rng.random() < 0.1:
            reads.add(tensor(is_input=True))
        written = rng.choice(sorted(reads)) if rng.random() < 0.2 else tensor(is_input=False)
        listed = (*(Use(each, False, sizes[each]) for each in sorted(reads)), Use(written, True, sizes[written]))
        slow = tuple(use.bytes // 2 for use in listed)
        fast = tuple(use.bytes // 16 for use in listed)
        idle = (0,) * len(listed)
        steps.append(Step(f"s{number}", "random", 1, listed, (Piece(20_000, idle, idle), Piece(1_000, slow, fast))))
        made.append(written)
    return Problem(
        name=f"random, {uses} uses",
        target="none",
        cost_model="random",
        capacity=40 * 32 * 1024,
        alignment=128,
        steps=tuple(steps),
        tensors=tuple(
            Tensor(f"t{number}", size, size // 2, size // 2, is_input=is_input)
            for number, (size, is_input) in enumerate(zip(sizes, inputs, strict=True))
        ),
    )


def measure(problem: Problem, seconds: float) -> None:
    """Play for some seconds; one line of a table."""
    began = time.perf_counter()
    game = CompiledGame(problem)
    built = time.perf_counter() - began
    data = game.reset().data
    games, best, resets = 0, 0, 0
    began = time.perf_counter()
    while games == 0 or time.perf_counter() - began < seconds:
        reset(game.tables, data)
        best = max(best, play_random(game.tables, data, games))
        games += 1
        resets += data[RESETS]
    taken = time.perf_counter() - began
    # Moves that are taken back are steps, too, but not counted.
    steps = games * len(game.moves)
    assert data[POSITION] == len(game.moves)
    greedy = play_greedy(game.tables, game.reset().data)
    span = problem.all_slow_ps - problem.floor_ps
    print(
        f"{problem.name[:40]:40} {len(game.moves):7,} {len(game.slots.supply_ps):7,} {built:8.2f} {steps / taken:12,.0f} "
        f"{1e6 * taken / steps:8.2f} {resets / games:8.1f} {data[RESIDENCIES]:7,} {best / span:7.3f} {greedy / span:7.3f}",
        flush=True,
    )


def main() -> None:
    """Measure all programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", nargs="*", metavar="MODULE")
    parser.add_argument("--target", default="tpu-v4")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each program")
    parser.add_argument("--uses", type=int, nargs="*", default=[100, 1_000, 10_000], help="sizes of the random programs")
    options = parser.parse_args()
    warm_up()
    print(
        f"{'program':40} {'moves':>7} {'slots':>7} {'build s':>8} {'steps/s':>12} {'us/step':>8} {'resets':>8} {'placed':>7} "
        f"{'random':>7} {'greedy':>7}"
    )
    for uses in options.uses:
        measure(random_program(uses), options.seconds)
    for path in options.inputs:
        problem = read(path, target=options.target)
        if not isinstance(problem, Problem):
            parser.error(f"{path}: not a program with memory to map")
        measure(problem, options.seconds)


if __name__ == "__main__":
    main()
