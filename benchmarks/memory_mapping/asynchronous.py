"""Which modules have asynchronous operations, and what these hold in the problems made of them.

    python -m benchmarks.memory_mapping.asynchronous ../shared/corpus/{cpu,tpu_v4,tpu_v4_large}

One line for each module: instructions that start an asynchronous operation (in all computations), tensors that such operations
hold in the problem of memory mapping, and the digest of that. Digests of problems without ``in_flight`` can be compared with
those of earlier versions, which do not know that field.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from stowplan.frontends.hlo import program_from_module, read_module
from stowplan.frontends.hlo.opcodes import STARTING
from stowplan.hardware.costs import make_problem
from stowplan.hardware.targets import load_target
from stowplan.log import UnmodelledWarning


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folder with HLO modules")
    warnings.simplefilter("ignore", UnmodelledWarning)
    print("| module | starts | held tensors | digest |\n|---|---|---|---|")
    for path in (path for folder in parser.parse_args().folders for path in sorted(folder.glob("*.hlo*"))):
        module = read_module(path)
        starts = sum(
            instruction.opcode in STARTING
            for computation in module.computations.values()
            for instruction in computation.instructions
        )
        problem = make_problem(program_from_module(module), load_target("tpu-v4"))
        held = len({each.tensor for each in problem.in_flight})
        print(f"| {path.parent.name}/{path.name.split('.')[0]} | {starts} | {held} | {problem.digest[:12]} |", flush=True)


if __name__ == "__main__":
    main()
