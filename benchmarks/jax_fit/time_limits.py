"""Time limits of ``stowplan.backends.jax.fit``, asked for and used, for a program that takes long to compile.

    python -m benchmarks.jax_fit.time_limits [--limits SECONDS ...] [--hbm BYTES] [--compiles N] [--program NAME]

The program is an encoder and a decoder whose layers mix by a state-space model, which is an associative scan. Each limit starts
anew: nothing is kept from one to the next. Needs jax and libtpu.
"""

from __future__ import annotations

import argparse
import os
import time

from benchmarks.jax_fit import programs
from benchmarks.lib.tables import table
from stowplan.backends.jax import fit
from stowplan.errors import StowplanError


def row(program: str, hbm: str, limit: float, compiles: int) -> tuple[object, ...]:
    """One limit: seconds asked for and used, what was made in them, and what came of it."""
    loss, arguments, _ = programs.make(program)
    began = time.monotonic()
    try:
        report = fit(loss, arguments, hbm, time_limit=limit or None, compiles=compiles, on_progress=print).report
    except StowplanError as error:
        return limit or "none", f"{time.monotonic() - began:.1f}", "", "", f"exit code {error.exit_code}: {error}", "", "", ""
    chosen = report.chosen
    return (
        limit or "none",
        f"{time.monotonic() - began:.1f}",
        report.previews,
        report.compiles,
        report.stop_reason,
        chosen.policy.kind,
        f"{chosen.hbm_bytes >> 20:,}",
        f"{1e3 * chosen.recomputed_seconds:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", nargs="*", type=float, default=[5, 20, 45, 90, 0], help="0 is none")
    parser.add_argument("--hbm", default="3 GiB")
    parser.add_argument("--compiles", type=int, default=0)
    parser.add_argument("--program", default="state_space")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    rows = [row(options.program, options.hbm, limit, options.compiles) for limit in options.limits]
    head = ("limit, s", "used, s", "previews", "compiles", "stopped by", "policy", "peak, MiB", "makes again, ms")
    print(table(rows, head))


if __name__ == "__main__":
    main()
