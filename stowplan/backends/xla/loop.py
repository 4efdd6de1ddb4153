"""The loop: compile, learn what the compile cost, steer again; the best of all compiles, XLA's default among them."""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stowplan.arguments import number, whole
from stowplan.backends.xla.child import DUMPED, Option
from stowplan.backends.xla.compiler import COMPILE_LIMIT, MEMORY_LIMIT, Compiler
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.experience import Experience, shipped
from stowplan.backends.xla.flags import flags_of
from stowplan.backends.xla.planning import planned
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.proposals import FLAG_WORTH, WAITING, WAYS, Proposal, Way, flagged, harm_last, plan_first, waits
from stowplan.backends.xla.score import Score
from stowplan.backends.xla.steer import ALL_SLOW, DEFAULT, SCOPED_OPTION, STEERED, Flags, Steer
from stowplan.backends.xla.store import Compiled
from stowplan.backends.xla.tuning import TrialRecord, Tuning, TuningProgress
from stowplan.backends.xla.workload import Workload, of_function
from stowplan.deadline import Deadline
from stowplan.errors import InputError, TimeLimitError, UsageError, brief
from stowplan.hardware.costs.signatures import LatencyTable, Predictor
from stowplan.hardware.targets import Target, XlaChip, load_target, xla_chip

#: Compiles unless told otherwise, the default and all in slow memory included.
COMPILES = 10

#: What one compile takes: cores, and bytes of memory.
_CORES_OF_A_COMPILE, _MEMORY_OF_A_COMPILE = 2, 4 << 30

#: After so many compiles it is said where there is nothing to gain.
_ENOUGH_TO_TELL = 2

#: How many tries what a way is worth before anything is known of it counts for.
_PRIOR_TRIES = 2.0
#: Weight of what is not known of a way against what is, as in UCB1 (Auer, Cesa-Bianchi and Fischer 2002).
_CURIOSITY = 0.35


@dataclass(eq=False)
class _Arm:
    """A way of steering, or a flag, and what it has been worth."""

    name: str
    propose: Callable[[Evidence], Iterator[Proposal]]
    wins: float
    tries: float = _PRIOR_TRIES

    def index(self, total: float) -> float:
        return self.wins / self.tries + _CURIOSITY * math.sqrt(math.log(max(total, 2.0)) / self.tries)


def tune(
    function: Callable[..., Any],
    *arguments: Any,
    donate_argnums: int | tuple[int, ...] = (),
    out_shardings: Any = None,
    **options: Any,
) -> Tuning:
    """Options with which XLA compiles a JAX function to fewer cycles, by its own estimates.

    Parameters
    ----------
    function
        What ``jax.jit`` takes; not yet jitted. It is sent to a compiling process, and may be a closure.
    arguments
        Trees of arrays or ``jax.ShapeDtypeStruct``; only shapes, types and shardings count.
    donate_argnums, out_shardings
        As in ``jax.jit``.
    options
        As of :func:`tune_workload`.

    Returns
    -------
    Tuning
        With ``compiler_options`` to compile with, and all trials.

    Raises
    ------
    MissingDependencyError
        Without jax or libtpu.
    CompileError
        A function that does not trace, or that XLA does not compile even by default; the message is its own, shortened.
    UsageError
        Arguments that make no sense.
    """
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    return tune_workload(of_function(function, *arguments, donated=donated, out_shardings=out_shardings), **options)


