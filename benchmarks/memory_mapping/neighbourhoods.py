"""What neighbourhoods around a guess are worth: large-neighbourhood search with and without them, from the same plans.

    python -m benchmarks.memory_mapping.neighbourhoods --seconds 30 --seeds 0,1,2 --processes 2

Each module of ../shared/corpus/tpu_v4 or tpu_v4_large (or below $STOWPLAN_SHARED) that is named begins with the best plan that
follows the relaxation, or with ``--start`` the learned guide. Then large-neighbourhood search alone goes on, for so many
seconds of the processor, with the relaxation's values, with the same values at other accesses (the control), with those of the
learned guide (trained without the module's family), and without any. Printed are objectives in parts of the first plan's, mean
and range of the seeds, and how many neighbourhoods there were.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import stowplan
from benchmarks.guidance.data import family
from benchmarks.guidance.guides import HARD, SHARED, shuffled
from benchmarks.lib.alone import Alone
from benchmarks.lib.memory_mapping.constructions import best_guided
from benchmarks.lib.tables import table
from stowplan.kernel.context import Options
from stowplan.learned_guidance.memory_mapping.guide.guide import learned_hint
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping import lns as search
from stowplan.portfolio.memory_mapping.convert import export_plan

GUESSES = ("none", "shuffled", "relaxation", "learned")

#: Guides that were trained without a family.
GUIDES = Path(__file__).parents[1] / "guidance" / "without_family"


def run(module: str, guess: str, seed: int, seconds: float, begin: str) -> tuple[str, str, float, int]:
    """Objective in parts of the first plan's, and neighbourhoods, of one search."""
    places = (SHARED / "corpus" / folder / f"{module}.hlo.txt.gz" for folder in ("tpu_v4", "tpu_v4_large"))
    problem = stowplan.read(next(path for path in places if path.exists()), target="tpu-v4")
    hint, _ = relaxation_hint(problem, Effort(end=time.monotonic() + 120))
    assert hint is not None
    data = arrays.build(problem)
    learned = learned_hint(problem, GUIDES / f"{family(module)}.npz")
    start = export_plan(problem, data, best_guided(data, learned if begin == "learned" else hint, lambda: False))
    said = {"relaxation": hint, "shuffled": shuffled(hint, seed), "learned": learned}
    hints = () if guess == "none" else (said[guess],)
    search.time = SimpleNamespace(monotonic=time.process_time, sleep=time.sleep)  # type: ignore[assignment]
    options = Options(time_limit=seconds, seed=seed, workers=1)
    alone = Alone(problem, options, start=start, hints=hints, clock=time.process_time)
    search.lns(problem, alone)
    rounds = re.match(r"\d+", next((note for note in alone.notes if "neighbourhoods" in note), "0"))
    return module, guess, alone.best.objective / start.objective, int(rounds[0]) if rounds else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--modules", default=HARD)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--guesses", default=",".join(GUESSES))
    parser.add_argument("--start", choices=("relaxation", "learned"), default="relaxation")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    arguments = parser.parse_args()
    guesses = arguments.guesses.split(",")
    jobs = [
        (module, guess, seed)
        for module in arguments.modules.split(",")
        for seed in map(int, arguments.seeds.split(","))
        for guess in guesses
    ]
    found: dict[tuple[str, str], list[tuple[float, int]]] = {}
    with ProcessPoolExecutor(arguments.processes) as pool:
        futures = [pool.submit(run, *job, arguments.seconds, arguments.start) for job in jobs]
        for future in futures:
            module, guess, part, rounds = future.result()
            found.setdefault((module, guess), []).append((part, rounds))
            print(f"{module} {guess}: {part:.5f}, {rounds} neighbourhoods", flush=True)
    rows = []
    for module in arguments.modules.split(","):
        row = [module]
        for guess in guesses:
            parts = [100 * (1 - part) for part, _ in found[module, guess]]
            rounds = statistics.fmean(count for _, count in found[module, guess])
            row.append(f"{statistics.fmean(parts):.2f} ({min(parts):.2f} to {max(parts):.2f}), {rounds:.0f}")
        rows.append(row)
    print(table(rows, ("module", *(f"{guess}, % better, neighbourhoods" for guess in guesses))))


if __name__ == "__main__":
    main()
