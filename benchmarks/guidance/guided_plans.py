"""The plan that each guide alone leads to, before any search, and how close guides' values are to the relaxation's.

    python -m benchmarks.guidance.guided_plans --trees 'out/guides/{family}.pkl'

``{family}`` stands for the family of a module, as in ``guides.py``: guides that were trained without it. *Constructive* are
the heuristics that follow nothing. In brackets are processor seconds of the eight plans that follow a guide, and of those that
a search builds which has the best constructive plan: one, where it is far from that. The last columns are the area under the
curve (AUC) of a network's values, where the relaxation's are at least the threshold of the construction.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
from scipy import stats

import stowplan
from benchmarks.guidance.data import SHARED
from benchmarks.guidance.guides import HARD, WITHOUT_FAMILY, filled, guide_file, of_trees, shuffled
from benchmarks.lib.tables import table
from stowplan.learned_guidance.memory_mapping.guide.guide import learned_hint
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.guided import THRESHOLDS, best_guided


def auc(values: np.ndarray, wanted: np.ndarray) -> float:
    """Part of the pairs of one that is wanted and one that is not which the values put in the right order."""
    ones = int(wanted.sum())
    ranks = stats.rankdata(values)[wanted].sum()
    return float((ranks - ones * (ones + 1) / 2) / max(1, ones * (len(wanted) - ones)))


def _followed(data: arrays.Data, hint: Hint, plain: int) -> tuple[int, float, float]:
    """Objective of the best plan that follows a hint; processor seconds of all eight, and of those built beside a plain one."""
    began = time.process_time()
    state = best_guided(data, hint, lambda: False)
    between = time.process_time()
    best_guided(data, hint, lambda: False, plain)
    return int(state.totals[0].total), between - began, time.process_time() - between


def main() -> None:
    """Print a row a module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default=HARD)
    parser.add_argument("--networks", nargs="*", default=[WITHOUT_FAMILY], help="files of weights, with {family}")
    parser.add_argument("--trees", nargs="*", default=[], help="files of trees, with {family}")
    parser.add_argument("--bounds", type=Path)
    arguments = parser.parse_args()
    bounds = {} if arguments.bounds is None else json.loads(arguments.bounds.read_bytes())
    rows: list[list[str]] = []
    gaps: list[list[float]] = []
    for name in arguments.modules.split(","):
        problem = stowplan.read(SHARED / "corpus" / "tpu_v4" / f"{name}.hlo.txt.gz", target="tpu-v4")
        relaxed, bound = relaxation_hint(problem, Effort(end=math.inf))
        assert relaxed is not None
        given: list[Hint] = [relaxed, shuffled(relaxed, 0), filled(problem)[0]]
        given += [of_trees(problem, guide_file(path, name))[0] for path in arguments.trees]
        given += [learned_hint(problem, guide_file(path, name)) for path in arguments.networks]
        data = arrays.build(problem)
        built = [heuristics.run(steps, lambda: False)[0] for _, steps in heuristics.constructive(data)]
        plain = min(int(state.totals[0].total) for state in built)
        found, *taken = zip(*(_followed(data, hint, plain) for hint in given), strict=True)
        best = max(bound, bounds.get(name, {}).get("bound", 0))
        gaps.append([100 * (1 - best / each) for each in (plain, *found)])
        cells = [f"{gaps[-1][0]:.2f}"]
        cells += [f"{each:.2f} ({every:.2f}, {beside:.2f})" for each, every, beside in zip(gaps[-1][1:], *taken, strict=True)]
        for hint in given[len(given) - len(arguments.networks) :]:
            pairs = [
                (np.array(hint.values[each]), np.array(relaxed.values[each]) >= THRESHOLDS[0]) for each in ("fast", "keep")
            ]
            cells.append(" / ".join(f"{auc(*pair):.2f}" for pair in pairs))
        rows.append([name, *cells])
    means = np.mean(gaps, axis=0)
    rows.append(["*mean*", *(f"{mean:.2f}" for mean in means), *[""] * len(arguments.networks)])
    shares = 100 * (means[0] - means) / (means[0] - means[1])
    rows.append(["*of the relaxation's gain*", *(f"{share:.0f} %" for share in shares), *[""] * len(arguments.networks)])
    head = ["module", "constructive", "relaxation", "shuffled", "filled", *arguments.trees, *arguments.networks]
    print(table(rows, [*head, *(f"AUC fast / keep, {path}" for path in arguments.networks)]))


if __name__ == "__main__":
    main()
