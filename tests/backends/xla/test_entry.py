"""The loop, with a compiler that takes milliseconds: what it may never do, and how it ends."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stowplan.backends.xla import proposals, tune_workload
from stowplan.backends.xla.bandit import BATCH, PREVIEWS_OF_A_COMPILE, Budget
from stowplan.backends.xla.compiler import Compiler
from stowplan.backends.xla.entry import COMPILES
from stowplan.backends.xla.evidence import Evidence, Move, Trial
from stowplan.backends.xla.knobs import (
    ALL_SLOW,
    ASSIGNMENT_OPTION,
    DEFAULT,
    ORDER_OPTION,
    OVERLAP_OPTION,
    SCOPED_OPTION,
    Knobs,
)
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.proposals import (
    Proposal,
    fit_to_capacity,
    follow_plan,
    move_harmful_last,
    overlap_copies,
    preload_input,
)
from stowplan.backends.xla.run import Run
from stowplan.backends.xla.score import CompiledModule, Score, Scorer
from stowplan.backends.xla.store import Compiled
from stowplan.backends.xla.tuning import TrialRecord, Tuning, TuningProgress
from stowplan.deadline import Deadline
from stowplan.errors import InputError, TimeLimitError, UsageError, VerificationError
from stowplan.hardware.targets import load_target
from tests.backends.xla.conftest import WORKLOAD, Fake
from tests.patience import HANG

#: What the fake of the other tests stands for.
PLANNED = proposals.heuristic_plan

pytestmark = pytest.mark.usefixtures("quick_plans")


def steps(tuning: Tuning) -> list[TrialRecord]:
    """Trials without what each run measures anew."""
    return [msgspec.structs.replace(trial, processor_seconds=0.0) for trial in tuning.trials]


def test_it_finds_what_is_better_and_how_to_get_it(fake: Fake, tmp_path: Path) -> None:
    seen: list[TuningProgress] = []
    tuning = tune_workload(WORKLOAD, folder=tmp_path, on_progress=seen.append)
    assert [trial.way for trial in tuning.trials[:2]] == ["default", "all_slow"]
    assert (tuning.default.cycles, tuning.trials[1].cycles) == (4500, 5000)
    best = tuning.trials[tuning.best]
    # Of all orders and capacities none has fewer cycles than a, b and d in fast memory.
    assert best.total == min(trial.total for trial in tuning.trials if not trial.error) == 4100
    assert tuning.gain == 1 - 4100 / 4500
    assert tuning.stop_reason == "compiles"
    assert len(tuning.trials) == len(seen) == tuning.compiles_run
    assert len(tuning.trials) + (tuning.previews - BATCH) / PREVIEWS_OF_A_COMPILE <= COMPILES
    assert tuning.previews >= len(fake.previews) > len(tuning.trials)
    assert [each.trial for each in seen] == [*tuning.trials]
    assert (seen[-1].number, seen[-1].budget, seen[-1].gain) == (len(tuning.trials), COMPILES, tuning.gain)
    # The options are those of the best compile.
    assert tuning.compiler_options == fake.compiles[tuning.best] == tuning.compiled(tmp_path, tuning.best).record.options
    assert ORDER_OPTION in tuning.compiler_options


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_never_worse_and_nothing_twice(fake: Fake, seed: int) -> None:
    """Other costs each time: fast memory helps here and harms there."""
    tuning = tune_workload(WORKLOAD, compiles=12, seed=seed, compiler_options={"fake_seed": str(seed)})
    assert tuning.gain >= 0
    assert tuning.trials[tuning.best].total == min(trial.total for trial in tuning.trials)
    asked = [json.dumps(options, sort_keys=True) for options in fake.compiles]
    assert len(asked) == len({*asked}) == len(tuning.trials) <= 12
    assert all(options["fake_seed"] == "1" or seed > 1 for options in fake.compiles)
    assert tuning.compiler_options["fake_seed"] == str(seed)
    # Where the assignment is off no order counts, and none is tried.
    assert not [options for options in fake.compiles if ASSIGNMENT_OPTION in options and len(options) > 2]


@pytest.mark.parametrize("compiles", [1, 2, 3])
def test_a_budget_is_met(fake: Fake, compiles: int) -> None:
    tuning = tune_workload(WORKLOAD, compiles=compiles)
    assert len(tuning.trials) == len(fake.compiles) == compiles
    assert tuning.stop_reason == "compiles"
    if compiles == 1:
        assert (tuning.best, tuning.gain, tuning.compiler_options) == (0, 0.0, {})


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_interrupted(fake: Fake, tmp_path: Path) -> None:
    whole = tune_workload(WORKLOAD, compiles=9, folder=tmp_path / "whole", seed=3)
    asked = fake.compiles, fake.previews
    fake.forget()
    cancel = threading.Event()

    def stop(progress: TuningProgress) -> None:
        if progress.number == 4:
            cancel.set()

    part = tune_workload(WORKLOAD, compiles=9, folder=tmp_path / "part", seed=3, on_progress=stop, cancel=cancel)
    assert part.stop_reason == "cancelled"
    assert steps(part) == steps(whole)[:4]
    assert part.trials[part.best].total == min(trial.total for trial in part.trials)
    rest = tune_workload(WORKLOAD, compiles=9, folder=tmp_path / "part", seed=3)
    assert steps(rest) == steps(whole)
    assert (rest.best, rest.compiler_options, rest.previews) == (whole.best, whole.compiler_options, whole.previews)
    assert part.compiles_run + rest.compiles_run == whole.compiles_run
    assert (fake.compiles, fake.previews) == asked, "none twice"
    # A third run has nothing left to do.
    again = tune_workload(WORKLOAD, compiles=9, folder=tmp_path / "part", seed=3)
    assert (again.compiles_run, again.processor_seconds, steps(again)) == (0, 0.0, steps(whole))


def test_time_that_is_over(fake: Fake, clock: SimpleNamespace) -> None:
    def leap(progress: TuningProgress) -> None:
        if progress.number == 3:
            clock.leap()

    tuning = tune_workload(WORKLOAD, time_limit=HANG, on_progress=leap)
    assert (len(tuning.trials), tuning.stop_reason) == (3, "time_limit")


def test_no_time_for_the_default(fake: Fake, clock: SimpleNamespace) -> None:
    with pytest.raises(TimeLimitError, match="toy: the time was over before XLA had finished"):
        tune_workload(WORKLOAD, time_limit=HANG, compiler_options={"fake": "hang"})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("refuse", "INVALID_ARGUMENT: No such compile option"),
        ("die", "the compiling process ended"),
        ("unreadable", "found no estimated_cycles"),
        ("hang", "toy: XLA took longer than the 300 s of one compile"),
    ],
)
def test_what_fails_leaves_the_default(fake: Fake, clock: SimpleNamespace, how: str, message: str) -> None:
    tuning = tune_workload(WORKLOAD, compiles=4, compile_limit=HANG, compiler_options={"fake": f"tuned:{how}"})
    assert len(tuning.trials) >= 2
    assert message in tuning.trials[1].error
    assert all(trial.error for trial in tuning.trials[1:])
    assert (tuning.best, tuning.gain) == (0, 0.0)
    assert tuning.compiler_options == {"fake": f"tuned:{how}"}
    # Settings whose previews fail are not compiled, and it is said why.
    ended = {"unreadable": "compiles", "hang": "failed"}.get(how, "exhausted")
    assert tuning.stop_reason == ended
    assert (ended == "compiles") == (not tuning.notes)
    assert all(message in note for note in tuning.notes)
    with pytest.raises(InputError, match="found no result of trial 2"):
        tuning.compiled("anywhere", 1)


def test_a_default_that_fails(fake: Fake, tmp_path: Path) -> None:
    for how, message in (
        ({"xla_nope": 1}, "toy: INVALID_ARGUMENT: No such compile option: 'xla_nope'"),
        ({"fake": "die"}, "the compiling process ended"),
    ):
        with pytest.raises(CompileError, match=message):
            tune_workload(WORKLOAD, folder=tmp_path, compiler_options=how)
    with pytest.raises(InputError, match="found no estimated_cycles"):
        tune_workload(WORKLOAD, folder=tmp_path, compiler_options={"fake": "unreadable"})
    assert len(fake.compiles) == 3


def _refuse_plans_after(monkeypatch: pytest.MonkeyPatch, name: str, accepted: int) -> None:
    """Let this method of evidence fail as for a plan that cannot be made valid, except for the first calls."""
    method: Callable[[Evidence, Knobs, Compiled], Trial] = getattr(Evidence, name)
    calls = [0]

    def refusing(self: Evidence, knobs: Knobs, compiled: Compiled) -> Trial:
        calls[0] += 1
        if calls[0] > accepted:
            raise VerificationError("XLA's plan cannot be made valid: it overlaps")
        return method(self, knobs, compiled)

    monkeypatch.setattr(Evidence, name, refusing)


def test_plans_that_cannot_be_made_valid_are_failed_trials(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse_plans_after(monkeypatch, "add", 2)
    tuning = tune_workload(WORKLOAD, compiles=4)
    assert tuning.stop_reason == "compiles"
    assert len(tuning.trials) > 2
    assert not any(trial.error for trial in tuning.trials[:2])
    assert {trial.error for trial in tuning.trials[2:]} == {"XLA's plan cannot be made valid: it overlaps"}
    assert tuning.best < 2


def test_previews_that_cannot_be_made_valid_leave_the_trials_before(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse_plans_after(monkeypatch, "preview", 0)
    tuning = tune_workload(WORKLOAD, compiles=4)
    assert tuning.stop_reason == "failed"
    assert tuning.notes[-1] == "XLA's plan cannot be made valid: it overlaps"
    assert not tuning.trials[0].error


def test_a_default_whose_plan_cannot_be_made_valid(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse_plans_after(monkeypatch, "add", 0)
    with pytest.raises(VerificationError, match="it overlaps"):
        tune_workload(WORKLOAD)


def test_a_disk_that_is_full_costs_no_result(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    from stowplan.backends.xla.store import WorkloadStore

    keep = WorkloadStore.keep

    def full(self: WorkloadStore, scratch: Path, record: Any, **rest: Any) -> Any:
        if len(fake.compiles) > 2:
            raise InputError("cannot write: no space left", source="there")
        return keep(self, scratch, record, **rest)

    monkeypatch.setattr(WorkloadStore, "keep", full)
    tuning = tune_workload(WORKLOAD)
    assert (len(tuning.trials), tuning.stop_reason, tuning.notes) == (2, "failed", ("there: cannot write: no space left",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"compiles": 0}, "found 0 compiles, expected at least 1"),
        ({"seed": -1}, "found seed -1, expected at least 0"),
        ({"time_limit": 0}, "found a time limit of 0 s, expected more than 0"),
        ({"compile_limit": float("nan")}, "found a limit of nan s for one compile, expected more than 0"),
        ({"target": "teaching"}, "expected one that XLA compiles for: tpu-7x, tpu-v4, "),
        ({"compiler_options": {ORDER_OPTION: ""}}, f"found compiler option {ORDER_OPTION}, expected another: tuning sets it"),
        ({"compiler_options": {"xla_dump_to": "x"}}, "found compiler option xla_dump_to"),
    ],
)
def test_arguments_that_make_no_sense(fake: Fake, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tune_workload(WORKLOAD, **arguments)
    assert not fake.compiles


def test_a_file_of_it(fake: Fake, tmp_path: Path) -> None:
    tuning = tune_workload(WORKLOAD, compiles=3)
    tuning.save(tmp_path / "tuning.json")
    assert Tuning.load(tmp_path / "tuning.json") == tuning
    (tmp_path / "tuning.json").write_text((tmp_path / "tuning.json").read_text().replace('"best": 0', '"best": 9'))
    with pytest.raises(InputError, match=r"tuning.json: .*found best trial 9 of 3"):
        Tuning.load(tmp_path / "tuning.json")


def test_the_summary(fake: Fake) -> None:
    tuning = tune_workload(WORKLOAD, compiles=1)
    trials = (
        tuning.default,
        TrialRecord(way="tighten", first=0, last=2, cycles=4000, stall_cycles=50),
        TrialRecord(way="plan", first=0, last=2, error="INTERNAL: " + "why " * 100),
    )
    text = msgspec.structs.replace(tuning, trials=trials, best=1, notes=("the disk is full",)).summary().splitlines()
    assert text[0] == "toy on tpu-v4: 10.0% fewer cycles than by XLA's default"
    assert text[2] == "  best       4,000 cycles + 50 stalled  (tighten, compile 2 of 3)"
    assert text[3] == "  copies     as XLA counts +10.0%, none counted +10.0%"
    assert text[5].split() == ["compile", "way", "outcome", "settings"]
    assert text[7].split() == ["2", "*", "tighten", "4,000", "cycles", "+", "50", "stalled", "+10.0%"]
    assert text[8].split()[:5] == ["3", "plan", "INTERNAL:", "why", "why"]
    assert len(text[8]) < 130
    assert text[-1] == "  note       the disk is full"
    assert tuning.summary().splitlines()[0] == "toy on tpu-v4: nothing was compiled but XLA's default"
    for reason, words in (
        ("compiles", "as the budget of compilations was used up"),
        ("exhausted", "as nothing was left to try"),
        ("time_limit", "at the time limit"),
        ("a later one", "a later one"),
    ):
        line = msgspec.structs.replace(tuning, stop_reason=reason, seconds=2.0).summary().splitlines()[4]
        assert line.startswith(f"  stopped    {words}, after 2.0 s (")


@pytest.mark.parametrize(("wait", "is_tried"), [(2000, True), (4, False)])
def test_copies_begin_earlier_where_the_program_waits(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, wait: int, is_tried: bool
) -> None:
    """Stalls are less the larger the overlap ratio is; XLA's own is 2."""
    of_instructions = Scorer.score

    def score(self: Scorer, found: CompiledModule) -> Score:
        options = found.compiled.record.options
        stalls = 0 if ASSIGNMENT_OPTION in options else round(wait / float(options.get(OVERLAP_OPTION, 2)))
        return msgspec.structs.replace(of_instructions(self, found), stall_cycles=stalls)

    monkeypatch.setattr(Scorer, "score", score)
    tuning = tune_workload(WORKLOAD)
    tried = [trial for trial in tuning.trials if trial.way == "overlap"]
    assert bool(tried) == is_tried == (OVERLAP_OPTION in tuning.compiler_options)
    if is_tried:
        assert tuning.trials[tuning.best].stall_cycles <= wait / 10


