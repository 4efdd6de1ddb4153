"""Arenas of TensorFlow Lite Micro: its own planner, offsets of stowplan's, overlaps, and Vela; outputs compared bit by bit.

    python -m benchmarks.embedded.table ../shared/tflm/*.tflite [--vela FOLDER/bin/vela] [--seeds 3] [--only NAME]

Head / whole arena in bytes, of this machine; the wheel ``tflite-micro`` (extra ``tflm``) runs each model. Vela
(``ethos-u-vela``) wants an environment of its own; all operators are left to the CPU, so that its plan is of the same model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.tflm import Run, plan_and_run
from stowplan.backends.tflm import runtime as micro
from stowplan.errors import VerificationError
from stowplan.frontends.tflite.model import read_tflite
from stowplan.log import collecting_unmodelled

#: Prints the names of all builtin operators that Vela knows, in its own environment.
_NAMES = (
    "from ethosu.vela.tflite.BuiltinOperator import BuiltinOperator as B; "
    "print(','.join(name for name in vars(B) if name.isupper()))"
)


def _run(command: list[str | Path], seconds: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [""]
        raise UnsupportedError(f"code {done.returncode}: {lines[-1][:80]}")
    return done.stdout


def _vela(model: Path, vela: Path, seeds: int) -> str:
    """Head and arena under Vela's plan for the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            operators = _run([vela.with_name("python"), "-c", _NAMES], 60).strip()
            _run([vela, model, "--output-dir", folder, "--ignore-ops", operators], 600)
            planned = (Path(folder) / f"{model.stem}_vela.tflite").read_bytes()
            with collecting_unmodelled():
                source = read_tflite(model)
            return _cell(micro.run(source, planned, seeds=seeds))
        except (UnsupportedError, VerificationError, OSError, subprocess.TimeoutExpired) as error:
            return f"fails: {error}"


def _cell(run: Run) -> str:
    wrong = "" if run.differs is None else ", WRONG from inference {1} of seed {0}".format(*run.differs)
    return f"{run.head:,} / {run.arena:,}{wrong}"


def _row(model: Path, vela: Path | None, seeds: int) -> list[str]:
    cells, runs = [], []
    seconds = 0.0
    for kernels in ("none", "reference"):
        began = time.monotonic()
        with collecting_unmodelled():
            planned, run, why = plan_and_run(model, kernels=kernels, seeds=seeds)
        seconds = time.monotonic() - began
        if run is None:
            return [model.stem, f"not run: {why}"]
        cells.append(_cell(run) + ("" if planned.summary.is_proven else " (not proven)"))
        runs.append(run)
    greedy = f"{runs[0].greedy_head:,} / {runs[0].greedy_arena:,}"
    return [model.stem, greedy, *cells, *([_vela(model, vela, seeds)] if vela else []), f"{seconds:.1f}"]


def main() -> None:
    """Print the table, a line when its model is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--vela", type=Path, help="the program, in an environment of its own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="models whose name has this in it")
    arguments = parser.parse_args()
    if micro.version() is None:
        sys.exit(f"{micro.WHEEL} is not installed: pip install '.[tflm]'")
    head = ["model", "TFLM", "offsets, order", "overlaps", *(["Vela"] if arguments.vela else []), "s"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for model in arguments.models:
        if arguments.only in model.stem:
            print("| " + " | ".join(_row(model, arguments.vela, arguments.seeds)) + " |", flush=True)


if __name__ == "__main__":
    main()
