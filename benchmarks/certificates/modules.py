"""What is certified of the bounds of real modules, beside what the solver claims.

    python -m benchmarks.certificates.modules --seconds 30 --json-out certified.json --markdown-out certified.md

Each module is bounded by the relaxation alone, on one thread; its multipliers become a certificate, which is checked. Modules
come from ../shared/corpus/tpu_v4 (or $STOWPLAN_SHARED/corpus/tpu_v4, or a folder that is named). Results are kept as they come:
a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import stowplan
from benchmarks.lib.places import SHARED
from stowplan import files
from stowplan.certificates.maker import certify
from stowplan.models.memory_mapping.milp.segments import SegmentBounds
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.prices import Prices

#: A certified gap is as good as the solver's where it is larger by at most this.
TOLERANCE = 1e-3


def measure(path: Path, target: str, seconds: float) -> dict[str, Any]:
    """Bound a module, certify the bound and check the certificate; plain values."""
    problem: Any = stowplan.read(path, target=target)
    found: list[bytes] = []
    making = 0.0

    def take(prices: Prices) -> None:
        nonlocal making
        began = time.process_time()
        found.append(prices.encode())
        making += time.process_time() - began

    began = time.monotonic()
    bounds = SegmentBounds(problem, Effort(end=began + seconds), on_prices=take)
    bounds.run()
    solving = time.monotonic() - began
    cpu = time.process_time()
    certificate = certify(problem, bound=bounds.bound, evidence=found[-2:])
    making += time.process_time() - cpu
    cpu = time.process_time()
    verdict = certificate.check(problem)
    checking = time.process_time() - cpu
    assert verdict.bound is not None
    return {
        "uses": problem.use_count,
        "bound_ps": bounds.bound,
        "certified_ps": verdict.bound,
        "form": verdict.form,
        "solving_s": solving,
        "making_s": making,
        "checking_s": checking,
        "bytes": len(files.encode(certificate)),
    }


def loss(row: dict[str, Any]) -> float:
    """What the certificate says less, as a part of the bound."""
    return float((row["bound_ps"] - row["certified_ps"]) / row["bound_ps"])


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    """The table, and how many are as good as the solver's."""
    head = "module | uses | bound ms | certified ms | less % | making s | checking s | kB"
    lines = [f"| {head} |", "|" + "---|" + "--:|" * head.count("|")]
    for name, row in sorted(rows.items()):
        cells = [
            name,
            f"{row['uses']:,}",
            f"{row['bound_ps'] / 1e9:.4f}",
            f"{row['certified_ps'] / 1e9:.4f}",
            f"{100 * loss(row):.3f}",
            f"{row['making_s']:.2f}",
            f"{row['checking_s']:.2f}",
            f"{row['bytes'] / 1000:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    good = sum(loss(row) <= TOLERANCE for row in rows.values())
    return "\n".join([*lines, "", f"{good} of {len(rows)} lose at most {100 * TOLERANCE:g} %."]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=SHARED / "corpus" / "tpu_v4")
    parser.add_argument("--target", default="tpu-v4")
    parser.add_argument("--seconds", type=float, default=30.0, help="a module")
    parser.add_argument("--only", default="", help="modules whose names contain this")
    parser.add_argument("--json-out", type=Path, default=Path("certified.json"))
    parser.add_argument("--markdown-out", type=Path)
    options = parser.parse_args()
    if not options.folder.is_dir():
        sys.exit(f"{options.folder}: no such folder; name one, or put the shared corpus beside the repository")
    rows = json.loads(options.json_out.read_text()) if options.json_out.exists() else {}
    for path in sorted(options.folder.glob("*.hlo.txt.gz")):
        name = path.name.removesuffix(".hlo.txt.gz")
        if name in rows or options.only not in name:
            continue
        rows[name] = measure(path, options.target, options.seconds)
        row = rows[name]
        print(f"{name}: {row['bound_ps']} certified {row['certified_ps']}, {100 * loss(row):.4f} % less", flush=True)
        files.write_atomic(options.json_out, files.encode(rows))
    text = markdown(rows)
    print(text)
    if options.markdown_out is not None:
        files.write_atomic(options.markdown_out, text.encode())


if __name__ == "__main__":
    main()