def test_overlap_ratios_that_are_left() -> None:
    """What is tried next depends on what the incumbent has, and ends at 100."""

    def next_of(ratio: str | None, stalls: int) -> list[str]:
        knobs = DEFAULT.moved(first=["a"])
        knobs = knobs if ratio is None else knobs.with_option(OVERLAP_OPTION, ratio)
        trial: Any = SimpleNamespace(knobs=knobs, score=Score(10_000, stalls))
        evidence: Any = SimpleNamespace()
        proposed = [*overlap_copies(evidence, trial, random.Random(0))]
        assert all((each.way, each.knobs.first) == ("overlap", frozenset("a")) for each in proposed)
        return [str(dict(each.knobs.options)[OVERLAP_OPTION]) for each in proposed]

    assert next_of(None, 100) == ["10", "4"]
    assert next_of("10", 100) == ["30"]
    assert next_of("90", 100) == []
    assert next_of(None, 9) == []


def test_inputs_worth_a_preload() -> None:
    """Those that save most there, a thousandth of the time at least; what waits in fast memory costs."""
    moves = [Move(0, True, -90.0, 0.0), Move(1, True, -70.0, 0.0), Move(2, True, -60.0, 0.0), Move(3, True, -9.0, 0.0)]
    moves += [Move(4, True, -500.0, 0.0), Move(5, False, -500.0, 0.0), Move(6, True, -500.0, 0.0)]
    trial: Any = SimpleNamespace(knobs=DEFAULT.moved(first="a"), score=Score(10_000, 0))
    evidence: Any = SimpleNamespace(
        moves=lambda trial: moves,
        parameters={0, 1, 2, 3, 5, 6},
        values={number: (f"w{number}",) for number in range(7)},
        waiting_cost=lambda tensor: {0: 25.0, 6: 495.0}.get(tensor, 0.0),
    )
    found = [*preload_input(evidence, trial, random.Random(0))]
    assert [(each.knobs.preload, each.gain) for each in found] == [("w1", 70.0), ("w0", 65.0)]
    assert all(each.knobs.first == frozenset("a") for each in found)
    trial.score = Score(69_000, 0)
    assert [each.knobs.preload for each in preload_input(evidence, trial, random.Random(0))] == ["w1"]


