"""XLA's own plans, imported: ``python -m benchmarks.xla.table CORPUS [NAME...]``, a markdown table on standard output.

CORPUS holds ``tpu_v4`` (modules before memory-space assignment), ``tpu_v4_xla_plan`` (after it, with offsets) and, for some
of them, ``tpu_v4_cycles`` (with the cycles the compiler estimates, with its plan and with everything in slow memory); more
modules are in ``tpu_v4_large``. Problems have the freedoms of XLA's plans (docs/reference/memory-mapping.md), with ``--strict``
none.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from stowplan.frontends.hlo import read_program
from stowplan.frontends.xla_plan import import_xla_plan
from stowplan.hardware.costs import make_problem
from stowplan.hardware.program import Program
from stowplan.hardware.simulator import simulate
from stowplan.hardware.targets import load_target
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify

COLUMNS = [
    "module", "steps", "stays", "in", "of it sliced", "out", "pre-loads", "other time", "other offset",
    "dropped (MB, % of traffic)", "fast traffic", "all slow ms", "XLA's plan ms", "of it stalls", "ratio", "cycles: ratio",
    "import s", "verified",
]  # fmt: skip

FOLDERS = ("tpu_v4", "tpu_v4_large")


def modules(corpus: Path, names: list[str]) -> list[tuple[Path, Path]]:
    """Modules before and after memory-space assignment."""
    found = [
        (corpus / folder / path.name, path)
        for folder in FOLDERS
        for path in sorted((corpus / f"{folder}_xla_plan").glob("*.hlo.txt.gz"))
    ]
    return [pair for pair in found if not names or pair[0].name.removesuffix(".hlo.txt.gz") in names]


def problem_and_program(before: Path, *, tied: bool, between: bool, sliced: bool) -> tuple[Problem, Program]:
    """With these freedoms."""
    program = read_program(before, donation="tied" if tied else "free")
    problem = make_problem(program, load_target("tpu-v4"))
    return msgspec.structs.replace(
        problem,
        evictions="between_steps" if between else "whole_steps",
        prefetches="sliced" if sliced else "whole",
    ), program


def cycles(path: Path) -> int:
    """Estimated cycles of a program's steps, over all runs."""
    return sum((step.cycles or 0) * step.weight for step in read_program(path).steps)


def row(before: Path, after: Path, *, strict: bool) -> list[object]:
    """One line of the table."""
    problem, program = problem_and_program(before, tied=not strict, between=not strict, sliced=not strict)
    began = time.process_time()
    imported = import_xla_plan(problem, program, after)
    took = time.process_time() - began
    plan, name = imported.plan, before.name.removesuffix(".hlo.txt.gz")
    traffic = [use.bytes * step.weight for step in problem.steps for use in step.uses]
    total = sum(traffic)
    played = simulate(problem, plan)
    lost = sum(item.traffic for item in imported.dropped)
    slow, planned = (before.parents[1] / "tpu_v4_cycles" / f"{name}{kind}.hlo.txt.gz" for kind in (".nomsa", ""))
    pieces = sum(copy.part is not None for copy in plan.copies)
    return [
        name,
        len(problem.steps),
        len(plan.residencies),
        sum(copy.direction == "in" for copy in plan.copies) - pieces + imported.slices,
        imported.slices + imported.sliced,
        sum(copy.direction == "out" for copy in plan.copies),
        imported.preloads,
        imported.delayed + imported.postponed + imported.advanced,
        imported.moved,
        f"{len(imported.dropped)} ({lost / 1e6:.1f}, {100 * lost / total:.2f})" if imported.dropped else 0,
        f"{100 * sum(traffic[use] for use in plan.fast_uses) / total:.1f} %",
        f"{problem.all_slow_ps / 1e9:.3f}",
        f"{played.total_ps / 1e9:.3f}",
        f"{played.stall_ps / 1e9:.3f}",
        f"{problem.all_slow_ps / played.total_ps:.2f}",
        f"{cycles(slow) / cycles(planned):.2f}" if slow.is_file() and planned.is_file() else "",
        f"{took:.2f}",
        "yes" if verify(problem, plan).ok else "NO",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--strict", action="store_true", help="without the freedoms of XLA's plans")
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|---{'|--:' * (len(COLUMNS) - 1)}|")
    for before, after in modules(arguments.corpus, arguments.names):
        print(f"| {' | '.join(map(str, row(before, after, strict=arguments.strict)))} |", flush=True)


if __name__ == "__main__":
    main()
