"""A table of the programs in folders of HLO modules: ``python -m benchmarks.memory_mapping.programs FOLDER... [--json OUT]``.

Prints one markdown table a folder. ``--json`` also writes the counts, for the test that holds the front end to them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from stowplan import files
from stowplan.frontends.hlo import HloModule, program_from_module, read_module
from stowplan.hardware.program import Program

COLUMNS = ["module", "instructions", "steps", "uses", "tensors", "groups", "loops", "MB", "Gflop", "seconds"]


def counts(program: Program, module: HloModule) -> dict[str, object]:
    """What can be counted, and so compared from one version to the next."""
    return {
        "instructions": sum(len(each.instructions) for each in module.computations.values()),
        "steps": len(program.steps),
        "uses": program.use_count,
        "tensors": len(program.tensors),
        "groups": sum(bool(tensor.members) for tensor in program.tensors),
        "trips": [loop.trip_count for loop in program.loops],
        "bytes": sum(tensor.size for tensor in program.tensors),
        "moved": sum(step.weight * use.bytes for step in program.steps for use in step.uses),
        "flops": sum(step.weight * step.flops for step in program.steps),
        "notes": list(program.notes),
    }


def main() -> None:
    """Read every module of the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    arguments = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for folder in arguments.folders:
        print(f"`{folder.name}`\n\n| {' | '.join(COLUMNS)} |\n|---{'|--:' * (len(COLUMNS) - 1)}|")
        for path in sorted(folder.glob("*.hlo.txt*")):
            began = time.perf_counter()
            module = read_module(path)
            program = program_from_module(module)
            seconds = time.perf_counter() - began
            name = path.name.split(".hlo")[0]
            row = found[f"{folder.name}/{name}"] = counts(program, module)
            loops = ", ".join(str(loop.trip_count) if loop.trip_count_known else "?" for loop in program.loops)
            cells = [name, *(row[key] for key in ("instructions", "steps", "uses", "tensors", "groups")), loops]
            cells += [f"{row['bytes'] / 1e6:.1f}", f"{row['flops'] / 1e9:.2f}", f"{seconds:.2f}"]  # type: ignore[operator]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
        print()
    if arguments.json:
        text = "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in found.items()) + "\n}\n"
        files.write_atomic(arguments.json, text.encode())


if __name__ == "__main__":
    main()