def test_what_harms_is_left_without_room(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA keeps a, b and c of 1 MiB each; what saves most goes last, and the capacity is what the rest takes."""
    evidence = evidence_of(tune_workload(WORKLOAD, compiles=2, folder=tmp_path), tmp_path)
    number = {tensor.name: at for at, tensor in enumerate(evidence.program.tensors)}

    def proposed(*gains: tuple[str, bool, float]) -> list[tuple[list[str], int | None, float]]:
        moves = [Move(number[name], to_fast, -gain, 0.0) for name, to_fast, gain in gains]
        monkeypatch.setattr(evidence, "moves", lambda trial: moves)
        found = [*move_harmful_last(evidence, evidence.incumbent, random.Random(0))]
        assert all(each.way == "tighten" and not each.knobs.first for each in found)
        return [(sorted(each.knobs.last), each.knobs.capacity, each.gain) for each in found]

    once = [(["c"], 2 << 20, 200.0)]
    assert proposed(("c", False, 200), ("d", True, 50), ("a", False, -10)) == 3 * once
    assert proposed(("c", False, 200), ("a", False, 10)) == [(["a", "c"], 1 << 20, 210.0), *2 * once]
    # Nothing would be left, or nothing harms.
    assert proposed(("c", False, 9), ("b", False, 8), ("a", False, 7)) == [(["b", "c"], 1 << 20, 17.0), (["c"], 2 << 20, 9.0)]
    assert proposed(("d", True, 50), ("a", False, -10)) == []
    # The loop tries it.
    monkeypatch.setattr(Evidence, "moves", lambda self, trial: [Move(number["c"], False, -200.0, 0.0)])
    tried = [trial.steer for trial in tune_workload(WORKLOAD).trials if trial.way == "tighten"]
    assert tried
    assert all(steer.startswith("1 last, ") and steer.endswith(" MiB") for steer in tried)


@pytest.mark.slow
def test_plans_for_less_room(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA keeps 3 MiB; a plan for less keeps less, and no limit is tried twice."""
    monkeypatch.setattr("stowplan.backends.xla.proposals.heuristic_plan", PLANNED)
    evidence = evidence_of(tune_workload(WORKLOAD, compiles=2, folder=tmp_path), tmp_path)
    default = evidence.trials[0]
    proposed = [*fit_to_capacity(evidence, evidence.incumbent, random.Random(0))]
    assert [each.knobs.capacity for each in proposed] == [part << 10 for part in (2304, 2688, 1536, 768)]
    kept = evidence.fast_tensors(default.assignment)
    for each in proposed:
        assert each.way == "fit"
        assert not each.knobs.first & evidence.names(kept)
        assert each.knobs.last <= evidence.names(kept)
    # No array fits into the least of them.
    assert proposed[-1].knobs.last == evidence.names(kept)
    evidence.trials.append(default._replace(knobs=proposed[0].knobs))
    assert [each.knobs.capacity for each in fit_to_capacity(evidence, evidence.incumbent, random.Random(0))] == [
        each.knobs.capacity for each in proposed[1:]
    ]


@pytest.mark.slow
def test_plans_that_begin_from_what_xla_made(fake: Fake, tmp_path: Path) -> None:
    evidence = evidence_of(tune_workload(WORKLOAD, compiles=1, folder=tmp_path), tmp_path)
    default = evidence.trials[0]
    found = PLANNED(evidence, random.Random(0), default)
    theirs = evidence.scorer.plan(default.compiled, found.problem).plan
    assert (found.problem.evictions, found.problem.prefetches) == ("between_steps", "sliced")
    assert found.plan.objective <= theirs.objective
    within = evidence.scorer.plan(default.compiled).plan
    assert evidence.scorer.most_bytes(within) == default.score.fast_bytes == 3 << 20
    kept = {residency.tensor for residency in within.residencies}
    assert evidence.scorer.most_bytes(within, kept) == 0


def evidence_of(tuning: Tuning, folder: Path) -> Evidence:
    """The default and all in slow memory, as a run has them."""
    default = tuning.compiled(folder, 0)
    evidence = Evidence(default, load_target("tpu-v4"))
    evidence.add(DEFAULT, default)
    if len(tuning.trials) > 1:
        evidence.add(ALL_SLOW, tuning.compiled(folder, 1))
    return evidence


def test_kernels_with_another_scoped_limit_are_another_program(fake: Fake, tmp_path: Path) -> None:
    """Their cycles are others even where flags leave the text as it is; flags that change neither share what is known."""
    tuning = tune_workload(WORKLOAD, target="tpu-v5e", compiles=1, folder=tmp_path)
    compiled = tuning.compiled(tmp_path, 0)
    with Compiler(WORKLOAD, target="tpu-v5e", folder=tmp_path) as compiler:
        run = Run(compiler, load_target("tpu-v5e"), Budget(4, Deadline()), random.Random(0))
        run._add(Proposal("default", DEFAULT), compiled)
        plain, same, other = (
            run._program_of(DEFAULT.with_flags(flags), compiled) for flags in ({}, {"xla_idle": True}, {SCOPED_OPTION: "8192"})
        )
    assert same is plain
    assert other is not plain
    assert other.evidence.capacity - plain.evidence.capacity == 8 << 20


def test_plans_of_the_real_heuristics(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan keeps goes first, in one of the forms."""
    monkeypatch.setattr("stowplan.backends.xla.proposals.heuristic_plan", PLANNED)
    evidence = evidence_of(tune_workload(WORKLOAD, compiles=2, folder=tmp_path), tmp_path)
    kept = PLANNED(evidence, random.Random(0), evidence.incumbent).tensors
    assert kept
    proposed = [each.knobs for each in follow_plan(evidence, evidence.incumbent, random.Random(0))]
    assert evidence.names(kept) in [knobs.first for knobs in proposed]


def test_an_assignment_is_compiled_once(fake: Fake, tmp_path: Path) -> None:
    """Many settings come to the same; the compiler is asked for one of them."""
    tuning = tune_workload(WORKLOAD, compiles=14, folder=tmp_path)
    found = [tuning.compiled(tmp_path, number).assignment_digest for number in range(len(tuning.trials))]
    assert len(found) == len({*found})
    assert len(fake.previews) > len(found)
