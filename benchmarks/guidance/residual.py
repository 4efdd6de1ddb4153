"""Trains the policy of insertion as a game (``lib/memory_mapping/residual.py``): expert iteration, then evolution.

    python -m benchmarks.guidance.residual programs PROGRAMS          # the training part as files; needs ../shared
    python -m benchmarks.guidance.residual train PROGRAMS OUT --seconds 500 --processes 8 --device cuda

Workers play the present network on programs at random scarcities, and label some decisions with true completions of each
action; the main process learns all labels so far. In the last part of the time the weights evolve: mirrored perturbations are
judged by whole games.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import queue
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.memory_mapping.residual import ACTIONS, FEATURES, HIDDEN, no_network
from benchmarks.lib.memory_mapping.residual_labels import SHAPES, SIZE, drawn, labelled, network, varied
from benchmarks.lib.memory_mapping.residual_play import Program, read_data, save_data

#: Decisions labelled of each game.
DECISIONS = 12

#: Thresholds of the games in which decisions are labelled, and of the completions.
VISITED, AFTER = (0.0, 0.05, 0.1, 0.3), 0.1

#: Evolution: perturbation over the spread of a layer's weights, pairs of a generation, programs of a pair, rate.
SIGMA, PAIRS, PROGRAMS, RATE = 0.05, 32, 6, 0.06

#: A game that is better by this part of its objective is half of all that counts.
GOOD = 2e-3

#: Labels that are saved.
KEPT = 20_000

#: Games to judge by: programs of the training part, at scarcities that are not drawn.
JUDGED = 40


def programs(arguments: argparse.Namespace) -> None:
    """Save whole modules, windows of them and generated programs."""
    from benchmarks.lib.memory_mapping import scarce
    from benchmarks.lib.memory_mapping.synthetic import synthetic
    from stowplan.learned_guidance.memory_mapping.game.programs import excerpt, with_capacity
    from stowplan.portfolio.memory_mapping.arrays import build

    arguments.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in scarce.modules("training"):
        whole = scarce.made(f"{name} 1")
        short = name.partition("/")[2]
        save_data(arguments.folder / f"whole-{short}.npz", build(whole))
        ends = np.cumsum([len(step.uses) for step in whole.steps])
        for number in range(arguments.windows if ends[-1] > 400 else 0):
            wanted = min(int(np.exp(rng.uniform(np.log(300), np.log(2500)))), int(ends[-1]))
            start = int(rng.integers(0, ends[-1] - wanted + 1))
            first, last = (int(np.searchsorted(ends, each)) for each in (start, start + wanted - 1))
            save_data(arguments.folder / f"window-{short}-{number}.npz", build(excerpt(whole, first, last + 1)))
    for number in range(arguments.synthetic):
        made = synthetic(np.random.default_rng(1000 + number), moves=int(np.exp(rng.uniform(np.log(300), np.log(2500)))))
        # Drawn scarcities are over this.
        save_data(arguments.folder / f"synthetic-{number}.npz", build(with_capacity(made, 2 * made.capacity)))


class Shared:
    """What the main process tells the workers."""

    def __init__(self, context: Any):
        self.weights = context.Array("d", SIZE + 2 * FEATURES, lock=False)
        self.version = context.Value("i", 0, lock=False)
        self.phase = context.Value("i", 0, lock=False)

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        values = np.array(self.weights[:])
        return values[:SIZE], values[SIZE : SIZE + FEATURES], values[SIZE + FEATURES :]


def work(number: int, files: list[Path], shared: Shared, tasks: Any, results: Any, end: float, seed: int) -> None:
    """A worker: labels in the first phase, pairs of games in the second."""
    rng = np.random.default_rng([seed, number])
    while time.monotonic() < end:
        if shared.phase.value == 0:
            vector, mean, scale = shared.read()
            version = shared.version.value
            name, program = drawn(files, rng)
            if program.count < 20:
                continue
            visited = after = no_network()
            if version:
                visited = network(vector, mean, scale, float(rng.choice(VISITED))) if rng.random() > 0.2 else visited
                after = network(vector, mean, scale, AFTER)
            found = labelled(program, visited, after, DECISIONS, rng)
            if found is not None:
                results.put(("labels", version, name, found))
        else:
            try:
                generation, pair = tasks.get(timeout=0.5)
            except queue.Empty:
                continue
            vector, mean, scale = shared.read()
            noise = perturbation(seed, generation, pair, vector)
            chosen = np.random.default_rng([seed, 7, generation, pair // 4])
            value = 0.0
            for _ in range(PROGRAMS):
                _, program = drawn(files, chosen)
                if program.count < 20:
                    continue
                totals = [program.played(network(vector + sign * noise, mean, scale, 0.0)) for sign in (1, -1)]
                value += float(np.tanh((totals[1] - totals[0]) / (GOOD * totals[0]))) / PROGRAMS
            results.put(("pair", generation, pair, value))
    results.put(("end", number, 0, None))
    results.close()


def spreads(vector: np.ndarray) -> np.ndarray:
    """For each weight the spread of its layer."""
    found, at = np.zeros(SIZE), 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        width = shape[0] if len(shape) == 2 else HIDDEN
        found[at : at + size] = max(float(vector[at : at + size].std()), 0.3 / width**0.5)
        at += size
    return found


def perturbation(seed: int, generation: int, pair: int, vector: np.ndarray) -> np.ndarray:
    """The same to everybody who asks for it."""
    return np.random.default_rng([seed, generation, pair]).standard_normal(SIZE) * SIGMA * spreads(vector)


class Judge:
    """Mean change (%) of the objective against insertion's, on programs and scarcities that stay the same."""

    def __init__(self, files: list[Path], count: int):
        rng = np.random.default_rng(12345)
        order = [files[int(at)] for at in rng.permutation(len(files))]
        self.programs = []
        for path in order:
            data, _ = read_data(path)
            program = Program(varied(data, float(rng.choice([0.25, 0.35, 0.5])), 1.0))
            if 100 <= program.count <= 1500 and len(self.programs) < count:
                self.programs.append((program, program.played(no_network())))

    def __call__(self, vector: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> dict[str, float]:
        found = {}
        for threshold in (0.0, 0.05, 0.1, 0.2, 0.4):
            net = network(vector, mean, scale, threshold)
            gains = [100 * (1 - program.played(net) / base) for program, base in self.programs]
            found[f"{threshold:g}"] = round(float(np.mean(gains)), 4)
            found[f"{threshold:g} or insertion"] = round(float(np.mean(np.maximum(gains, 0))), 4)
        return found


def train(arguments: argparse.Namespace) -> None:
    """Labels and learning side by side, then evolution; a checkpoint and a line of the log now and then."""
    began = time.monotonic()
    files = sorted(arguments.folder.glob("*.npz"))
    arguments.output.mkdir(parents=True, exist_ok=True)
    log = (arguments.output / "log.jsonl").open("a")

    def say(**facts: Any) -> None:
        log.write(json.dumps({"seconds": round(time.monotonic() - began, 1), **facts}) + "\n")
        log.flush()

    # Compiled once, before any process is forked.
    judge = Judge(files, arguments.judged)
    say(compiled=True, programs=len(files), judged=len(judge.programs))
    context = multiprocessing.get_context("fork")
    shared, tasks, results = Shared(context), context.Queue(), context.Queue()
    end = began + arguments.seconds - 5
    workers = [
        context.Process(target=work, args=(number, files, shared, tasks, results, end, arguments.seed), daemon=True)
        for number in range(arguments.processes)
    ]
    for each in workers:
        each.start()
    vector, mean, scale = expert(arguments, shared, results, judge, say, began)
    vector = evolve(arguments, shared, tasks, results, judge, say, end, vector, mean, scale)
    say(final=judge(vector, mean, scale))
    for each in workers:
        each.kill()


def save(path: Path, vector: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> None:
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, vector=vector.astype(np.float32), mean=mean, scale=scale)
    temporary.replace(path)


def expert(
    arguments: argparse.Namespace, shared: Shared, results: Any, judge: Judge, say: Any, began: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Learn labels as they come."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    device = arguments.device
    until = began + arguments.seconds * arguments.part
    parts: list[Any] = []
    kept: list[Any] = []
    parameters: list[Any] = []
    mean = scale = np.zeros(FEATURES)
    optimiser: Any = None
    steps, shown, published, decisions = 0, time.monotonic(), time.monotonic(), 0
    errors: list[float] = []
    misses: list[Any] = []
    vector = np.zeros(SIZE)
    joined_at = 0.0
    tensors: list[Any] = []
    while time.monotonic() < until:
        looked = time.monotonic()
        with contextlib.suppress(queue.Empty):
            # Workers may be faster than this, so that the queue is never empty.
            while time.monotonic() < looked + 0.1:
                kind, _version, _, found = results.get(timeout=0.005 if parameters else 0.1)
                if kind == "labels":
                    parts.append(found)
                    decisions += len(found.rows)
        if not parameters:
            if decisions < arguments.first:
                continue
            rows = np.concatenate([each.rows for each in parts])
            mean, scale = rows.mean(axis=0), 1.0 / np.maximum(rows.std(axis=0), 0.05)
            for shape in SHAPES:
                value = torch.randn(shape) * (1.5 / shape[0]) ** 0.5 if len(shape) == 2 else torch.zeros(shape)
                parameters.append((value * (0.1 if shape[-1] == ACTIONS else 1.0)).to(device).requires_grad_())
            optimiser = torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-5)
        if parts and (not tensors or time.monotonic() > joined_at + 2):
            joined_at = time.monotonic()
            # Labels not learned yet are the test.
            fresh = [np.concatenate([getattr(each, name) for each in parts]) for name in ("rows", "values", "known")]
            with torch.no_grad():
                seen = torch.as_tensor(np.clip((fresh[0] - mean) * scale, -10, 10).astype(np.float32), device=device)
                guess = forward(parameters, seen).cpu().numpy()
            misses.append(
                [((guess - guess[:, :1] - fresh[1]) ** 2 * fresh[2]).sum(), (fresh[1] ** 2 * fresh[2]).sum(), fresh[2].sum()]
            )
            kept += parts
            parts = []
            # All labels, the newest ones too.
            joined = [np.concatenate([getattr(each, name) for each in kept]).astype(np.float32) for name in kept[0]._fields]
            joined[0] = np.clip((joined[0] - mean) * scale, -10, 10).astype(np.float32)
            tensors = [torch.as_tensor(each, device=device) for each in joined]
        left = max(0.0, until - time.monotonic()) / max(1.0, until - began)
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1.0, 0.05 + left)
        for _ in range(arguments.steps):
            chosen = torch.randint(len(tensors[0]), (1024,), device=device)
            rows_, values, known, _ = (each[chosen] for each in tensors)
            said = forward(parameters, rows_)
            # Only differences to the best way count.
            error = ((said - said[:, :1] - values) ** 2 * known).sum() / known.sum()
            optimiser.zero_grad()
            error.backward()
            optimiser.step()
            steps += 1
        errors.append(float(error.detach()))
        now = time.monotonic()
        if now > published + 2:
            published = now
            vector = torch.cat([each.detach().reshape(-1) for each in parameters]).double().cpu().numpy()
            # What is said of the best way is nothing.
            _anchor(vector)
            shared.weights[:] = np.concatenate([vector, mean, scale])
            shared.version.value += 1
        if now > shown + arguments.every and shared.version.value:
            shown = now
            save(arguments.output / "expert.npz", vector, mean, scale)
            found_ = judge(vector, mean, scale)
            new = np.sum(misses[-30:], axis=0)
            facts = {"error": np.mean(errors[-50:]), "error_new": new[0] / new[2], "zero_new": new[1] / new[2]}
            facts = {name: round(float(value), 4) for name, value in facts.items()}
            say(phase="expert", decisions=decisions, steps=steps, **facts, **found_)
    if kept:
        joined = [np.concatenate([getattr(each, name) for each in kept])[-KEPT:] for name in ("rows", "values", "known")]
        kinds = (np.float16, np.float16, np.bool_)
        rows, values, known = (each.astype(kind) for each, kind in zip(joined, kinds, strict=True))
        np.savez_compressed(arguments.output / "labels.npz", rows=rows, values=values, known=known)
    return vector, mean, scale


