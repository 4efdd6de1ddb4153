"""Trains the learned guide of memory mapping on what ``data.py`` has labelled.

    python -m benchmarks.guidance.train prepare out/guide-data --processes 2
    python -m benchmarks.guidance.train train out/guide-data -o guide.npz --seconds 300 --device cpu
    python -m benchmarks.guidance.train train out/guide-data -o 'out/guides/{family}.npz' --without resnet,wavenet,nmt,gpt2
    python -m benchmarks.guidance.train seconds

``prepare`` makes the programs again and keeps them as arrays. ``train`` trains a network without each of the families named,
side by side; ``none`` leaves out nothing.
``seconds`` measures what the shipped guide takes, loading included, in a process of its own with one thread.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.guidance.data import family, keep_program, made, prepared, read_program
from benchmarks.lib.memory_mapping.synthetic import synthetic
from benchmarks.lib.tables import table
from stowplan.learned_guidance.memory_mapping.guide.program import Program


def recipe_of(path: Path) -> str:
    """The recipe of a file of labels."""
    with np.load(path) as found:
        return str(found["recipe"])


def module_of(path: Path) -> str:
    """The module that a file of labels is of; "" for a generated program."""
    kind, name, *_ = recipe_of(path).split()
    return "" if kind == "synthetic" else name


def prepare(arguments: argparse.Namespace) -> None:
    paths = sorted(arguments.folder.glob("*.npz"))
    parts = [
        multiprocessing.Process(target=_prepare, args=(paths[part :: arguments.processes], arguments.folder))
        for part in range(arguments.processes)
    ]
    for each in parts:
        each.start()
    for each in parts:
        each.join()


def _prepare(paths: list[Path], folder: Path) -> None:
    for path in paths:
        recipe = recipe_of(path)
        if not prepared(folder, recipe).exists():
            keep_program(made(recipe), recipe, folder)


def labels(path: Path, target: str, accesses: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Values to learn: those of the relaxation, of the plan, or the mean of both; None where there are none."""
    with np.load(path) as found:
        relaxed = (found["fast"] / np.float32(255), found["keep"] / np.float32(255))
        if target == "relaxation":
            return relaxed
        if "plan" not in found.files:
            return None if target == "plan" else relaxed
        bits = np.unpackbits(found["plan"], count=2 * accesses).reshape(2, accesses).astype(np.float32)
    planned = (bits[0], bits[1])
    return planned if target == "plan" else ((relaxed[0] + planned[0]) / 2, (relaxed[1] + planned[1]) / 2)


def read_examples(folder: Path, target: str, without: set[str]) -> Iterator[tuple[str, Program, np.ndarray, np.ndarray]]:
    """Families, programs and the values to learn of them, without the families that are left out."""
    for path in sorted(folder.glob("*.npz")):
        recipe = recipe_of(path)
        at, of = prepared(folder, recipe), family(module_of(path))
        if not at.exists() or of in without:
            continue
        arrays = read_program(at)
        found = labels(path, target, len(arrays.tensor))
        if found is not None and len(arrays.tensor):
            yield of, arrays, *found


def train(arguments: argparse.Namespace) -> None:
    """Train a network without each of the families, side by side, and write the weights."""
    import torch

    from benchmarks.lib.memory_mapping.guide_file import save
    from benchmarks.lib.memory_mapping.guide_training import Settings, example
    from benchmarks.lib.memory_mapping.guide_training import train as train_guides

    torch.set_num_threads(1)
    began = time.monotonic()
    left_out = arguments.without.split(",")
    examples, shown = [], []
    for of, *each in read_examples(arguments.folder, arguments.target, set()):
        examples.append(example(*each))
        shown.append([of != without for without in left_out])
    accesses = sum(len(each.fast) for each in examples)
    spent = time.monotonic() - began
    print(f"{len(examples)} programs, {accesses} accesses, read in {spent:.0f} s", file=sys.stderr, flush=True)
    settings = Settings(
        seconds=max(1.0, arguments.seconds - spent),
        steps=arguments.steps,
        accesses=arguments.batch,
        device=arguments.device,
        seed=arguments.seed,
    )

    def show(step: int, errors: np.ndarray) -> None:
        said = ", ".join(f"{error:.4f}" for error in errors)
        print(f"{time.monotonic() - began:6.0f} s, step {step}, errors {said}", file=sys.stderr, flush=True)

    networks = train_guides(examples, np.array(shown).T, settings, show)
    for without, network in zip(left_out, networks, strict=True):
        path = Path(str(arguments.output).format(family=without))
        save(path, network)
        print(path)


#: What is measured: from the first import of the guide's code to its values, beside what a search has loaded anyway.
MEASURED = """
import sys, time
import numpy, stowplan
from stowplan.models.memory_mapping.problem import Problem
problem = Problem.load(sys.argv[1])
began = time.process_time()
from stowplan.learned_guidance.memory_mapping.guide.guide import learned_hint
learned_hint(problem)
print(problem.use_count, time.process_time() - began)
"""


def seconds(arguments: argparse.Namespace) -> None:
    """Processor seconds of the guide on generated programs of several sizes."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for moves in arguments.moves.split(","):
            path = Path(folder) / "problem.json"
            synthetic(np.random.default_rng(arguments.seed), moves=int(moves), form=arguments.form).save(path)
            command = [sys.executable, "-c", MEASURED, str(path)]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            runs = [subprocess.run(command, capture_output=True, text=True, check=True, env=environment) for _ in range(3)]
            uses, *taken = (float(value) for value in (runs[0].stdout.split()[0], *(run.stdout.split()[1] for run in runs)))
            rows.append([f"{uses:,.0f}", f"{min(taken):.2f}", f"{max(taken):.2f}"])
    print(table(rows, ["uses", "least s", "most s of 3"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("prepare")
    one.add_argument("folder", type=Path)
    one.add_argument("--processes", type=int, default=1)
    one.set_defaults(run=prepare)
    two = commands.add_parser("train")
    two.add_argument("--seconds", type=float, default=300.0, help="at most, reading included")
    two.add_argument("--steps", type=int, default=20_000, help="at most")
    two.add_argument("--batch", type=int, default=40_000, help="accesses in a batch")
    two.add_argument("--device", default="cpu")
    two.set_defaults(run=train)
    four = commands.add_parser("seconds")
    four.add_argument("--moves", default="1000,5000,20000,50000", help="of generated programs")
    four.add_argument("--form", default="training")
    four.add_argument("--seed", type=int, default=0)
    four.set_defaults(run=seconds)
    two.add_argument("folder", type=Path)
    two.add_argument("-o", "--output", type=Path, required=True)
    two.add_argument("--without", default="none", help="family that is left out; of networks several, separated by commas")
    two.add_argument("--target", default="relaxation", help="relaxation, plan, or both for their mean; of networks several")
    two.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
