"""Cost models against a compiler's cycles, over many assignments of each program: errors, intervals, correlations.

    python -m benchmarks.costs.latency_tables COMPILES --target tpu-v4              # print the tables of docs/results/costs.md
    python -m benchmarks.costs.latency_tables COMPILES --predictor FILE             # the same of a predictor at hand
    python -m benchmarks.costs.latency_tables COMPILES --write FILE                 # and learn the predictor of the package
    python -m benchmarks.costs.latency_tables COMPILES --least                      # what the cheapest patterns would save

COMPILES is a folder that ``stowplan tune-xla --folder`` wrote; compiles for other chips than the target are left out. Flags
make program texts of their own. Texts of one program are learned from together, and left out together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.lib.compiles import read_texts
from benchmarks.lib.costs.assignments import Compiles, read_compiles, to_learn_from
from benchmarks.lib.costs.signatures_training import collect, fit, held_out, with_other_chips
from stowplan.errors import StowplanError
from stowplan.hardware.costs import CycleTable, StepCycles, make_problem
from stowplan.hardware.costs.signatures import LatencyTable, SignatureCosts, StepSignature
from stowplan.hardware.costs.signatures.predictor import Predictor
from stowplan.hardware.targets import Target, load_target

#: Correlations are printed for programs with so many different assignments.
LEAST_ASSIGNMENTS = 5


@dataclass
class Errors:
    """Relative errors of predictions of unseen patterns, each pattern of a signature once, and whether intervals hold them."""

    error: list[float]
    plain: list[float]
    """The same, were every pattern as the nearest known one."""
    held: list[bool]

    def cells(self) -> list[str]:
        if not self.error:
            return ["0", *[""] * 6]
        error, plain = np.array(self.error), np.array(self.plain)
        shares = (
            np.median(error),
            error.mean(),
            (error <= 0.1).mean(),
            np.mean(self.held),
            plain.mean(),
            (plain <= 0.1).mean(),
        )
        return [f"{len(error):,}", *(f"{share:.1%}" for share in shares)]


def unseen_errors(compiles: Compiles, known: Sequence[int], asked: Sequence[int], predictor: Predictor) -> Errors:
    """Errors on the patterns of some assignments that others lack, with a table of those others."""
    costs = SignatureCosts(compiles.signatures, compiles.table(known), predictor)
    wanted: dict[str, dict[int, tuple[str, int]]] = {}
    for number in asked:
        for name, each in compiles.assignments[number].steps.items():
            signature = compiles.signatures[name].signature
            if each.cycles and signature in costs.table and each.pattern not in costs.table.rows(signature):
                wanted.setdefault(signature, {})[each.pattern] = name, each.cycles
    found = Errors([], [], [])
    for patterns in wanted.values():
        name = next(iter(patterns.values()))[0]
        predicted, _ = costs.predict(name, list(patterns))
        rows = costs.table.rows(compiles.signatures[name].signature)
        moved = [leaf.moved for leaf in compiles.signatures[name].leaves]
        for at, (pattern, (_, cycles)) in enumerate(patterns.items()):
            nearest = min(rows, key=lambda row: sum(size for bit, size in enumerate(moved) if (row ^ pattern) >> bit & 1))
            found.error.append(abs(float(predicted.cycles[at]) / cycles - 1))
            found.plain.append(abs(rows[nearest] / cycles - 1))
            found.held.append(bool(predicted.low[at] <= cycles + 0.5 and cycles - 0.5 <= predicted.high[at]))
    return found


def modelled(compiles: Compiles, target: Target, predictor: Predictor) -> dict[str, list[float]]:
    """Cycles of every assignment by each model; ``signatures`` has seen all other assignments, but not the one it predicts."""
    program, assignments = compiles.program, compiles.assignments
    problems = {"roofline": make_problem(program, target)}
    if compiles.slow is not None:
        default = assignments[0]
        steps = {}
        for name, each in assignments[compiles.slow].steps.items():
            if each.cycles is not None:
                planned = default.steps.get(name)
                uses = program.steps[program.step_index[name]].uses
                fast = _fast_uses(compiles.signatures[name], planned.pattern) if planned else frozenset()
                keys = frozenset((uses[use].tensor, uses[use].is_output) for use in fast)
                steps[name] = StepCycles(each.cycles, planned.cycles if planned else None, keys)
        problems["table"] = make_problem(program, target, cycles=CycleTable(steps))
    found: dict[str, list[float]] = {name: [] for name in (*problems, "signatures")}
    everything = range(len(assignments))
    for number, assignment in enumerate(assignments):
        estimated = {name: each for name, each in assignment.steps.items() if each.cycles is not None}
        for model, problem in problems.items():
            total = 0
            for step in problem.steps:
                if step.name in estimated:
                    fast = _fast_uses(compiles.signatures[step.name], estimated[step.name].pattern)
                    total += step.weight * step.latency_ps([use in fast for use in range(len(step.uses))])
            found[model].append(float(total))
        costs = SignatureCosts(compiles.signatures, compiles.table([one for one in everything if one != number]), predictor)
        found["signatures"].append(costs.assignment({name: each.pattern for name, each in estimated.items()}).total)
    return found


def _fast_uses(step: StepSignature, pattern: int) -> frozenset[int]:
    return frozenset(use for use, leaves in step.used_leaves().items() if leaves & pattern)


def correlations(cycles: Sequence[float], model: Sequence[float]) -> tuple[float, float]:
    """Pearson's, and of ranks; NaN where nothing varies."""
    if len(set(cycles)) < 2 or len(set(model)) < 2:
        return float("nan"), float("nan")
    return float(np.corrcoef(cycles, model)[0, 1]), float(spearmanr(cycles, model).statistic)


