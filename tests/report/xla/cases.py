"""Results of compiles written by hand: the small modules of the importer's tests with estimated cycles."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from pathlib import Path

from stowplan.backends.xla.child import Option
from stowplan.backends.xla.dumps import ASSIGNED, COMPILED, OFFSETS, PROGRAM
from stowplan.backends.xla.evidence import Evidence
from stowplan.backends.xla.knobs import ALL_SLOW, DEFAULT, Knobs
from stowplan.backends.xla.store import Compiled, Record, WorkloadStore
from stowplan.backends.xla.tuning import TrialRecord, Tuning
from stowplan.hardware.targets import load_target
from tests.paths import DATA

FOLDER = DATA / "xla_plan"

#: Cycles of the steps of ``chain`` by default, and where ``d`` is in fast memory, which ``f`` suffers from.
CYCLES = {"a": 10_000, "b": 20_000, "c": 30_000, "d": 40_000, "e": 50_000, "f": 60_000, "g": 70_000}
BETTER = {**CYCLES, "d": 25_000, "g": 50_000, "f": 65_000}

ORDER = DEFAULT.moved(first=["d"])


def text_of(name: str) -> str:
    """A module of the importer's tests, or its offsets."""
    return (FOLDER / name).read_text(encoding="utf-8")


def with_cycles(module: str, cycles: Mapping[str, int]) -> str:
    """The module with an estimate for each of some instructions."""

    def estimate(match: re.Match[str]) -> str:
        found = cycles.get(match[1])
        return match[0] if found is None else f'{match[0]}, backend_config={{"estimated_cycles":"{found}"}}'

    return re.sub(r"(?m)^ *(?:ROOT )?%([\w.\-]+) = .*$", estimate, module)


def d_in_fast_memory() -> tuple[str, str]:
    """The plan of ``chain`` and its offsets, with the result of ``d`` in fast memory as well."""
    plan = text_of("chain.plan.hlo.txt").replace("%d = f32[64,128]{1,0:T(8,128)}", "%d = f32[64,128]{1,0:T(8,128)S(3)}")
    value = " value: <30 d @3> (size=32768,offset=196608): f32[64,128]{1,0:T(8,128)S(3)}\n"
    return plan, text_of("chain.plan.fastmem.txt").rstrip("\n") + "\n" + value


def keep(
    folder: Path, program: str, assigned: str, offsets: str, compiled: str, options: Mapping[str, Option] | None = None
) -> Compiled:
    """Keep a result as a compile does; those with other options have other places."""
    record = Record(
        options=dict(options or {}),
        versions={"libtpu": "0"},
        topology="v4:2x2x1",
        workload="0" * 64,
        processor_seconds=2.5,
        seconds=2.0,
    )
    store = WorkloadStore(folder, "program", record.workload)
    with store.scratch() as scratch:
        for file, text in ((PROGRAM, program), (ASSIGNED, assigned), (OFFSETS, offsets), (COMPILED, compiled)):
            (scratch / file).write_bytes(gzip.compress(text.encode(), mtime=0))
        return store.keep(scratch, record)


def chain_results(folder: Path) -> tuple[Compiled, Compiled, Compiled]:
    """Of ``chain``: XLA's default, ``d`` in fast memory, and everything in slow memory."""
    program = text_of("chain.hlo.txt")
    plan, offsets = text_of("chain.plan.hlo.txt"), text_of("chain.plan.fastmem.txt")
    better, more = d_in_fast_memory()
    three_times = {name: 3 * cycles for name, cycles in CYCLES.items()}
    return (
        keep(folder, program, plan, offsets, with_cycles(plan, CYCLES)),
        keep(folder, program, better, more, with_cycles(better, BETTER), ORDER.compiler_options()),
        keep(folder, program, program, "", with_cycles(program, three_times), ALL_SLOW.compiler_options()),
    )


def evidence_of(*trials: tuple[Knobs, Compiled]) -> Evidence:
    """Trials in this order."""
    evidence = Evidence(trials[0][1], load_target("tpu-v4"))
    for knobs, compiled in trials:
        evidence.add(knobs, compiled)
    return evidence


def tuning_of(evidence: Evidence, ways: tuple[str, ...], name: str = "chain", notes: tuple[str, ...] = ()) -> Tuning:
    """The result of a loop that made these trials, in these ways."""
    records = tuple(
        TrialRecord(
            way=way,
            first=len(trial.knobs.first),
            last=len(trial.knobs.last),
            cycles=trial.score.cycles,
            stall_cycles=trial.score.stall_cycles,
            processor_seconds=2.5,
            result=f"{trial.compiled.folder.parent.name}/{trial.compiled.folder.name}",
        )
        for way, trial in zip(ways, evidence.trials, strict=True)
    )
    best = evidence.trials.index(evidence.incumbent)
    return Tuning(
        name=name,
        target="tpu-v4",
        trials=records,
        best=best,
        compiler_options=evidence.trials[best].knobs.compiler_options(),
        stop_reason="compiles",
        seconds=9.0,
        processor_seconds=2.5 * len(records),
        compiles_run=len(records),
        notes=notes,
    )