def _anchor(vector: np.ndarray) -> None:
    """Take what is said of the best way from all actions: the last layer's differences."""
    size = HIDDEN * ACTIONS
    last = vector[-size - ACTIONS : -ACTIONS].reshape(HIDDEN, ACTIONS)
    last -= last[:, :1].copy()
    vector[-ACTIONS:] -= vector[-ACTIONS]


def forward(parameters: list[Any], rows: Any) -> Any:
    """Of torch tensors."""
    hidden = (rows @ parameters[0] + parameters[1]).relu()
    hidden = (hidden @ parameters[2] + parameters[3]).relu()
    return hidden @ parameters[4] + parameters[5]


def evolve(
    arguments: argparse.Namespace,
    shared: Shared,
    tasks: Any,
    results: Any,
    judge: Judge,
    say: Any,
    end: float,
    vector: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
) -> np.ndarray:
    """Mirrored perturbations of all weights, judged by whole games (Salimans et al. 2017)."""
    end -= 10
    # The threshold becomes part of the weights, that they may change it.
    vector = vector.copy()
    vector[-ACTIONS + 1 :] -= AFTER
    first, second = np.zeros(SIZE), np.zeros(SIZE)
    generation, shown, values = 0, time.monotonic(), []
    shared.weights[:] = np.concatenate([vector, mean, scale])
    shared.phase.value = 1
    while time.monotonic() < end:
        generation += 1
        shared.weights[:] = np.concatenate([vector, mean, scale])
        for pair in range(arguments.pairs):
            tasks.put((generation, pair))
        found: dict[int, float] = {}
        while len(found) < arguments.pairs and time.monotonic() < end:
            try:
                kind, of, pair, value = results.get(timeout=0.5)
            except queue.Empty:
                continue
            if kind == "pair" and of == generation:
                found[pair] = value
        if len(found) < arguments.pairs:
            break
        spread = spreads(vector)
        gradient = sum(value * perturbation(arguments.seed, generation, pair, vector) for pair, value in found.items())
        gradient = gradient / (arguments.pairs * SIGMA * spread)
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        step = first / (1 - 0.9**generation) / (np.sqrt(second / (1 - 0.99**generation)) + 1e-8)
        vector = vector + RATE * SIGMA * 2 * spread * step
        values.append(float(np.mean(np.abs(list(found.values())))))
        if time.monotonic() > shown + arguments.every:
            shown = time.monotonic()
            save(arguments.output / "evolved.npz", vector, mean, scale)
            say(
                phase="evolution",
                generation=generation,
                differences=round(float(np.mean(values[-20:])), 4),
                **judge(vector, mean, scale),
            )
    save(arguments.output / "evolved.npz", vector, mean, scale)
    return vector


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("programs")
    one.add_argument("folder", type=Path)
    one.add_argument("--windows", type=int, default=8)
    one.add_argument("--synthetic", type=int, default=40)
    one.set_defaults(run=programs)
    two = commands.add_parser("train")
    two.add_argument("folder", type=Path)
    two.add_argument("output", type=Path)
    two.add_argument("--seconds", type=float, default=500.0)
    two.add_argument("--part", type=float, default=0.6, help="of the time for labels; the rest evolves the weights")
    two.add_argument("--processes", type=int, default=8)
    two.add_argument("--device", default="cpu")
    two.add_argument("--steps", type=int, default=50, help="of training between two looks at what has come")
    two.add_argument("--first", type=int, default=1500, help="decisions before training begins")
    two.add_argument("--every", type=float, default=20.0, help="seconds between two lines of the log")
    two.add_argument("--judged", type=int, default=JUDGED)
    two.add_argument("--pairs", type=int, default=PAIRS)
    two.add_argument("--seed", type=int, default=0)
    two.set_defaults(run=train)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
