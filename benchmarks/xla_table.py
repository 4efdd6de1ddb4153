"""XLA's own plans, imported: ``python benchmarks/xla_table.py CORPUS [NAME...]``, a markdown table on standard output.

CORPUS holds ``tpu_v4`` (modules before memory-space assignment), ``tpu_v4_xla_plan`` (after it, with offsets) and, for some
of them, ``tpu_v4_cycles`` (with the cycles the compiler estimates, with its plan and with everything in slow memory).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stowplan.frontends.hlo import read_program
from stowplan.frontends.xla_plan import import_xla_plan
from stowplan.hardware.costs import make_problem
from stowplan.hardware.simulator import simulate
from stowplan.hardware.targets import load_target
from stowplan.models.memory_mapping.verify import verify

COLUMNS = [
    "module", "steps", "stays", "in", "out", "sliced (late)", "pre-loads", "other offset", "dropped (MB, % of traffic)",
    "fast traffic", "all slow ms", "XLA's plan ms", "of it stalls", "ratio", "cycles: ratio", "verified",
]  # fmt: skip


def cycles(path: Path) -> int:
    """Estimated cycles of a program's steps, over all runs."""
    return sum((step.cycles or 0) * step.weight for step in read_program(path).steps)


def row(corpus: Path, name: str) -> list[object]:
    """One line of the table."""
    program = read_program(corpus / "tpu_v4" / f"{name}.hlo.txt.gz")
    problem = make_problem(program, load_target("tpu-v4"))
    imported = import_xla_plan(problem, program, corpus / "tpu_v4_xla_plan" / f"{name}.hlo.txt.gz")
    plan = imported.plan
    traffic = [use.bytes * step.weight for step in problem.steps for use in step.uses]
    total = sum(traffic)
    played = simulate(problem, plan)
    lost = sum(item.traffic for item in imported.dropped)
    slow, planned = (corpus / "tpu_v4_cycles" / f"{name}{kind}.hlo.txt.gz" for kind in (".nomsa", ""))
    return [
        name,
        len(problem.steps),
        len(plan.residencies),
        sum(copy.direction == "in" for copy in plan.copies),
        sum(copy.direction == "out" for copy in plan.copies),
        f"{imported.sliced} ({imported.delayed})",
        imported.preloads,
        imported.moved,
        f"{len(imported.dropped)} ({lost / 1e6:.1f}, {100 * lost / total:.2f})" if imported.dropped else 0,
        f"{100 * sum(traffic[use] for use in plan.fast_uses) / total:.1f} %",
        f"{problem.all_slow_ps / 1e9:.3f}",
        f"{played.total_ps / 1e9:.3f}",
        f"{played.stall_ps / 1e9:.3f}",
        f"{problem.all_slow_ps / played.total_ps:.2f}",
        f"{cycles(slow) / cycles(planned):.2f}" if slow.is_file() and planned.is_file() else "",
        "yes" if verify(problem, plan).ok else "NO",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    names = arguments.names or sorted(
        path.name.removesuffix(".hlo.txt.gz") for path in (arguments.corpus / "tpu_v4_xla_plan").glob("*.hlo.txt.gz")
    )
    print(f"| {' | '.join(COLUMNS)} |\n|---{'|--:' * (len(COLUMNS) - 1)}|")
    for name in names:
        print(f"| {' | '.join(map(str, row(arguments.corpus, name)))} |", flush=True)


if __name__ == "__main__":
    main()
