"""Fit a target's roofline to the cycle estimates of a compiler, compare forms, and write the numbers to the target's file.

    python -m benchmarks.costs.calibrate --corpus ../shared/corpus                 # print the comparison and the fit
    python -m benchmarks.costs.calibrate --corpus ../shared/corpus --write FILE    # and replace [roofline] in FILE

The corpus folder holds ``tpu_v4/NAME.hlo.txt.gz`` (before memory-space assignment) and, with ``estimated_cycles``,
``tpu_v4_cycles/NAME.nomsa.hlo.txt.gz`` (all in slow memory) and ``tpu_v4_cycles/NAME.hlo.txt.gz`` (with the compiler's plan).
Other chips are fitted to what was compiled for them: ``--target tpu-v5e --compiles FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lib.costs.calibrate import (
    FORMS,
    Samples,
    Scores,
    collect,
    fit,
    held_out,
    roofline_toml,
    roofline_values,
    score,
    to_roofline,
)
from benchmarks.lib.places import SHARED
from stowplan import files
from stowplan.backends.xla.knobs import ALL_SLOW
from stowplan.backends.xla.store import read_result
from stowplan.errors import StowplanError
from stowplan.frontends.hlo import read_program
from stowplan.frontends.hlo.placed import read_cycle_table
from stowplan.hardware.costs import CycleTable
from stowplan.hardware.program import Program
from stowplan.hardware.targets import Target, decode_target, load_target, xla_chip

_SUFFIX = ".nomsa.hlo.txt.gz"


def read_corpus(corpus: Path) -> Samples:
    """Every instruction with two estimates."""

    def programs() -> Iterator[tuple[Program, CycleTable]]:
        for slow in sorted((corpus / "tpu_v4_cycles").glob(f"*{_SUFFIX}")):
            name = slow.name.removesuffix(_SUFFIX)
            program = read_program(corpus / "tpu_v4" / f"{name}.hlo.txt.gz")
            yield program, read_cycle_table(slow, slow.with_name(f"{name}.hlo.txt.gz"), program)

    return collect(programs())


def read_compiles(folder: Path, target: Target) -> Samples:
    """Every instruction with two estimates, of what ``stowplan tune-xla --folder`` compiled for a chip, without flags."""

    def programs() -> Iterator[tuple[Program, CycleTable]]:
        for place in sorted(path for path in folder.iterdir() if path.is_dir()):
            found = {}
            for record in place.glob("*/record.json"):
                made = read_result(record.parent)
                if made.record.topology == xla_chip(target).machine and not made.error:
                    found[json.dumps(made.record.options)] = made
            default, slow = found.get("{}"), found.get(json.dumps(ALL_SLOW.compiler_options()))
            if default is not None and slow is not None:
                program = read_program(default.program_path)
                paths = slow.module_path, default.module_path
                yield program, read_cycle_table(*paths, program, fast_space=target.fast_space)

    return collect(programs())


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def print_head(*heads: str) -> None:
    print_row(*heads)
    print("|---" * len(heads) + "|")


def print_scores(label: str, scores: Scores) -> None:
    numbers = (scores.r2, scores.r2_log, scores.median_relative_error, scores.savings_correlation)
    print_row(label, *(f"{each:.3f}" for each in numbers), f"{scores.savings_ratio:.2f}", f"{scores.gain_error:.3f}")


def print_modules(scores: Scores) -> None:
    print()
    print_head(
        "module", "steps", "all slow, Mcycles", "model / estimate, slow", "model / estimate, plan", "gain, estimated",
        "gain, modelled", "saving",
    )  # fmt: skip
    for module in scores.modules:
        ratios = (
            module.modelled_slow / module.estimated_slow,
            module.modelled_planned / module.estimated_planned,
            module.estimated_slow / module.estimated_planned,
            module.modelled_slow / module.modelled_planned,
            module.savings_correlation,
        )
        cells = (str(module.instructions), f"{module.estimated_slow / 1e6:.3f}", *(f"{each:.2f}" for each in ratios))
        print_row(module.name, *cells)


def write_roofline(path: Path, section: str) -> None:
    """Replace the ``[roofline]`` section."""
    head, found, rest = files.read_text(path).partition("[roofline]\n")
    if not found:
        raise SystemExit(f"{path}: found no [roofline] section, expected one")
    _, xla, rest = rest.partition("\n[xla]\n")
    kept = [line for line in head.splitlines() if not line.startswith("# Fitted by")]
    head = "\n".join(kept).rstrip() + "\n\n"
    comment = (
        "# Fitted by benchmarks/costs/calibrate.py --write to XLA's estimated cycles; docs/results/costs.md has the figures.\n"
    )
    text = head + comment + section + xla + rest
    decode_target(text.encode(), source=path)
    files.write_atomic(path, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=SHARED / "corpus")
    parser.add_argument("--compiles", type=Path, help="compiles for the target, default and all slow, instead of the corpus")
    parser.add_argument("--target", default="tpu-v4", help="target whose clock counts the cycles (default: %(default)s)")
    parser.add_argument("--folds", type=int, default=5, help="folds of the held-out row, 0 for none (default: %(default)s)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="target file to write the fitted [roofline] section to")
    options = parser.parse_args()
    target = load_target(options.target)
    samples = read_compiles(options.compiles, target) if options.compiles else read_corpus(options.corpus)
    saved = samples.cycles[0] - samples.cycles[1]
    print(
        f"{len(samples.modules)} modules, {len(saved)} instructions with two estimates; "
        f"the plan makes {(saved > 0).mean():.0%} of them faster, {(saved < 0).mean():.0%} slower\n"
    )
    print_head("form", "R²", "R² of log", "median error", "saving, correlation", "saving, ratio", "gain error")
    for name, form in FORMS.items():
        print_scores(name, score(samples, form.predict(samples, fit(samples, form))))
    if options.folds:
        print_scores(f"sum, held out ({options.folds} folds)", score(samples, held_out(samples, options.folds)))
    roofline = to_roofline(fit(samples), target.clock)
    for label, numbers in (("sum, rounded", roofline), (f"{target.name} as it stands", target.roofline)):
        scores = score(samples, FORMS["sum"].predict(samples, roofline_values(numbers, target.clock)))
        print_scores(label, scores)
        if numbers is roofline:
            best = scores
    print_modules(best)
    print("\n" + roofline_toml(roofline), end="")
    if options.write:
        write_roofline(options.write, roofline_toml(roofline))


if __name__ == "__main__":
    try:
        main()
    except StowplanError as error:
        sys.exit(f"error: {error}")
