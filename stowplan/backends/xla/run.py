"""The tuning loop: compiles XLA's default, learns from its cycles, and tries other options until the budget is used up.

A *setting* (``knobs``) changes how XLA assigns values to fast memory, and a *flag* changes the program before that; a *preview*
is a compilation that ends right after the assignment. The *default* is the compilation without any option, and the *incumbent*
the best compilation so far. :mod:`stowplan.backends.xla.bandit` chooses the next compilations; an *arm* of the bandit is a
flag, or stands for settings of the best program. A *trial* is a full compilation, and a *way* is a strategy that proposes
settings (:mod:`stowplan.backends.xla.proposals`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from stowplan.backends.xla.bandit import PREVIEWS_OF_A_COMPILE, PRIOR_TRIES, Arm, Bandit, Budget, FlagToTry, SettingSearch
from stowplan.backends.xla.compiler import Compiler
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.experience import Experience, Improvement
from stowplan.backends.xla.knobs import ALL_SLOW, BETWEEN, DEFAULT, SCOPED_OPTION, UNSEEN, Flags, Knobs, between, flags_of
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.proposals import WAYS, Proposal, Way
from stowplan.backends.xla.score import Score
from stowplan.backends.xla.store import Compiled
from stowplan.backends.xla.tuning import TrialRecord, Tuning, TuningProgress
from stowplan.errors import InputError, TimeLimitError, VerificationError, brief
from stowplan.hardware.costs.signatures import LatencyTable, Predictor
from stowplan.hardware.targets import Target, xla_chip

#: Number of compilations after which the loop may stop because no setting is expected to gain anything.
_MIN_TRIALS_TO_STOP = 2

#: If no preview promises to save this share of the incumbent's cycles, at most this number of further previews are made.
_MIN_GAIN, _EXTRA_PREVIEWS = 0.001, 8
#: A flag is not tried if its preview loses more than the first share of the default's cycles. With settings that were found for
#: the flag, it must be expected to save at least the second share of the incumbent's cycles.
_MAX_LOSS_OF_A_FLAG, _MIN_GAIN_OF_A_FLAG = 0.1, 0.0
#: The *scoped limit* is the fast memory that is reserved for kernels. If another limit loses no more than the first share of
#: the incumbent's cycles, the limit halfway between it and XLA's own is tried as well. The second share is the further saving
#: that is expected of it.
_MAX_LOSS_OF_A_LIMIT, _EXPECTED_SAVING_BETWEEN = 0.01, 0.02
#: If no preview promises anything, previews are ranked by their cycles minus this share of their uncertainty.
_OPTIMISM = 0.25


class Run:
    """One run of the tuner.

    Parameters
    ----------
    compiler, target
        The compiler, and the machine for which it compiles.
    budget
        How many compilations and how much time the run may use.
    generator
        Source of all random choices.
    on_progress
        Is called after each compilation.
    table, predictor
        Cycles of instructions that are known beforehand, None if there are none; and a model that predicts other cycles, None
        for the model that this package has for the chip.
    """

    def __init__(
        self,
        compiler: Compiler,
        target: Target,
        budget: Budget,
        generator: random.Random,
        on_progress: Callable[[TuningProgress], None] | None = None,
        table: LatencyTable | None = None,
        predictor: Predictor | None = None,
    ):
        self._compiler, self._target, self._budget, self._generator = compiler, target, budget, generator
        self._on_progress, self._table, self._predictor = on_progress, table, predictor
        self._chip = xla_chip(target)
        self._bandit = Bandit()
        self._programs: dict[Flags, SettingSearch] = {}
        """From flags to the program that they make; flags that make the same program share one entry."""
        self._trials: list[tuple[TrialRecord, Knobs]] = []
        """All compilations, XLA's default first."""
        self._best = 0
        """Index of the best trial."""
        self._notes: list[str] = []

    def tune(self, experience: Experience) -> Tuning:
        """Compile XLA's default, then run the loop; returns the trials and the best of them.

        If fast memory can make a program slower on this chip, the second compilation has all values in slow memory. If an error
        ends the loop later, the trials before it are returned, and a note gives the error.

        Parameters
        ----------
        experience
            Results of earlier programs.

        Raises
        ------
        CompileError
            XLA does not compile the program even with default options.
        TimeLimitError
            The deadline, or the limit on one compilation, was reached before XLA's default was compiled.
        InputError
            The default compilation cannot be read or has no estimates of cycles, or it cannot be stored.
        UsageError
            The function does not fit the machine.
        VerificationError
            XLA's placement of values in the default compilation breaks rules of stowplan's model, and cannot be mended.
        """
        first = self._compiler.compile(DEFAULT.compiler_options(), self._budget.deadline)
        if first.error:
            raise CompileError(f"{self._compiler.workload.name}: {first.error}")
        default = self._add(Proposal("default", DEFAULT), first)
        assert default is not None, "a first result that cannot be read is an error"
        self._notes += default.score.notes()
        try:
            if self._chip.harm and self._budget.left >= 1:
                self._try([Proposal("all_slow", ALL_SLOW)])
            self._find_flags(default, experience)
            stop = self._loop(default)
        except (CompileError, InputError, TimeLimitError, VerificationError) as error:
            # The trials before the error are still returned.
            stop = "failed"
            self._notes += [] if self._budget.deadline.expired else [str(error)]
        if self._budget.deadline.expired and stop in ("compiles", "failed"):
            stop = self._budget.out_of_time
        return self._result(stop)

    def _result(self, stop: str) -> Tuning:
        """Returns the result of the run, which ended for the reason ``stop``."""
        return Tuning(
            name=self._compiler.workload.name,
            target=self._target.name,
            trials=tuple(record for record, _ in self._trials),
            best=self._best,
            compiler_options={**self._compiler.options, **self._trials[self._best][1].compiler_options()},
            stop_reason=stop,
            seconds=round(self._budget.deadline.elapsed, 3),
            processor_seconds=round(self._compiler.processor_seconds, 3),
            compiles_run=self._compiler.compiles,
            previews=self._budget.previewed,
            notes=tuple(self._notes),
        )

    def _loop(self, default: Trial) -> str:
        """Compile the most promising settings until the budget is used up; returns the reason why the loop stopped."""
        while self._budget.is_open:
            before = self._incumbent.score.total
            chosen = self._choose()
            promises = self._is_promising([proposal for _, proposal in chosen])
            if not promises and (reason := self._reason_to_stop):
                self._notes.append(f"nothing to gain here: {reason}")
                return "nothing_to_gain"
            if not chosen:
                self._notes += self._best_program.refusals
                return "exhausted"
            for (arm, _), trial in zip(chosen, self._try([proposal for _, proposal in chosen]), strict=True):
                self._bandit.count(arm, trial is not None and trial.score.total < before)
                if trial is not None and trial.score.total <= (1 + _MAX_LOSS_OF_A_LIMIT) * before:
                    self._add_between(arm.name, 1 - trial.score.total / default.score.total)
        return "compiles"

    @property
    def _best_program(self) -> SettingSearch:
        """The program with the best trial of all."""
        programs = [program for program in self._programs.values() if program.evidence.trials]
        return min(programs, key=lambda program: program.evidence.incumbent.score.total)

    @property
    def _incumbent(self) -> Trial:
        """The best compilation from which other settings can start."""
        return self._best_program.evidence.incumbent

    @property
    def _reason_to_stop(self) -> str:
        """Why there is nothing to gain; empty if there may be something.

        There is nothing to gain if, after at least two compilations, none was better than the default, and
        :meth:`~stowplan.backends.xla.evidence.Evidence.why_nothing` gives a reason. It is always empty if fast memory can make
        a program slower on the chip.
        """
        is_known = len(self._trials) >= _MIN_TRIALS_TO_STOP and self._best == 0 and not self._chip.harm
        return self._programs[()].evidence.why_nothing() if is_known else ""

    def _is_promising(self, proposals: list[Proposal]) -> bool:
        """Whether any of these settings is expected to save enough for a compilation."""
        least = _MIN_GAIN * self._incumbent.score.total
        return any(proposal.gain >= least for proposal in proposals)

    # ------------------------------------------------------------------------------------------------------- flags and settings

    def _find_flags(self, default: Trial, experience: Experience) -> None:
        """Add the flags of the chip that change the program, ranked by their previews and by results of earlier programs."""
        user_options = self._compiler.options.keys()
        flags = {name: options for name, options in flags_of(self._chip).items() if not user_options & options.keys()}
        if self._budget.left < 1 + len(flags) / PREVIEWS_OF_A_COMPILE:
            return
        program_features = self._target.name, self._programs[()].evidence.features(default)
        self._bandit.knobs_save = experience.improvement(self._bandit.knobs.name, *program_features, None).saved
        settings = [DEFAULT.with_flags(options) for options in flags.values()]
        for (name, options), knobs, preview in zip(flags.items(), settings, self._make_previews(settings), strict=True):
            is_idle = not preview.error and preview.assignment_digest == default.compiled.assignment_digest
            if preview.error or (is_idle and SCOPED_OPTION not in options):
                self._notes += [f"{name}: {preview.error}"] if preview.error else []
                continue
            promised = 1 - self._program_of(knobs, preview).evidence.preview(knobs, preview).score.total / default.score.total
            expected = experience.improvement(name, *program_features, None if name in UNSEEN else promised)
            if expected.saved >= _MIN_GAIN if name in UNSEEN else promised >= -_MAX_LOSS_OF_A_FLAG:
                self._bandit.add(name, FlagToTry(options, expected, promised, preview), expected.saved)
        self._bandit.learn(experience.about(*program_features))

    def _add_between(self, flag: str, saved: float) -> None:
        """Add the scoped limit halfway between XLA's own and that of a flag, if the flag sets one.

        Parameters
        ----------
        saved
            Share of the default's cycles that the flag saved; negative if it lost.
        """
        options = between(self._chip, self._target.fast_memory.capacity, flags_of(self._chip).get(flag, {}))
        if options is not None:
            expected = saved + _EXPECTED_SAVING_BETWEEN
            self._bandit.add(BETWEEN, FlagToTry(options, Improvement(expected, expected), expected))

    def _choose(self) -> list[tuple[Arm, Proposal]]:
        """Choose the next compilations: flags, each of them once, and the settings with the best previews."""
        best, count = self._best_program, self._budget.side_by_side
        incumbent_cycles = best.evidence.incumbent.score.total
        chosen: list[tuple[Arm, Proposal]] = []
        unlikely: list[tuple[Arm, Proposal]] = []
        first = self._bandit.first(self._saved_by_knobs)
        for arm in self._bandit.order(first, count):
            if len(chosen) == count:
                break
            if arm is self._bandit.knobs:
                proposals, least = self._proposals_of_knobs(best), _MIN_GAIN
            else:
                proposals, least = self._proposals_of_flag(arm, best, is_alone=arm in first)[:1], _MIN_GAIN_OF_A_FLAG
            likely = [(arm, proposal) for proposal in proposals if proposal.gain >= least * incumbent_cycles]
            unlikely += [(arm, proposal) for proposal in proposals if proposal.gain < least * incumbent_cycles]
            # Settings that promise little are put aside, so that flags that come later can still be compiled at the same time.
            chosen += likely[: count - len(chosen)]
        return chosen or unlikely[:count]

    @property
    def _saved_by_knobs(self) -> float:
        """Share of the default's cycles that settings of the best program save in addition to its flags."""
        evidence, default = self._best_program.evidence, self._trials[0][0].total
        alone = [trial.score.total for trial in evidence.trials if trial.knobs == DEFAULT.with_flags(dict(trial.knobs.flags))]
        return (min(alone, default=default) - evidence.incumbent.score.total) / default

    def _proposals_of_knobs(self, best: SettingSearch) -> list[Proposal]:
        """Settings of the best program, ranked by their previews, the best first.

        If no preview promises anything, even after further previews, uncertain settings are ranked higher.
        """
        incumbent_cycles = best.evidence.incumbent.score.total
        best.preview(self._budget.previews_of_a_round, self._make_previews)
        if not self._bandit.flags and not self._is_promising(best.worth_compiling(incumbent_cycles)[:1]):
            best.preview(min(_EXTRA_PREVIEWS, self._budget.previews), self._make_previews)
        proposals = best.worth_compiling(incumbent_cycles)
        return (
            proposals
            if self._is_promising(proposals[:1]) or self._reason_to_stop
            else best.worth_compiling(incumbent_cycles, _OPTIMISM)
        )

    def _proposals_of_flag(self, arm: Arm, best: SettingSearch, is_alone: bool) -> list[Proposal]:
        """Settings of the program that a flag makes together with the incumbent's flags, by their previews.

        If the program stays the same, the incumbent's setting with its names of values is one of them.

        Parameters
        ----------
        is_alone
            Whether only the flag itself is tried, without further settings.
        """
        incumbent = best.evidence.incumbent
        flag = self._bandit.flags[arm]
        plain = incumbent.knobs.with_flags(flag.options)
        known_preview = flag.preview if plain == DEFAULT.with_flags(flag.options) else None
        if known_preview is None and not self._budget.previews:
            return []
        del self._bandit.flags[arm]
        preview = known_preview or self._make_previews([plain])[0]
        if preview.error:
            self._notes.append(f"{arm.name}: {preview.error}")
            return []
        program = self._program_of(plain, preview)
        program.take(Proposal(arm.name, plain), preview)
        if not is_alone:
            is_same = program.evidence.program_text == best.evidence.program_text
            same_names = [msgspec.structs.replace(incumbent.knobs, flags=plain.flags)] if is_same else []
            count = min(_EXTRA_PREVIEWS - 1, self._budget.previews)
            program.preview(count, self._make_previews, [Proposal(arm.name, knobs) for knobs in same_names])
        incumbent_cycles = incumbent.score.total
        proposals = (proposal for proposal in program.worth_compiling(incumbent_cycles) if proposal.knobs.flags == plain.flags)
        if is_alone:
            # The previews of some flags show only their cost, so the expectation from earlier programs is used instead.
            return [
                proposal._replace(way=arm.name, gain=round(flag.expected.saved * incumbent_cycles)) for proposal in proposals
            ]
        expected_beyond_preview = round((flag.expected.saved - flag.promised) * incumbent_cycles)
        return [proposal._replace(way=arm.name, gain=proposal.gain + expected_beyond_preview) for proposal in proposals]

    # --------------------------------------------------------------------------------------------------- previews and compiles

    def _program_of(self, knobs: Knobs, compiled: Compiled) -> SettingSearch:
        """Returns the program that a setting's flags make.

        Flags that change neither the text of the program nor the scoped limit share a program.
        """
        if knobs.flags in self._programs:
            return self._programs[knobs.flags]
        text, scoped = compiled.program_path.read_bytes(), dict(knobs.flags).get(SCOPED_OPTION)
        same_limit = (program for flags, program in self._programs.items() if dict(flags).get(SCOPED_OPTION) == scoped)
        same = next((program for program in same_limit if program.evidence.program_text == text), None)
        if same is None:
            target = self._target
            if scoped is not None and self._chip.scoped is not None:
                remaining = target.fast_memory.capacity + self._chip.scoped - (int(scoped) << 10)
                target = target.with_capacity(max(remaining, 1))
            if self._programs:
                # Many kernels are the same as in the program without flags, so that its cycles are a good start.
                plain = self._programs[()].evidence
                evidence = Evidence(compiled, target, plain.table, self._predictor, plain.pace)
            else:
                evidence = Evidence(compiled, target, self._table, self._predictor)
            evidence.deadline = self._budget.deadline
            # Only ways whose options have an effect on this chip are used.
            ways = (way for way in WAYS if way.knob in self._chip.steers)
            arms: dict[Arm, Way] = {Arm(way.name, PRIOR_TRIES * way.worth): way.way for way in ways}
            same = SettingSearch(evidence, arms, self._generator)
        self._programs[knobs.flags] = same
        return same

    def _make_previews(self, settings: Sequence[Knobs]) -> list[Compiled]:
        """Previews of settings, in their order; they are charged to the budget."""
        self._budget.previewed += len(settings)
        return self._compiler.previews([knobs.compiler_options() for knobs in settings], self._budget.deadline)

    def _try(self, proposals: list[Proposal]) -> list[Trial | None]:
        """Compile settings at the same time; the result is None for a setting that XLA refuses."""
        deadline = self._budget.deadline
        trials = []
        answers = self._compiler.compile_all([proposal.knobs.compiler_options() for proposal in proposals], deadline)
        for proposal, answer in zip(proposals, answers, strict=True):
            if isinstance(answer, (CompileError, TimeLimitError)) and deadline.expired:
                raise answer
            # The compiler may have died or timed out because of this setting, so the run continues with others.
            trials.append(self._add(proposal, answer))
        return trials

    def _add(self, proposal: Proposal, compiled: Compiled | CompileError | TimeLimitError) -> Trial | None:
        """Record a result, or the reason why there is none, in the trials and in the evidence."""
        knobs, trial, score = proposal.knobs, None, Score(0, 0)
        result = compiled if isinstance(compiled, Compiled) else None
        error = str(compiled) if result is None else result.error
        if result is not None and not error:
            try:
                trial = self._program_of(knobs, result).add(knobs, result)
                score = trial.score
            except (InputError, VerificationError) as unreadable:
                if not self._trials:
                    raise
                error = str(unreadable)
        if error and knobs.flags in self._programs:
            self._programs[knobs.flags].drop(knobs)
        base = self._trials[0][0].total if self._trials else score.total
        record = TrialRecord(
            way=proposal.way,
            first=len(knobs.first),
            last=len(knobs.last - knobs.first),
            steer=knobs.describe(),
            cycles=score.cycles,
            stall_cycles=score.stall_cycles,
            copy_cycles=score.copy_cycles,
            careful_copy_cycles=score.careful_copy_cycles,
            expected_gain=round(proposal.gain / base, 6) if base else 0.0,
            previews=self._budget.previewed,
            error=brief(error),
            processor_seconds=0.0 if result is None else result.record.processor_seconds,
            result="" if error or result is None else f"{result.folder.parent.name}/{result.folder.name}",
        )
        self._trials.append((record, knobs))
        self._budget.compiled += 1
        if trial is not None and record.total < self._trials[self._best][0].total:
            self._best = len(self._trials) - 1
        if self._on_progress is not None:
            best = 1 - self._trials[self._best][0].total / base if base else 0.0
            progress = TuningProgress(self._budget.deadline.elapsed, record, len(self._trials), self._budget.compiles, best)
            self._on_progress(progress)
        return trial
