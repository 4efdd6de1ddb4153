"""Small programs whose best game can be proven: miniatures of training steps, inference and decoding, and windows of real ones.

A program is drawn from a seed, the same on every machine. Costs are a roofline's, sizes are kibibytes to mebibytes, and fast
memory holds a part of what the program would like to keep there, so that there is something to decide.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from stowplan.frontends.read import read
from stowplan.learned_guidance.memory_mapping.game.game import moves_of
from stowplan.learned_guidance.memory_mapping.game.programs import excerpt, peak_live_bytes, with_capacity
from stowplan.models.memory_mapping.problem import Loop, Piece, Problem, Step, Tensor, Use

#: Picoseconds a byte: slow memory and copies at 1 TB/s, fast memory at 5 TB/s.
SLOW_PS, FAST_PS, COPY_PS = 1.0, 0.2, 1.0
ALIGNMENT = 512
MOVES = range(20, 36)

#: Fast memory, as part of what lives at once.
CAPACITIES = 0.25, 0.7

#: A window saves at least this part of its time by fast memory.
LEAST_GAIN = 0.05


@dataclass
class Builder:
    """A program that grows by steps; tensors by name."""

    rng: random.Random
    tensors: dict[str, Tensor] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)

    def tensor(
        self, name: str, kibibytes: float, *, is_input: bool = False, is_output: bool = False, alias: bool = False
    ) -> str:
        """A tensor of about this size; ``alias`` gives its storage two members."""
        size = max(1, round(kibibytes * 1024 / ALIGNMENT)) * ALIGNMENT
        copy_ps = round(size * COPY_PS)
        members = (name, f"{name}.alias") if alias else ()
        self.tensors[name] = Tensor(name, size, copy_ps, copy_ps, is_input=is_input, is_output=is_output, members=members)
        return name

    def step(self, opcode: str, reads: list[str], writes: list[str], *, slice_of: float = 1.0, weight: int = 1) -> None:
        """A step; it moves this part of what it writes, and computes for a random part of the time its bytes take."""
        names = list(self.tensors)
        uses = tuple(
            Use(names.index(name), is_output, max(1, round(self.tensors[name].size * (slice_of if is_output else 1.0))))
            for is_output, group in ((False, reads), (True, writes))
            for name in group
        )
        slow = tuple(round(use.bytes * SLOW_PS) for use in uses)
        fast = tuple(round(use.bytes * FAST_PS) for use in uses)
        nothing = (0,) * len(uses)
        compute = round(sum(slow) * self.rng.choice([0.1, 0.3, 0.6, 0.9]))
        pieces = (Piece(compute, nothing, nothing), Piece(0, slow, nothing), Piece(0, nothing, fast))
        self.steps.append(Step(f"{opcode}.{len(self.steps)}", opcode, weight, uses, pieces))

    def problem(self, name: str) -> Problem:
        """The program, with fast memory of a random part of what lives at once."""
        problem = Problem(
            name=name,
            target="miniature",
            cost_model="roofline",
            capacity=1,
            steps=tuple(self.steps),
            tensors=tuple(self.tensors.values()),
            loops=tuple(self.loops),
            alignment=ALIGNMENT,
            stalls="forbidden",
            alias_rule=self.rng.choice(["in_place", "in_place", "uniform"]),
        )
        return _in_part_of_its_peak(problem, self.rng)


def _training(build: Builder) -> None:
    """Forward, backward, and weights updated in place."""
    size, layers = build.rng.uniform(32, 256), build.rng.randint(2, 3)
    value = build.tensor("batch", size, is_input=True)
    kept = [value]
    weights = []
    for layer in range(layers):
        weight = build.tensor(f"w{layer}", size * build.rng.uniform(0.3, 3), is_input=True, is_output=True, alias=True)
        weights.append(weight)
        out = build.tensor(f"a{layer}", size * build.rng.uniform(0.3, 2))
        build.step("dot", [value, weight], [out])
        value = out
        kept.append(out)
    gradient = build.tensor("loss", size * 0.5)
    build.step("loss", [value], [gradient])
    for layer in reversed(range(layers)):
        down = build.tensor(f"g{layer}", size * build.rng.uniform(0.3, 2))
        build.step("dot_grad", [gradient, kept[layer], weights[layer]], [down])
        build.step("update", [weights[layer], gradient], [weights[layer]])
        gradient = down


def _inference(build: Builder) -> None:
    """Layers with shortcuts past them."""
    size = build.rng.uniform(32, 512)
    value = build.tensor("batch", size, is_input=True)
    for block in range(build.rng.randint(3, 4)):
        weight = build.tensor(f"w{block}", size * build.rng.uniform(0.3, 4), is_input=True)
        out = build.tensor(f"a{block}", size * build.rng.uniform(0.5, 1.5))
        build.step("conv", [value, weight], [out])
        shortcut = build.tensor(f"s{block}", size)
        build.step("add", [out, value], [shortcut])
        value = shortcut
    build.step("softmax", [value], [build.tensor("result", 4, is_output=True)])


def _decoding(build: Builder) -> None:
    """Tokens one by one: each writes a slice of the cache in place, then reads it whole."""
    size = build.rng.uniform(32, 256)
    cache = build.tensor("cache", size * build.rng.uniform(1, 4), is_input=True, is_output=True, alias=True)
    weight = build.tensor("w", size * build.rng.uniform(0.5, 3), is_input=True)
    value = build.tensor("token", size * 0.3, is_input=True)
    for step in range(build.rng.randint(2, 3)):
        key = build.tensor(f"k{step}", size * 0.3)
        build.step("project", [value, weight], [key])
        build.step("update_slice", [cache, key], [cache], slice_of=0.1)
        value = build.tensor(f"v{step}", size * build.rng.uniform(0.2, 0.6))
        build.step("attend", [cache, key], [value])
    build.step("logits", [value, weight], [build.tensor("result", 16, is_output=True)])


def _recurrent(build: Builder) -> None:
    """A loop between two layers: its state is carried in place, its weights come from outside."""
    size, trips = build.rng.uniform(32, 256), build.rng.randint(4, 16)
    batch = build.tensor("batch", size, is_input=True)
    first = build.tensor("w_in", size * build.rng.uniform(0.5, 3), is_input=True)
    weight = build.tensor("w_loop", size * build.rng.uniform(0.5, 2), is_input=True)
    state = build.tensor("state", size * 0.5, alias=True)
    hidden = build.tensor("hidden", size * build.rng.uniform(0.3, 1))
    build.step("dot", [batch, first], [hidden])
    build.step("initialise", [hidden], [state])
    value = hidden
    begin = len(build.steps)
    for part in range(build.rng.randint(1, 2)):
        gate = build.tensor(f"gate{part}", size * build.rng.uniform(0.2, 0.8))
        build.step("gate", [state, weight], [gate], weight=trips)
        build.step("cell", [state, gate], [state], weight=trips)
    build.loops.append(Loop(begin, len(build.steps), trips))
    for layer in range(build.rng.randint(3, 4)):
        out = build.tensor(f"a{layer}", size * build.rng.uniform(0.3, 2))
        last = build.tensor(f"w_out{layer}", size * build.rng.uniform(0.5, 3), is_input=True)
        build.step("dot", [value, last, *([state] if layer % 2 else [])], [out])
        value = out
    build.step("norm", [value, hidden, state], [build.tensor("result", size * 0.5, is_output=True)])


KINDS = {"training": _training, "inference": _inference, "decoding": _decoding, "recurrent": _recurrent}


def small_program(kind: str, seed: int) -> Problem:
    """A program of a kind (:data:`KINDS`), with a number of moves in :data:`MOVES`."""
    for attempt in range(1000):
        build = Builder(random.Random(f"{kind} {seed} {attempt}"))
        KINDS[kind](build)
        problem = build.problem(f"{kind}_{seed}")
        if len(moves_of(problem)) in MOVES:
            return problem
    raise AssertionError(f"no {kind} program has a number of moves in {MOVES}")


def small_window(problem: Problem, seed: int) -> Problem:
    """A random window of a program, with a number of moves in :data:`MOVES` and something to gain, in less fast memory."""
    rng = random.Random(f"{problem.name} {seed}")
    starts = [move.start for move in moves_of(problem)]
    for _ in range(1000):
        first, length = rng.randrange(max(1, len(starts) - MOVES.start)), rng.choice(MOVES)
        start, end = starts[first], starts[min(first + length, len(starts) - 1)]
        part = excerpt(problem, start, max(start + 1, end))
        if len(moves_of(part)) in MOVES and part.all_slow_ps - part.floor_ps >= LEAST_GAIN * part.all_slow_ps:
            return _in_part_of_its_peak(part, rng)
    raise AssertionError(f"no window of {problem.name} has a number of moves in {MOVES}")


def _in_part_of_its_peak(problem: Problem, rng: random.Random) -> Problem:
    """In so little memory that there is something to decide; the largest tensor still fits."""
    largest = max(tensor.size for tensor in problem.tensors)
    capacity = max(largest, round(rng.uniform(*CAPACITIES) * peak_live_bytes(problem)))
    return replace(with_capacity(problem, -(-capacity // problem.alignment) * problem.alignment), name=problem.name)


def small_programs(count: int) -> Iterator[Problem]:
    """The first programs of all kinds in turn."""
    for number in range(count):
        yield small_program(list(KINDS)[number % len(KINDS)], number // len(KINDS))


def small_windows(paths: Sequence[Path], count: int, target: str) -> Iterator[Problem]:
    """So many windows of each module in turn."""
    for path in paths:
        problem = read(path, target=target)
        yield from (small_window(problem, seed) for seed in range(count))
