"""Statistics of graphs to learn from: ``python -m benchmarks.modulo_scheduling.graph_statistics FOLDER [--generated N]``.

Prints a markdown table of the suites below a folder and of generated graphs, as the Streaming Engine gets them (inputs are
instructions, relays included); then how many random plays of the FFT of 8 points are complete with and without masks that look
ahead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.lib.modulo_scheduling import kernels
from benchmarks.lib.modulo_scheduling.collection import read_collection
from benchmarks.lib.modulo_scheduling.generated_graphs import generated
from stowplan.frontends.dfg import lower
from stowplan.learned_guidance.modulo_scheduling.body import Body, topological_order
from stowplan.learned_guidance.modulo_scheduling.state import Mapping, Uniform
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure

#: Random plays, and their initiation interval.
PLAYS, II = 200, 6


def levels(problem: Problem) -> int:
    """Instructions on the longest chain within an iteration."""
    producers: list[list[int]] = [[] for _ in problem.instructions]
    for edge in problem.edges:
        if edge.distance == 0:
            producers[edge.target].append(edge.source)
    level = [0] * len(producers)
    for number in topological_order(problem).tolist():
        level[number] = 1 + max((level[each] for each in producers[number]), default=0)
    return max(level)


def row(name: str, problems: Sequence[Problem]) -> str:
    """A line of the table."""
    structures = [Structure(problem) for problem in problems]
    counts = [each.count for each in structures]
    edges = np.mean([len(problem.edges) / len(problem.instructions) for problem in problems])
    sources = np.mean([len(each.sources) / each.count for each in structures])
    readers = np.concatenate([np.bincount([edge.source for edge in each.edges], minlength=1) for each in problems])
    read = readers[readers > 0]
    largest = [max(np.bincount([each.component[n] for n in each.recurrent])) for each in structures if each.recurrent]
    cells = (
        name,
        len(problems),
        f"{min(counts)} to {max(counts)}",
        f"{edges:.2f}",
        f"{sources:.0%}",
        f"{np.mean([levels(problem) for problem in problems]):.1f}",
        f"{(read == 1).mean():.0%}",
        f"{(read >= 4).mean():.1%}",
        f"{len(largest) / len(problems):.0%}",
        f"{np.mean(largest):.1f}" if largest else "",
        f"{np.mean([bool(problem.variables) for problem in problems]):.0%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder")
    parser.add_argument("--generated", type=int, default=200, metavar="N", help="so many generated graphs (200)")
    arguments = parser.parse_args()
    print(
        "| suite | graphs | instructions | edges each | without operands | levels | values read once | four times or more "
        "| with cycles | instructions of the largest | with variables |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for suite, problems in read_collection(arguments.folder).suites.items():
        print(row(suite, problems), flush=True)
    chance = np.random.default_rng(0)
    print(row("generated", [generated(chance) for _ in range(arguments.generated)]))
    body = Body(lower(kernels.fft(8), inputs="instructions"))
    for look_ahead in (False, True):
        found = Uniform().place([Mapping(body, II, look_ahead=look_ahead) for _ in range(PLAYS)], chance)
        complete = sum(each.current < 0 for each in found)
        print(f"\n{complete} of {PLAYS} random plays of {body.problem.name} at II {II} complete, looking ahead: {look_ahead}")


if __name__ == "__main__":
    main()
