"""Speedups of a policy's plans over XLA's own plan and over the stronger greedy (table 3 of Wang et al. 2023)."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
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
    """Of each plan by name, verified: ``all_slow``, ``greedy``, ``xla`` where there is one, and the players'."""
    seconds: dict[str, float]
    """That each player took."""

    def speedup(self, player: str, baseline: str, *, prod: bool = False) -> float | None:
        """Latency of the baseline over the player's; with ``prod`` over the better of the two."""
        if baseline not in self.objective_ps or player not in self.objective_ps:
            return None
        over = self.objective_ps[baseline] / self.objective_ps[player]
        return max(1.0, over) if prod else over


def measure(path: Path, xla: Path, target: str, players: Mapping[str, Player], trained_on: Sequence[str]) -> Row:
    """Plan one module with every player; AssertionError where a plan does not verify.

    ``trained_on`` has names of programs; those of windows and other variants begin with the program's own.
    """
    problem, program, *_ = open_input(path, ReadOptions(target=target))
    plans: dict[str, Plan] = {}
    seconds: dict[str, float] = {}
    stronger, plans["greedy"] = stronger_greedy(problem)
    if xla.exists() and program is not None:
        plans["xla"] = import_xla_plan(problem, program, xla).plan
    for name, player in players.items():
        began = time.monotonic()
        plans[name] = player(problem)
        seconds[name] = time.monotonic() - began
    objective = {"all_slow": problem.all_slow_ps}
    for name, plan in plans.items():
        found = verify(problem, plan)
        assert found.ok, (path.name, name, found.violations)
        assert found.objective is not None
        objective[name] = found.objective
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
    paths: Sequence[Path], plans: Path, target: str, players: Mapping[str, Player], trained_on: Sequence[str], folder: Path
) -> list[Row]:
    """Rows of all modules; those measured before are read from ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, path in enumerate(paths, 1):
        kept = folder / f"{path.name.removesuffix('.hlo.txt.gz')}.json"
        row = msgspec.json.decode(kept.read_bytes(), type=Row) if kept.exists() else None
        if row is None or not set(players) <= set(row.objective_ps):
            row = measure(path, plans / path.name, target, players, trained_on)
            files.write_atomic(kept, msgspec.json.format(msgspec.json.encode(row), indent=1))
            found = ", ".join(f"{name} {row.speedup(name, 'greedy'):.3f}" for name in players)
            print(f"[{number}/{len(paths)}] {row.module}: over greedy: {found}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def markdown(rows: Sequence[Row], players: Sequence[str]) -> str:
    """Table 3 in form, over XLA and over the greedy, and every module below it."""
    parts = []
    for baseline in ("xla", "greedy"):
        lines: list[list[object]] = []
        for prod in (False, True):
            suffix = "-prod" if prod else ""
            lines += [[f"{name}{suffix}", *_aggregate(rows, name, baseline, prod)] for name in players]
            if baseline == "xla":
                lines.append([f"paper: MMap-MuZero{suffix}", "", *PAPER["prod" if prod else "alone"]])
        head = [f"speedup over {baseline}", "modules", "mean", "max", "min", "improved"]
        parts.append(table(lines, head))
        fresh = [row for row in rows if not row.is_trained_on]
        if len(fresh) < len(rows):
            lines = [[name, *_aggregate(fresh, name, baseline, False)] for name in players]
            parts.append(table(lines, [f"over {baseline}, modules not trained on", *head[1:]]))
    head = ["module", "uses", "trained on", "greedy ms", "no stalls", "XLA ms"]
    for name in players:
        head += [f"{name} ms", "s", "over XLA", "over greedy"]
    lines = []
    for row in rows:
        line: list[object] = [row.module, f"{row.uses:,}", "yes" if row.is_trained_on else ""]
        line += [
            _ms(row.objective_ps["greedy"]),
            "yes" if row.greedy == WITHOUT_STALLS else "",
            _ms(row.objective_ps.get("xla")),
        ]
        for name in players:
            line += [_ms(row.objective_ps.get(name)), f"{row.seconds.get(name, 0.0):.2f}"]
            line += [_ratio(row.speedup(name, baseline)) for baseline in ("xla", "greedy")]
        lines.append(line)
    return "\n\n".join([*parts, table(lines, head)])


def _aggregate(rows: Sequence[Row], player: str, baseline: str, prod: bool) -> tuple[str, ...]:
    found = [each for row in rows if (each := row.speedup(player, baseline, prod=prod)) is not None]
    if not found:
        return ("0", "", "", "", "")
    improved = sum(each > 1 for each in found)
    mean = statistics.fmean(found)
    return (str(len(found)), f"{mean:.4f}", f"{max(found):.4f}", f"{min(found):.4f}", f"{improved}/{len(found)}")


def _ms(objective_ps: int | None) -> str:
    return "" if objective_ps is None else f"{objective_ps / 1e9:.4f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