def tune_workload(
    workload: Workload,
    *,
    target: str = "tpu-v4",
    compiles: int = COMPILES,
    time_limit: float | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    jobs: int = 1,
    compile_limit: float = COMPILE_LIMIT,
    memory_limit: int = MEMORY_LIMIT,
    table: LatencyTable | None = None,
    predictor: Predictor | None = None,
    experience: Experience | None = None,
    compiler_options: Mapping[str, Option] | None = None,
    on_progress: Callable[[TuningProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> Tuning:
    """Tune a workload; :func:`tune` with the arguments said by name.

    Parameters
    ----------
    workload
        What is compiled.
    target
        Machine, by the name of its target.
    compiles
        Compiles at most, those found in ``folder`` included, so that a run taken up again ends where it would have ended.
    time_limit
        Seconds; a compile under way when they are over is ended. None for no limit.
    folder
        Where results are kept: a run that was interrupted goes on there, and other runs of the function share them.
    seed
        Of what is chosen by lot.
    jobs
        Compiles side by side; 0 for as many as cores and memory allow. Trials depend on it: the next ones are chosen together.
    compile_limit, memory_limit
        Seconds and bytes that one compile may take.
    table, predictor
        Cycles known beforehand, and what predicts others; nothing, and the one of the package, where None.
    experience
        What earlier programs taught; what comes with the package where None.
    compiler_options
        The user's own, kept in every compile and in the result.
    on_progress
        Called after each compile.
    cancel
        Setting this event returns the best so far.

    Returns
    -------
    Tuning
        Trials in the order they were made.

    Raises
    ------
    CompileError, MissingDependencyError, UsageError
        As of :func:`tune`.
    TimeLimitError
        The time was over before XLA's default was compiled.
    """
    whole("{} compiles", compiles, least=1)
    whole("seed {}", seed, least=0)
    whole("{} jobs", jobs, least=0)
    number("a limit of {} s for one compile", compile_limit, least=0, or_least=False)
    if time_limit is not None:
        number("a time limit of {} s", time_limit, least=0, or_least=False)
    taken = sorted({*STEERED, *DUMPED} & {*(compiler_options or {})})
    if taken:
        raise UsageError(f"found compiler option {taken[0]}, expected another: tuning sets it")
    deadline = Deadline(time_limit, cancel)
    found = load_target(target)
    with Compiler(
        workload,
        target=target,
        folder=folder,
        compile_limit=compile_limit,
        memory_limit=memory_limit,
        options=compiler_options,
    ) as compiler:
        run = _Run(compiler, found, deadline, compiles, random.Random(seed), on_progress, jobs or jobs_that_fit())
        run.all(table, predictor, shipped() if experience is None else experience)
        return run.result()


def jobs_that_fit() -> int:
    """Compiles that cores and free memory allow side by side: each keeps some two cores busy."""
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)) // _CORES_OF_A_COMPILE, memory // _MEMORY_OF_A_COMPILE))


def _proposed(way: Way, chance: random.Random, evidence: Evidence) -> Iterator[Proposal]:
    return way(evidence, chance)


@dataclass
class _Run:
    """One run of the loop, as far as it has come."""

    _compiler: Compiler
    _target: Target
    _deadline: Deadline
    _budget: int
    _chance: random.Random
    _on_progress: Callable[[TuningProgress], None] | None
    _jobs: int = 1
    _known: tuple[LatencyTable | None, Predictor | None] = (None, None)
    _records: list[TrialRecord] = field(default_factory=list)
    _steers: list[Steer] = field(default_factory=list)
    _best: int = 0
    _notes: list[str] = field(default_factory=list)
    _stop: str = "compiles"
    _evidence: Evidence | None = None
    """Of the program without flags."""
    _programs: dict[Flags, Evidence] = field(default_factory=dict)
    """Evidence by the flags that make a program; the same for flags that make the same."""

    def all(self, table: LatencyTable | None, predictor: Predictor | None, experience: Experience) -> None:
        """The opening, then the loop."""
        first = self._compiler.compile(DEFAULT.compiler_options(), self._deadline)
        if first.error:
            raise CompileError(f"{self._compiler.workload.name}: {first.error}")
        self._known = table, predictor
        self._evidence = self._evidence_of(DEFAULT, first)
        default = self._add("default", DEFAULT, first)
        self._notes += [] if default is None else default.score.notes()
        try:
            self._loop(self._evidence, default, experience)
        except TimeLimitError:
            self._stop = "cancelled" if self._deadline.was_cancelled else "time_limit"
        except (CompileError, InputError) as error:
            # What was found before is not lost by it.
            self._stop = "failed"
            self._notes.append(str(error))

    def _evidence_of(self, steer: Steer, compiled: Compiled) -> Evidence:
        """That of the program that a steer's flags make; the same for flags that leave text and scoped limit as they are."""
        if steer.flags in self._programs:
            return self._programs[steer.flags]
        text, scoped = compiled.program_path.read_bytes(), dict(steer.flags).get(SCOPED_OPTION)
        alike = (each for flags, each in self._programs.items() if dict(flags).get(SCOPED_OPTION) == scoped)
        same = next((each for each in alike if each.program_text == text), None)
        if same is None:
            target = self._target
            if scoped is not None and self._chip.scoped is not None:
                left = target.fast_memory.capacity + self._chip.scoped - (int(scoped) << 10)
                target = target.with_capacity(max(left, 1))
            same = Evidence(compiled, target, *self._known)
            same.deadline = self._deadline
        self._programs[steer.flags] = same
        return same

    @property
    def _chip(self) -> XlaChip:
        return xla_chip(self._target)

    def result(self) -> Tuning:
        """What came of it so far."""
        return Tuning(
            name=self._compiler.workload.name,
            target=self._target.name,
            trials=tuple(self._records),
            best=self._best,
            compiler_options={**self._compiler.options, **self._steers[self._best].compiler_options()},
            stop_reason=self._stop,
            seconds=round(self._deadline.elapsed, 3),
            processor_seconds=round(self._compiler.processor_seconds, 3),
            compiles_run=self._compiler.compiles,
            notes=tuple(self._notes),
        )

    def _loop(self, evidence: Evidence, default: Trial | None, experience: Experience) -> None:
        if default is not None and self._chip.harm:
            all_slow = self._try(Proposal("all_slow", ALL_SLOW))
            if all_slow is not None:
                self._try(Proposal("harm_last", harm_last(evidence, default, all_slow)))
            if len(self._records) < self._budget and not self._deadline.expired:
                self._try(Proposal("plan_first", plan_first(evidence, planned(evidence, "table", self._chance).tensors)))
        arms = self._arms(default, experience)
        while len(self._records) < self._budget and not self._deadline.expired:
            if len(self._records) == _ENOUGH_TO_TELL and self._has_nothing_to_gain(evidence):
                self._stop = "nothing_to_gain"
                return
            best = self._best_evidence
            before = best.incumbent.score.total
            chosen = self._chosen(arms, best)
            if not chosen:
                self._stop = "exhausted"
                return
            for arm, trial in zip(chosen, self._try_all([*chosen.values()]), strict=True):
                arm.tries += 1
                arm.wins += trial is not None and trial.score.total < before
        if self._deadline.expired:
            self._stop = "cancelled" if self._deadline.was_cancelled else "time_limit"

    @property
    def _best_evidence(self) -> Evidence:
        """That of the program whose best trial is the best of all."""
        found = [each for each in self._programs.values() if each.trials]
        return min(found, key=lambda each: each.incumbent.score.total)

    def _arms(self, default: Trial | None, experience: Experience) -> list[_Arm]:
        """What acts on this chip, with what earlier programs say of it."""
        # Where nothing waits there is no use for overlaps, and a way that is never tried only makes the loop more curious about
        # the others.
        is_waiting = default is not None and waits(default)
        arms = [
            _Arm(name, partial(_proposed, way, self._chance), _PRIOR_TRIES * worth)
            for name, way, steer, worth in WAYS
            if steer in self._chip.steers and (way not in WAITING or is_waiting)
        ]
        own = self._compiler.options.keys()
        arms += [
            _Arm(name, partial(flagged, name, options), _PRIOR_TRIES * FLAG_WORTH)
            for name, options in flags_of(self._chip).items()
            if not own & options.keys()
        ]
        if default is not None and self._evidence is not None:
            known = experience.about(self._target.name, self._evidence.features(default))
            for arm in arms:
                wins, tries = known.get(arm.name, (0.0, 0.0))
                arm.wins, arm.tries = arm.wins + wins, arm.tries + tries
        return arms

    def _has_nothing_to_gain(self, evidence: Evidence) -> bool:
        """Whether nearly all traffic is in fast memory with room to spare, nothing waits, and what was tried gave nothing."""
        reason = evidence.why_nothing() if self._best == 0 else ""
        if reason:
            self._notes.append(f"nothing to gain here: {reason}")
        return bool(reason)

    def _chosen(self, arms: list[_Arm], best: Evidence) -> dict[_Arm, Proposal]:
        """What to compile next, side by side: of the arms that promise most one proposal each."""
        total = sum(arm.tries for arm in arms)
        idle = best.incumbent.steer if best.order_is_idle() else None
        chosen: dict[_Arm, Proposal] = {}
        for arm in sorted(arms, key=lambda arm: -arm.index(total)):
            known = [*self._steers, *(each.steer for each in chosen.values())]
            for each in arm.propose(best):
                # Where another order than the incumbent's changes nothing, it takes more than that.
                if each.steer not in known and (idle is None or not each.steer.differs_in_order(idle)):
                    chosen[arm] = each
                    break
            if len(chosen) == min(self._jobs, self._budget - len(self._records)):
                break
        return chosen

    def _try(self, proposal: Proposal) -> Trial | None:
        """Compile a steer that is new; None where it is not, or nothing is left of the budget, or XLA refuses it."""
        if proposal.steer in self._steers or len(self._records) >= self._budget:
            return None
        return self._try_all([proposal])[0]

    def _try_all(self, proposals: list[Proposal]) -> list[Trial | None]:
        """Compile steers side by side; None for those that XLA refuses."""
        wanted = [(each.steer.compiler_options(), self._alike(each.steer)) for each in proposals]
        found = self._compiler.compile_all(wanted, self._deadline)
        trials = []
        for proposal, compiled in zip(proposals, found, strict=True):
            if isinstance(compiled, (CompileError, TimeLimitError)):
                if self._deadline.expired:
                    raise compiled
                # The compiler died of this steer, or took longer than it may; of others it may not.
                trials.append(self._add(proposal.way, proposal.steer, str(compiled), proposal.gain))
            else:
                trials.append(self._add(proposal.way, proposal.steer, compiled, proposal.gain))
        return trials

    def _alike(self, steer: Steer) -> list[Compiled]:
        """Results with the same flags: where their assignment is another's, so are their kernels."""
        evidence = self._programs.get(steer.flags)
        trials = evidence.trials if evidence is not None else []
        return [trial.compiled for trial in trials if trial.steer.flags == steer.flags]

    def _add(self, way: str, steer: Steer, compiled: Compiled | str, gain: float = 0.0) -> Trial | None:
        """Take a result, or the reason why there is none, into records and evidence."""
        trial, score, error = None, Score(0, 0), compiled if isinstance(compiled, str) else compiled.error
        if not isinstance(compiled, str) and not error:
            try:
                trial = self._evidence_of(steer, compiled).add(steer, compiled)
                score = trial.score
            except InputError as unreadable:
                if not self._records:
                    raise
                error = str(unreadable)
        base = self._records[0].total if self._records else score.total
        record = TrialRecord(
            way=way,
            first=len(steer.first),
            last=len(steer.last - steer.first),
            steer=steer.describe(),
            cycles=score.cycles,
            stall_cycles=score.stall_cycles,
            copy_cycles=score.copy_cycles,
            careful_copy_cycles=score.careful_copy_cycles,
            expected_gain=round(gain / base, 6) if base else 0.0,
            error=brief(error),
            processor_seconds=0.0 if isinstance(compiled, str) else compiled.record.processor_seconds,
            result="" if error or isinstance(compiled, str) else f"{compiled.folder.parent.name}/{compiled.folder.name}",
        )
        self._records.append(record)
        self._steers.append(steer)
        if trial is not None and record.total < self._records[self._best].total:
            self._best = len(self._records) - 1
        if self._on_progress is not None:
            best = 1 - self._records[self._best].total / base if base else 0.0
            self._on_progress(TuningProgress(self._deadline.elapsed, record, len(self._records), self._budget, best))
        return trial
