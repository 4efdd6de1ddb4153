"""What options of XLA give by themselves: cycles and stalls of modules of the corpus, by XLA's own estimates.

    python -m benchmarks.xla.options CORPUS --folder DIR --only resnet50_inf_b1 --try xla_tpu_cmem_max_retries=20 ...

Each ``--try`` is one compile: one option, or several with commas between. CORPUS is that of ``tuning.py``; ``--folder``
keeps compiles, best not where predictors learn from. Prints a row for each. Needs jax and libtpu.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.xla.tuning import workload
from stowplan.backends.xla.compiler import Compiler
from stowplan.backends.xla.score import Judge, Score, judged_program
from stowplan.backends.xla.steer import DEFAULT
from stowplan.backends.xla.store import Compiled
from stowplan.errors import InputError
from stowplan.frontends.hlo import read_module
from stowplan.hardware.targets import load_target


def parsed(text: str) -> dict[str, str]:
    """``NAME=VALUE,NAME=VALUE`` as options."""
    pairs = [each.partition("=") for each in text.split(",")]
    if not all(name and equals for name, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected NAME=VALUE")
    return {name: value for name, _, value in pairs}


def row(what: str, score: Score, base: Score, compiled: Compiled) -> str:
    gain = 100 * (1 - score.total / base.total)
    return f"| {what} | {score.cycles:,} | {score.stall_cycles:,} | {gain:+.2f} | {compiled.record.processor_seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="where compiles are kept")
    parser.add_argument("--only", nargs="+", required=True, help="modules")
    parser.add_argument("--try", nargs="+", required=True, type=parsed, dest="tries", metavar="NAME=VALUE", help="options")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that a compile may take")
    options = parser.parse_args()
    target = load_target("tpu-v4")
    for name in options.only:
        print(f"\n| {name} | cycles | stalled | gain, % | processor s |\n|---|--:|--:|--:|--:|", flush=True)
        with Compiler(workload(options.corpus, name), folder=options.folder, compile_limit=options.limit) as compiler:
            default = compiler.compile(DEFAULT.compiler_options())
            if default.error:
                raise SystemExit(f"{name}: {default.error}")
            judge = Judge(judged_program(read_module(default.program_path)), target)
            base = judge.score(default)
            print(row("default", base, base, default), flush=True)
            for tried in options.tries:
                what = ", ".join(f"{key}={value}" for key, value in tried.items())
                compiled = compiler.compile(tried)
                try:
                    if compiled.error:
                        raise InputError(compiled.error)
                    print(row(what, judge.score(compiled), base, compiled), flush=True)
                except InputError as error:
                    print(f"| {what} | {error} |", flush=True)


if __name__ == "__main__":
    main()