def read_programs(folder: Path, target: Target, most: int) -> list[Compiles]:
    """The texts of programs that were compiled for a target."""
    programs = []
    for text in read_texts(folder, target):
        found = read_compiles(text, target, most)
        programs += [found] if found else []
        print(f"{text.name}: {len(found.assignments) if found else 0} assignments", file=sys.stderr, flush=True)
    return programs


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiles", type=Path)
    parser.add_argument("--target", default="tpu-v4", help="chip whose compiles are read (default: %(default)s)")
    parser.add_argument("--others", nargs="*", default=[], metavar="TARGET", help="chips whose compiles are learned from, too")
    parser.add_argument("--folds", type=int, default=0, help="parts left out in turn; 0 (the default): each program by itself")
    parser.add_argument("--most", type=int, default=60, help="assignments of a program at most (default: %(default)s)")
    parser.add_argument("--only", nargs="*", help="programs to print; all are learned from")
    parser.add_argument(
        "--parts", type=Path, metavar="FOLDER", help="write each program's predictor that learned nothing of it"
    )
    parser.add_argument("--predictor", type=Path, metavar="FILE", help="measure this one, learn nothing")
    parser.add_argument("--least", action="store_true", help="print what the cheapest patterns that were seen would save")
    parser.add_argument("--write", type=Path, metavar="FILE", help="learn from everything, and write the predictor")
    options = parser.parse_args()
    target = load_target(options.target)
    programs = read_programs(options.compiles, target, options.most)
    if options.least:
        print_least(programs)
        return
    count = sum(len(each.assignments) for each in programs)
    print(f"{len(programs)} program texts, {count} different assignments\n", flush=True)
    if options.predictor:
        predictors = dict.fromkeys((each.workload for each in programs), Predictor.load(options.predictor))
    else:
        others = (read_programs(options.compiles, load_target(name), options.most) for name in options.others)
        samples = with_other_chips(collect(to_learn_from(programs)), [collect(to_learn_from(each)) for each in others])
        parts = held_out(samples, folds=options.folds or len(samples.modules))
        predictors = {name: part.predictor for part in parts for name in part.modules}
    if options.parts:
        options.parts.mkdir(parents=True, exist_ok=True)
        for name, predictor in predictors.items():
            predictor.save(options.parts / f"{name}.npz")
    shown = [each for each in programs if each.workload in predictors and (not options.only or each.name in options.only)]
    print_errors(shown, predictors)
    print_correlations(shown, predictors, target)
    if options.write and not options.predictor:
        fit(samples).save(options.write)


