"""Speedups over a baseline in the form of table 3 of Wang et al. 2023, and who made the plans that were returned.

    python -m benchmarks.memory_mapping.table3 SUITE [SUITE ...] -o FOLDER --target tpu-v4 --time-limit 30
    python -m benchmarks.memory_mapping.table3 RESULTS [RESULTS ...] [--markdown | --csv | --json]

With ``-o`` the inputs are solved with the learned candidates, into FOLDER/with-learned, and without, into
FOLDER/without-learned; what is finished is kept. Else RESULTS are folders that ``stowplan batch``, or this, wrote. *Learned* is
the best plan of the learned candidates, and ``-prod`` the better of a plan and the baseline's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.input_options import add_input_options, read_options
from benchmarks.lib.memory_mapping.speedup_table import as_text, read_batches, run_batches, speedup_table
from stowplan.cli.batch import xla_folders
from stowplan.cli.options import settings_of
from stowplan.errors import StowplanError, UsageError
from stowplan.kernel.context import FAMILIES, Options

#: What names the baseline of each result's own kind.
PROD = "prod"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="RESULTS|SUITE", type=Path, nargs="+")
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="solve the inputs given, into FOLDER")
    parser.add_argument("--baseline", metavar="NAME", default=PROD, help="greedy, all_slow, xla, compiler ...; or prod")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    styles = parser.add_mutually_exclusive_group()
    for style, what in (("markdown", "tables in Markdown"), ("csv", "the inputs, one a line"), ("json", "all of it")):
        styles.add_argument(f"--{style}", dest="style", action="store_const", const=style, default="text", help=what)
    group = parser.add_argument_group("with -o")
    solving = [
        group.add_argument("--time-limit", metavar="SECONDS", type=float, default=Options().time_limit),
        group.add_argument("--candidates", metavar="NAMES", default=",".join(FAMILIES), help="separated by commas"),
        group.add_argument(
            "--without", metavar="NAMES", default="heuristic,exact", help="of the second batch, none that learn"
        ),
        group.add_argument("--plan", metavar="xla=FOLDER", action="append", default=[], help="as of 'stowplan batch'"),
        group.add_argument("--seed", metavar="N", type=int, default=0),
        group.add_argument("--workers", metavar="N", type=int, default=Options().workers),
        *add_input_options(group),
    ]
    arguments = parser.parse_args(argv)
    given = [each.option_strings[0] for each in solving if getattr(arguments, each.dest) != each.default]
    if given and arguments.output is None:
        raise UsageError(f"{given[0]}: goes with -o FOLDER alone")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    try:
        arguments = _parse(argv)
        if arguments.output is None:
            batches = read_batches(arguments.paths)
        else:
            others = {name: getattr(arguments, name) for name in ("time_limit", "seed", "workers", "baseline")}
            others |= {"candidates": tuple(arguments.candidates.split(",")), "xla_plans": xla_folders(arguments.plan)}
            settings = settings_of(read_options(arguments), **others)
            without = tuple(arguments.without.split(","))
            batches = run_batches(arguments.paths, arguments.output, settings, without, quiet=arguments.quiet)
        print(as_text(speedup_table(batches, None if arguments.baseline == PROD else arguments.baseline), arguments.style))
    except StowplanError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
