"""What XLA's plans need that the strict rules lack: ``python -m benchmarks.xla.freedoms CORPUS [NAME...]``.

Imports every plan with more and more of the freedoms of docs/reference/memory-mapping.md, and counts what of it has no place
(dropped), another place (moved), and other times (delayed, postponed or advanced). Then plays the plan with all freedoms on a
copy engine that serves copies one by one, and on one that shares its bandwidth evenly among those under way.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from benchmarks.xla.table import modules, problem_and_program
from stowplan.frontends.xla_plan import import_xla_plan
from stowplan.models.memory_mapping.copy_engine import copy_window, play, slices_of, step_durations
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

#: Freedoms, one after the other: donated parameters tied, evictions between steps, sliced prefetches.
STAGES = {
    "none": (False, False, False),
    "tied": (True, False, False),
    "and between steps": (True, True, False),
    "and sliced": (True, True, True),
}


def shared_ps(problem: Problem, plan: Plan, durations: list[int]) -> float:
    """When the program ends (ps) if copies under way share the bandwidth evenly."""
    windows = [copy_window(problem, copy) for copy in plan.copies]
    due: list[list[int]] = [[] for _ in range(problem.horizon + 1)]
    for place, window in enumerate(windows):
        due[window.end].append(place)
    left: dict[int, float] = {}
    now, queued = 0.0, 0

    def advance(until: float) -> None:
        nonlocal now
        while left and now < until:
            step = min(min(left.values()) * len(left), until - now)
            share = step / len(left)
            now += step
            for place in list(left):
                left[place] -= share
                if left[place] < 1e-3:
                    del left[place]
        now = max(now, until)

    def wait(boundary: int) -> None:
        while any(place in left for place in due[boundary]):
            advance(now + max(1e-3, min(left.values())) * len(left))

    for boundary in range(problem.horizon + 1):
        wait(boundary)
        while queued < len(windows) and windows[queued].start == boundary:
            if windows[queued].duration_ps:
                left[queued] = float(windows[queued].duration_ps)
            queued += 1
        wait(boundary)
        if boundary < problem.horizon:
            advance(now + durations[boundary])
    return now


def used(problem: Problem, plan: Plan) -> Counter[str]:
    """How often a plan uses each freedom."""
    found: Counter[str] = Counter()
    fast, number = set(plan.fast_uses), 0
    for step in problem.steps:
        roles: dict[int, list[bool]] = {}
        for use in step.uses:
            roles.setdefault(use.tensor, []).append(number in fast)
            number += 1
        for tensor, served in roles.items():
            info = problem.tensors[tensor]
            if len(served) == 2 and info.is_input and info.is_output:
                found[f"donated parameters updated in place in {'fast' if served[0] else 'slow'} memory"] += 1
    ends = {(residency.tensor, residency.end) for residency in plan.residencies}
    for copy in plan.copies:
        if copy.direction == "out" and copy.start == copy.end and (copy.tensor, copy.end) in ends:
            found["copies out that leave their place between two steps"] += 1
            found["of them after the last step"] += copy.end == problem.horizon
    found["copies in slices"] += len(slices_of(plan))
    return found


def main() -> None:
    """Print a table of counts, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    heads = [f"{stage}: {what}" for stage in STAGES for what in ("dropped", "moved", "other time")]
    print(f"| module | {' | '.join(heads)} | stalls one by one, ms | shared, ms |\n|---{'|--:' * (len(heads) + 2)}|")
    total: Counter[int] = Counter()
    uses: Counter[str] = Counter()
    stalls = [0.0, 0.0]
    for before, after in modules(arguments.corpus, arguments.names):
        cells: list[int] = []
        for tied, between, sliced in STAGES.values():
            problem, program = problem_and_program(before, tied=tied, between=between, sliced=sliced)
            found = import_xla_plan(problem, program, after)
            cells += [len(found.dropped), found.moved, found.delayed + found.postponed + found.advanced]
        fast = set(found.plan.fast_uses)
        durations = step_durations(problem, [use in fast for use in range(problem.use_count)])
        queue = [copy_window(problem, copy) for copy in found.plan.copies]
        ends = play(queue, durations, waits=True).left[-1], shared_ps(problem, found.plan, durations)
        waits = [(end - sum(durations)) / 1e9 for end in ends]
        total.update(dict(enumerate(cells)))
        uses.update(used(problem, found.plan))
        stalls = [one + other for one, other in zip(stalls, waits, strict=True)]
        name = before.name.removesuffix(".hlo.txt.gz")
        print(f"| {name} | {' | '.join(map(str, cells))} | {waits[0]:.3f} | {waits[1]:.3f} |", flush=True)
    print(f"| all | {' | '.join(str(total[place]) for place in range(len(heads)))} | {stalls[0]:.3f} | {stalls[1]:.3f} |\n")
    for what, count in uses.items():
        print(f"* {count} {what}")


if __name__ == "__main__":
    main()
