"""How long the work takes that deterministic runs count in place of seconds: the table of ``stowplan.work_rates``, measured.

    python -m benchmarks.house.work_rates [INPUT[:TARGET] ...] [--time-limit 2] [-o FILE.json]

Each candidate of each input runs alone in a deterministic run of so many seconds' work, from the plan that the heuristics
before it have found, as in the last stage of a run. A row is a rate, and the seconds that candidates which count by it took for
each second of the limit: 1 where the table says exactly what this machine does, less where a run has time to spare. A candidate
that comes to its end before its work is done takes less than the rate says, so that the largest ratio is the one to look at;
where a candidate counts by several rates, each has its whole time. Without inputs the examples are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.house.same_plans import TARGETS
from benchmarks.lib.tables import table
from stowplan import work_rates
from stowplan.errors import StowplanError
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.kernel.context import Context, Options, Report
from stowplan.kernel.kind import check, kind_of
from stowplan.work_rates import Rate

#: A candidate that takes so many times its limit is stopped.
MOST = 20.0


class Counting(Context):
    """A context that notes by which rates a candidate counts, and keeps its best plan."""

    def __init__(self, options: Options, kind: Any, problem: Any, start_plan: Any):
        super().__init__(options, start_plan)
        self.rates: list[Rate] = []
        self.best, self._kind, self._problem = start_plan, kind, problem
        self._until = time.monotonic() + MOST * options.time_limit
        self.send = self._take

    def work(self, rate: Rate, size: float = 1.0, *, least: int = 0) -> int | None:
        """Note the rate."""
        self.rates.append(rate)
        return super().work(rate, size, least=least)

    def units(self, rate: Rate) -> float | None:
        """Note the rate."""
        self.rates.append(rate)
        return super().units(rate)

    def closed(self) -> bool:
        """Whether it takes far too long."""
        return time.monotonic() > self._until

    def remaining(self) -> float:
        """Seconds until then."""
        return max(0.0, self._until - time.monotonic())

    def _take(self, report: Report) -> None:
        if report.what == "plan":
            plan = self._kind.plan.decode(report.data)
            checked = check(self._kind, self._problem, plan)
            if checked.ok and (self.best is None or checked.objective < self.best.objective):
                self.best = msgspec.structs.replace(plan, objective=checked.objective)


def measured(problem: Any, seconds: float) -> list[tuple[Rate, str, float]]:
    """Rates by which candidates of a problem count, with the candidate's name and the seconds for each second of the limit."""
    kind, rows, best = kind_of(problem), [], None
    options = Options(deterministic=True, time_limit=seconds, workers=2)
    for candidate in kind.candidates(problem, options):
        if candidate.unavailable or candidate.turn == "presolver":
            continue
        context = Counting(options, kind, problem, best)
        function = kind.function(candidate.name)
        began = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                function(problem, context)
            except StowplanError as error:
                print(f"{candidate.name}: {error}")
                continue
        ratio = (time.monotonic() - began) / seconds
        rows += [(rate, candidate.name, ratio) for rate in dict.fromkeys(context.rates)]
        if candidate.family == "heuristic":
            best = context.best
    return rows


def main() -> None:
    """Measure and print a row a rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="INPUT or INPUT:TARGET; the examples without any")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds of work of each candidate")
    parser.add_argument("-o", "--output", type=Path, help="write the measurements as JSON")
    chosen = parser.parse_args()
    given = [tuple(each.partition(":")[::2]) for each in chosen.inputs]
    if not given:
        folder = Path(__file__).parents[2] / "examples" / "data"
        given = [(str(path), target) for path in sorted(folder.iterdir()) for end, target in TARGETS if path.name.endswith(end)]
    found: dict[Rate, list[tuple[str, float]]] = defaultdict(list)
    for path, target in given:
        problem: Any = open_input(Path(path), ReadOptions(target=target or None)).problem
        for rate, name, ratio in measured(problem, chosen.time_limit):
            found[rate].append((f"{name} on {Path(path).name}", ratio))
        print(f"{Path(path).name}: done", flush=True)
    names = {rate: name for name, rate in vars(work_rates).items() if isinstance(rate, Rate)}
    rows = []
    for rate, name in names.items():
        ratios = sorted((ratio, where) for where, ratio in found.get(rate, ()))
        middle = f"{median(ratio for ratio, _ in ratios):.2f}" if ratios else ""
        most, where = (f"{ratios[-1][0]:.2f}", ratios[-1][1]) if ratios else ("", "-")
        rows.append([name.lower(), f"{rate.per_second:,.4g}", rate.unit, len(ratios), middle, most, where])
    print(table(rows, ["rate", "a second", "of", "runs", "median", "most", "where"]))
    if chosen.output is not None:
        chosen.output.write_text(json.dumps({names[rate].lower(): each for rate, each in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