def print_least(programs: Sequence[Compiles]) -> None:
    """What it would save to have every instruction of the default in the cheapest pattern that any compile has shown.

    No bound: other patterns may be cheaper still, and these need not be possible together.
    """
    whole = LatencyTable()
    for each in programs:
        whole.merge(each.table(range(len(each.assignments))))
    print_row("module", "assignments", "the cheapest patterns save")
    print("|---|--:|--:|")
    shares = []
    for each in programs:
        default = each.assignments[0]
        total = least = 0
        for step in each.program.steps:
            placement = default.steps.get(step.name)
            if placement is not None and placement.cycles is not None:
                total += step.weight * placement.cycles
                least += step.weight * min(whole.rows(each.signatures[step.name].signature).values())
        shares.append(1 - least / total)
        print_row(each.name, str(len(each.assignments)), f"{shares[-1]:.1%}")
    print_row("median", "", f"{np.median(shares):.1%}")


def print_errors(programs: Sequence[Compiles], predictors: dict[str, Predictor]) -> None:
    head = ["unseen", "median", "mean", "within 10 %", "in interval", "as nearest", "within 10 %, as nearest"]
    tables = ("default and all slow" if all(each.slow is not None for each in programs) else "default", "all but one")
    print_row("module", "assignments", *(f"{each}, {known}" for known in tables for each in head))
    print("|---" * 16 + "|")
    pooled = Errors([], [], []), Errors([], [], [])
    medians: tuple[list[float], list[float]] = ([], [])
    for each in programs:
        count, known = len(each.assignments), 1 if each.slow is None else 2
        if count < 2:
            continue
        found = (
            unseen_errors(each, range(known), range(known, count), predictors[each.workload]),
            _one_out(each, predictors[each.workload]),
        )
        for whole, part, median in zip(pooled, found, medians, strict=True):
            whole.error += part.error
            whole.plain += part.plain
            whole.held += part.held
            median += [float(np.median(part.error))] if part.error else []
        print_row(each.name, str(count), *found[0].cells(), *found[1].cells())
    print_row("all patterns", "", *pooled[0].cells(), *pooled[1].cells())
    print("\nmedian over modules of their medians: " + ", ".join(f"{np.median(each):.1%}" for each in medians if each) + "\n")


def _one_out(compiles: Compiles, predictor: Predictor) -> Errors:
    found = Errors([], [], [])
    everything = range(len(compiles.assignments))
    for number in everything:
        part = unseen_errors(compiles, [other for other in everything if other != number], [number], predictor)
        found.error += part.error
        found.plain += part.plain
        found.held += part.held
    return found


def print_correlations(programs: Sequence[Compiles], predictors: dict[str, Predictor], target: Target) -> None:
    programs = [each for each in programs if len(each.assignments) >= LEAST_ASSIGNMENTS]
    # Without a compile with all slow there is no table model.
    models = ["roofline", *(["table"] if any(each.slow is not None for each in programs) else []), "signatures"]
    kinds = ("Pearson", "rank", "rank among others than all slow")
    print_row("module", "assignments", *(f"{model}, {kind}" for kind in kinds for model in models), "total's error")
    print("|---" * (3 * len(models) + 3) + "|")
    rows = []
    for each in programs:
        found = modelled(each, target, predictors[each.workload])
        given = [found.get(model, [0.0] * len(each.cycles)) for model in models]
        whole = [correlations(each.cycles, model) for model in given]
        # All slow is mostly far from all others, so that it alone may make a correlation.
        kept = [number for number in range(len(each.cycles)) if number != each.slow]
        others = [correlations([each.cycles[at] for at in kept], [model[at] for at in kept]) for model in given]
        error = np.abs(np.array(found["signatures"]) / np.array(each.cycles) - 1).mean()
        row = [*(pair[0] for pair in whole), *(pair[1] for pair in whole), *(pair[1] for pair in others), float(error)]
        rows.append(row)
        print_row(each.name, str(len(each.assignments)), *(f"{value:.2f}" for value in row[:-1]), f"{row[-1]:.2%}")
    if rows:
        middle = np.nanmedian(np.array(rows), axis=0)
        print_row("median", "", *(f"{value:.2f}" for value in middle[:-1]), f"{middle[-1]:.2%}")


if __name__ == "__main__":
    try:
        main()
    except StowplanError as error:
        sys.exit(f"error: {error}")
