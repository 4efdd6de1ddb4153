"""Models as different people write them, at five limits each: added cost beside its proven bound; nothing runs.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.variants [--set tuning|final] [--models cat16] [--time-limit 20] [-o FILE.jsonl]

Limits are parts of the way from what no peak is below (what one operator takes beside what stays, parameters and gradients
included) to eager's peak. Where a limit is proven to be infeasible, a line says so.
``ratio`` is the added cost over its bound, ``step`` the cost of the whole step with it over that with the bound. A line of JSON
is written for each model and limit; those that are there are not run again. ``--table`` prints what the file has and runs
nothing; ``--problems`` writes the problems to a folder, for ``stowplan solve``.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch
from torch.nn import functional as F  # noqa: N812

from benchmarks.lib.tables import table
from benchmarks.torch_memory.large import cross_entropy, flash, traced
from benchmarks.torch_memory.limits import lines
from benchmarks.torch_memory.variants import parts
from benchmarks.torch_memory.variants.decoders import Language
from benchmarks.torch_memory.variants.models import SETS
from stowplan.backends.torch.reader import Reading
from stowplan.kernel.solve import solve
from stowplan.models.rematerialization.bounds import load_bound
from stowplan.models.rematerialization.structure import build

#: Parts of the way to eager's peak.
PARTS = (0.85, 0.65, 0.45, 0.3, 0.15)

#: What a plan may cost more than its bound.
GOAL = 1.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=[*SETS], default="tuning")
    parser.add_argument("--models", help="names, separated by commas; by default all of the set")
    parser.add_argument("--parts", default=",".join(map(str, PARTS)), help="of the way to eager's peak, separated by commas")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of planning for each limit")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="out/torch_memory_variants_SET.jsonl by default")
    parser.add_argument("--table", action="store_true", help="print the table of what the file has, and run nothing")
    parser.add_argument("--problems", type=Path, help="a folder for the problems of all limits; nothing is solved")
    options = parser.parse_args()
    options.output = options.output or Path(f"out/torch_memory_variants_{options.set}.jsonl")
    names = options.models.split(",") if options.models else [*SETS[options.set]]
    if not options.table:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        for name in names:
            run(name, options)
    if not options.problems:
        print(shown(lines(options.output)))


def run(name: str, options: argparse.Namespace) -> None:
    """Append a line for each limit of a model that the file does not have."""
    known = {(row["model"], row["part"]) for row in lines(options.output)}
    missing = [part for part in map(float, options.parts.split(",")) if options.problems or (name, part) not in known]
    if not missing:
        return
    began = time.monotonic()
    reading = joint(name, options.set)
    structure = build(reading.problem)
    eager, least, once = structure.ordering.peak(structure.order), load_bound(structure), sum(structure.cost)
    print(f"# {name}: {structure.ops} operators, traced in {time.monotonic() - began:.1f} s", flush=True)
    for part in missing:
        problem = msgspec.structs.replace(reading.problem, limit=least + int(part * (eager - least)))
        if options.problems:
            options.problems.mkdir(parents=True, exist_ok=True)
            problem.save(options.problems / f"{name}-{part}.json")
            continue
        began = time.monotonic()
        result = solve(problem, time_limit=options.time_limit, workers=options.workers, seed=options.seed)
        row: dict[str, Any] = {
            "model": name,
            "operators": structure.ops,
            "part": part,
            "eager": eager,
            "least": least,
            "limit": problem.limit,
            "cost_once": once,
            "status": result.status,
            "objective": result.objective,
            "bound": None if result.bound is None else int(result.bound),
            "flops": None if result.plan is None else reading.added_flops(result.plan.sequence) / sum(reading.flops),
            "source": "" if result.plan is None else result.provenance.candidate,
            "candidates": {
                each.name: [each.objective, each.bound, round(each.seconds, 1), each.outcome] for each in result.candidates
            },
            "seconds": round(time.monotonic() - began, 1),
            "time_limit": options.time_limit,
            "seed": options.seed,
        }
        with options.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print("#", json.dumps(row), flush=True)


def joint(name: str, of: str) -> Reading:
    """The joint graph of a model: attention is one operator, the loss and the casts of autocast are spelled out."""
    model, inputs = SETS[of][name]()
    is_cast = isinstance(model, Language) and model.choices.is_cast
    with (
        mock.patch.object(F, "scaled_dot_product_attention", flash),
        mock.patch.object(F, "cross_entropy", cross_entropy),
        mock.patch.object(F, "linear", parts.cast_linear if is_cast else F.linear),
    ):
        reading, _ = traced(model, inputs)
    return reading


def ratios(row: dict[str, Any]) -> tuple[float, float] | None:
    """Added cost over its bound, and the step's cost over that with the bound; None where there is no plan."""
    if row["objective"] is None or row["bound"] is None:
        return None
    once = row["cost_once"]
    ratio = row["objective"] / row["bound"] if row["bound"] else 1.0 if not row["objective"] else float("inf")
    return ratio, (once + row["objective"]) / (once + row["bound"])


def shown(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown, and how many limits are as near to their bounds as they are to be."""
    cells = []
    for row in rows:
        both, once = ratios(row), row["cost_once"]
        place = [f"{row['eager'] / (1 << 30):.1f}", row["part"], f"{row['limit'] / row['eager']:.2f}"]
        figures = [""] * 4
        if both is not None:
            added = [f"{100 * row[key] / once:.2f}" for key in ("objective", "bound")]
            figures = [*added, f"{both[0]:.3f}", f"{both[1]:.4f}"]
        cells.append((row["model"], row["operators"], *place, *figures, row["source"] or row["status"], row["seconds"]))
    heads = ["model", "operators", "eager GiB", "part", "limit", "added %", "bound %", "ratio", "step", "source", "s"]
    solved = [both for row in rows if (both := ratios(row)) is not None]
    none = [row["status"] for row in rows]
    return "\n\n".join([
        table(cells, heads),
        f"{len(rows)} limits: {none.count('infeasible')} proven infeasible, {none.count('no_plan')} without a plan. "
        f"Added cost within {GOAL} times its bound: {sum(one <= GOAL for one, _ in solved)} of {len(solved)}; "
        f"the step's: {sum(step <= GOAL for _, step in solved)}.",
    ])  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
