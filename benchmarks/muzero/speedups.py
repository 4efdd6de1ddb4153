"""Speedups of a policy's plans over XLA's own plan and over the stronger greedy (table 3 of Wang et al. 2023)."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.lib.memory_mapping.greedies import stronger_greedy
from benchmarks.lib.memory_mapping.players import Player
from benchmarks.lib.tables import table
from stowplan import files
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.frontends.xla_plan import import_xla_plan
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping.heuristics import WITHOUT_STALLS

#: Mean, largest, smallest speedup, and models improved, over XLA on TPU v4i hardware; alone, and the better of it and XLA.
PAPER = {"alone": ("1.0059", "1.8787", "0.4853", "33/60"), "prod": ("1.0405", "1.8787", "1.0", "33/60")}


class Row(msgspec.Struct, frozen=True):
    """One module."""

    module: str
    digest: str
    uses: int
    is_trained_on: bool
    """Whether the policy was trained on it, or on a part of it."""
    greedy: str
    """Which of the two greedies is the stronger, and stands for both."""
    objective_ps: dict[str, int]
    """Of each plan by name, verified: ``all_slow``, ``greedy``, ``xla`` where there is one, and ``policy``."""
    seconds: float
    """That the policy took."""

    def speedup(self, baseline: str, *, prod: bool = False) -> float | None:
        """Latency of the baseline over the policy's; with ``prod`` over the better of the two."""
        if baseline not in self.objective_ps:
            return None
        over = self.objective_ps[baseline] / self.objective_ps["policy"]
        return max(1.0, over) if prod else over


def measure(path: Path, xla: Path, target: str, player: Player, trained_on: Sequence[str]) -> Row:
    """Plan one module with the policy; AssertionError where a plan does not verify.

    ``trained_on`` has names of programs; those of windows and other variants begin with the program's own.
    """
    problem, program, *_ = open_input(path, ReadOptions(target=target))
    plans: dict[str, Plan] = {}
    stronger, plans["greedy"] = stronger_greedy(problem)
    if xla.exists() and program is not None:
        plans["xla"] = import_xla_plan(problem, program, xla).plan
    began = time.monotonic()
    plans["policy"] = player(problem)
    seconds = time.monotonic() - began
    objective = {"all_slow": problem.all_slow_ps}
    for name, plan in plans.items():
        verified = verify(problem, plan)
        assert verified.ok, (path.name, name, verified.violations)
        assert verified.objective is not None
        objective[name] = verified.objective
    return Row(
        module=path.name.removesuffix(".hlo.txt.gz"),
        digest=problem.digest,
        uses=problem.use_count,
        is_trained_on=any(
            name == problem.name or name.startswith((f"{problem.name}[", f"{problem.name} ")) for name in trained_on
        ),
        greedy=stronger,
        objective_ps=objective,
        seconds=seconds,
    )


def measure_all(
    paths: Sequence[Path], plans: Path, target: str, player: Player, trained_on: Sequence[str], folder: Path
) -> list[Row]:
    """Rows of all modules; those measured before are read from ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, path in enumerate(paths, 1):
        kept = folder / f"{path.name.removesuffix('.hlo.txt.gz')}.json"
        row = msgspec.json.decode(kept.read_bytes(), type=Row) if kept.exists() else None
        if row is None:
            row = measure(path, plans / path.name, target, player, trained_on)
            files.write_atomic(kept, msgspec.json.format(msgspec.json.encode(row), indent=1))
            print(f"[{number}/{len(paths)}] {row.module}: over greedy {row.speedup('greedy'):.3f}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """Table 3 in form, over XLA and over the greedy, and every module below it."""
    parts = []
    for baseline in ("xla", "greedy"):
        lines: list[list[object]] = []
        for prod in (False, True):
            suffix = "-prod" if prod else ""
            lines.append([f"policy{suffix}", *_aggregate(rows, baseline, prod)])
            if baseline == "xla":
                lines.append([f"paper: MMap-MuZero{suffix}", "", *PAPER["prod" if prod else "alone"]])
        head = [f"speedup over {baseline}", "modules", "mean", "max", "min", "improved"]
        parts.append(table(lines, head))
        fresh = [row for row in rows if not row.is_trained_on]
        if len(fresh) < len(rows):
            not_trained_on: list[object] = ["policy", *_aggregate(fresh, baseline, False)]
            parts.append(table([not_trained_on], [f"over {baseline}, modules not trained on", *head[1:]]))
    head = ["module", "uses", "trained on", "greedy ms", "no stalls", "XLA ms", "policy ms", "s", "over XLA", "over greedy"]
    lines = []
    for row in rows:
        latencies = row.objective_ps
        lines.append(
            [
                row.module,
                f"{row.uses:,}",
                "yes" if row.is_trained_on else "",
                _ms(latencies["greedy"]),
                "yes" if row.greedy == WITHOUT_STALLS else "",
                _ms(latencies.get("xla")),
                _ms(latencies["policy"]),
                f"{row.seconds:.2f}",
                _ratio(row.speedup("xla")),
                _ratio(row.speedup("greedy")),
            ]
        )
    return "\n\n".join([*parts, table(lines, head)])


def _aggregate(rows: Sequence[Row], baseline: str, prod: bool) -> tuple[str, ...]:
    speedups = [speedup for row in rows if (speedup := row.speedup(baseline, prod=prod)) is not None]
    if not speedups:
        return ("0", "", "", "", "")
    improved = sum(speedup > 1 for speedup in speedups)
    mean = statistics.fmean(speedups)
    return (str(len(speedups)), f"{mean:.4f}", f"{max(speedups):.4f}", f"{min(speedups):.4f}", f"{improved}/{len(speedups)}")


def _ms(objective_ps: int | None) -> str:
    return "" if objective_ps is None else f"{objective_ps / 1e9:.4f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
