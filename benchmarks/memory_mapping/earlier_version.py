"""Yesterday's plan of a slightly changed program: what it gives in a second.

    python -m benchmarks.memory_mapping.earlier_version EARLIER LATER [EARLIER LATER ...] --target tpu-v4 --seconds 30 --brief 1
    python -m benchmarks.memory_mapping.earlier_version GRAPH ... --change --target se --seconds 20 --brief 1

Pairs of files are two versions of a program; with ``--change`` each file is the later version, and the earlier one lacks some
of its steps (networks, loop bodies). Each version is solved in ``--seconds``, then the later one in ``--brief`` seconds without
a hint, with that of the earlier version's plan, and with its values at other decisions (the control). Seconds are of the
wall, the start of worker processes included, so that the machine must be at leisure; with ``--alone`` brief runs are the search
alone, in this process and its processor's seconds, as in a service that builds call. ``of the result`` is the objective of the
full run over that of the brief one with the hint, ``share`` the part of the full run's gain over the baseline that it has.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

import stowplan
from benchmarks.guidance.guides import shuffled
from benchmarks.lib.alone import Alone
from benchmarks.lib.tables import table
from stowplan.kernel.context import Options
from stowplan.kernel.kind import kind_of
from stowplan.models import hint as hints
from stowplan.models.hint import Hint
from stowplan.models.modulo_scheduling.plan import describe_objective
from stowplan.models.modulo_scheduling.problem import Problem as LoopBody
from stowplan.models.tier_placement.problem import Problem as Network

HEAD = ("later version", "steps matched", "baseline", "no hint", "shuffled", "hint", "full", "of the result", "share")


def shortened(problem: Any, seed: int, part: float) -> Any:
    """An earlier version: without some of the steps, those that need them taking what those took."""
    chance = random.Random(seed)
    if isinstance(problem, Network):
        gone = {number for number in range(1, len(problem.layers) - 1) if chance.random() < part}
        new, kept = {}, []
        for number, layer in enumerate(problem.layers):
            inputs = tuple(sorted({new[source] for source in layer.inputs}))
            if number in gone and inputs:
                new[number] = inputs[0]
            else:
                new[number] = len(kept)
                kept.append(msgspec.structs.replace(layer, inputs=inputs))
        return msgspec.structs.replace(problem, layers=tuple(kept), features=())
    if isinstance(problem, LoopBody):
        used = {operand.instruction for each in problem.instructions for operand in each.operands}
        ends = [each.id for each in problem.instructions if each.id not in used]
        gone_ids = set(chance.sample(ends, min(len(ends) - 1, max(1, round(part * len(problem.instructions))))))
        kept_instructions = tuple(each for each in problem.instructions if each.id not in gone_ids)
        pins = tuple(pin for pin in problem.pins if pin.instruction not in gone_ids)
        return msgspec.structs.replace(problem, instructions=kept_instructions, pins=pins)
    raise SystemExit("--change takes networks and loop bodies; of other programs give both versions")


def row(earlier: Any, later: Any, name: str, arguments: argparse.Namespace) -> list[str]:
    """One line of the table."""
    values = kind_of(later).extras().hints
    assert values is not None
    options: dict[str, Any] = {"workers": arguments.workers, "seed": arguments.seed}
    before = stowplan.solve(earlier, time_limit=arguments.seconds, **options)
    full = stowplan.solve(later, time_limit=arguments.seconds, **options)
    if before.plan is None or full.plan is None:
        return [name, *[""] * (len(HEAD) - 1)]
    given = values.transferred(later, earlier, values.of_plan(earlier, before.plan))
    trusted = sum(given.confidence) / max(1, len(given.confidence))
    tried = (None, shuffled(given, arguments.seed), given)
    if arguments.alone:
        found = [alone(later, hint, arguments) for hint in tried]
    else:
        found = [stowplan.solve(later, time_limit=arguments.brief, hint=hint, **options).objective for hint in tried]
    first = full.baseline
    show = describe_objective if isinstance(later, LoopBody) else lambda value: f"{value / 1e9:.4f} ms"
    last = found[-1]
    of_result = "" if last is None or isinstance(later, LoopBody) else f"{full.objective / last:.2%}"
    share = (
        "" if last is None or first is None or first == full.objective else f"{(first - last) / (first - full.objective):.1%}"
    )
    if isinstance(later, LoopBody):
        share = ""
    values = [first, *found, full.objective]
    return [name, f"{trusted:.1%}", *("" if value is None else show(value) for value in values), of_result, share]


def alone(problem: Any, hint: Hint | None, arguments: argparse.Namespace) -> int | None:
    """Objective of the search alone, in this process and its processor's seconds."""
    kind = kind_of(problem)
    module = importlib.import_module(f"stowplan.portfolio.{kind.name}.candidates")
    # Where memory mapping's hints come from.
    guided = sys.modules.get(f"stowplan.portfolio.{kind.name}.guided", module)
    for each in (module, guided):
        if hasattr(each, "time"):
            vars(each)["time"] = SimpleNamespace(monotonic=time.process_time)
    if hasattr(guided, "filled_hint"):
        # Without a hint is without any.
        vars(guided)["filled_hint"] = lambda problem, context: None
    options = Options(time_limit=arguments.brief, seed=arguments.seed, workers=2, candidates=("heuristic", "exact"))
    start = None if hint is None else hints.plan_of(hint)
    context = Alone(problem, options, start=start, hints=() if hint is None else (hint,), clock=time.process_time)
    module.search(problem, context)
    return None if context.best is None else context.objective(context.best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--target", default="tpu-v4")
    parser.add_argument("--rule", action="append", default=[], help="as of stowplan solve --set")
    parser.add_argument("--change", action="store_true", help="make the earlier version of each file")
    parser.add_argument("--part", type=float, default=0.02, help="of the steps that the earlier version lacks")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--brief", type=float, default=1.0)
    parser.add_argument("--alone", action="store_true", help="brief runs: the search alone, its processor's seconds")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.change and len(arguments.files) % 2:
        parser.error("files come in pairs: an earlier version and a later one")
    rows = []
    began = time.monotonic()
    files = arguments.files
    pairs = [(path, path) for path in files] if arguments.change else list(zip(files[::2], files[1::2], strict=True))
    for one, other in pairs:
        later = stowplan.read(other, target=arguments.target, rules=arguments.rule)
        earlier = (
            shortened(later, arguments.seed, arguments.part)
            if arguments.change
            else stowplan.read(one, target=arguments.target, rules=arguments.rule)
        )
        rows.append(row(earlier, later, other.name.split(".")[0], arguments))
        print(f"{time.monotonic() - began:.0f} s: {' | '.join(rows[-1])}", flush=True)
    print(table(rows, HEAD))


if __name__ == "__main__":
    main()
