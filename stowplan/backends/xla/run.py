"""One run: compile XLA's default, learn what the compile cost, and set knobs again, until the budget is spent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from stowplan.backends.xla.bandit import PREVIEWS_OF_A_COMPILE, PRIOR_TRIES, Arm, Bandit, Budget, FlagToTry, Search
from stowplan.backends.xla.compiler import Compiler
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.experience import Experience, Improvement
from stowplan.backends.xla.knobs import ALL_SLOW, BETWEEN, DEFAULT, SCOPED_OPTION, UNSEEN, Flags, Knobs, between, flags_of
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.proposals import WAYS, Proposal, Way
from stowplan.backends.xla.score import Score
from stowplan.backends.xla.store import Compiled
from stowplan.backends.xla.tuning import TrialRecord, Tuning, TuningProgress
from stowplan.errors import InputError, TimeLimitError, brief
from stowplan.hardware.costs.signatures import LatencyTable, Predictor
from stowplan.hardware.targets import Target, xla_chip

#: After so many compiles it is said where there is nothing to gain.
_ENOUGH_TO_TELL = 2

#: Where no preview promises this part of the incumbent's cycles, so many more are made.
_LEAST_GAIN, _MORE = 0.001, 8
#: What a flag's preview may lose of the default's cycles, and of the incumbent's with settings found for it.
_MOST_LOST, _LEAST_OF_A_FLAG = 0.1, 0.0
#: What may be lost by a scoped limit for the one between it and XLA's own to be tried, and what that saves beside it, about:
#: parts of the default's cycles.
_LOST_BESIDE, _SAVED_BETWEEN = 0.01, 0.02
#: Part of what a prediction may be off by that is hoped for where none promises anything.
_OPTIMISM = 0.25


class Run:
    """One run, as far as it has come.

    Parameters
    ----------
    compiler, target
        What compiles, and what for.
    budget
        What it may spend.
    chance
        Of what is chosen by lot.
    on_progress
        Called after each compile.
    table, predictor
        Cycles known beforehand, and what predicts others; nothing, and the one of the package, where None.
    """

    def __init__(
        self,
        compiler: Compiler,
        target: Target,
        budget: Budget,
        chance: random.Random,
        on_progress: Callable[[TuningProgress], None] | None = None,
        table: LatencyTable | None = None,
        predictor: Predictor | None = None,
    ):
        self._compiler, self._target, self._budget, self._chance = compiler, target, budget, chance
        self._on_progress, self._table, self._predictor = on_progress, table, predictor
        self._chip = xla_chip(target)
        self._bandit = Bandit()
        self._programs: dict[Flags, Search] = {}
        """By the flags that make a program; the same for flags that make the same."""
        self._trials: list[tuple[TrialRecord, Knobs]] = []
        self._best = 0
        self._notes: list[str] = []

    def tune(self, experience: Experience) -> Tuning:
        """The default, where fast memory may harm all in slow memory, then the loop.

        Raises
        ------
        CompileError
            XLA does not compile the program even by default.
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
        except (CompileError, InputError, TimeLimitError) as error:
            # What was found before is not lost by it.
            stop = "failed"
            self._notes += [] if self._budget.deadline.expired else [str(error)]
        if self._budget.deadline.expired and stop in ("compiles", "failed"):
            stop = self._budget.out_of_time
        return self._result(stop)

    def _result(self, stop: str) -> Tuning:
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
        """Compile what promises most, again and again; why it stopped."""
        while self._budget.is_open:
            before = self._incumbent.score.total
            chosen = self._chosen()
            promises = self._promise([proposal for _, proposal in chosen])
            if not promises and (reason := self._why_nothing):
                self._notes.append(f"nothing to gain here: {reason}")
                return "nothing_to_gain"
            if not chosen:
                self._notes += self._best_program.refusals
                return "exhausted"
            for (arm, _), trial in zip(chosen, self._try([proposal for _, proposal in chosen]), strict=True):
                self._bandit.count(arm, trial is not None and trial.score.total < before)
                if trial is not None and trial.score.total <= (1 + _LOST_BESIDE) * before:
                    self._add_between(arm.name, 1 - trial.score.total / default.score.total)
        return "compiles"

    @property
    def _best_program(self) -> Search:
        """The one whose best trial is the best of all."""
        programs = [program for program in self._programs.values() if program.evidence.trials]
        return min(programs, key=lambda program: program.evidence.incumbent.score.total)

    @property
    def _incumbent(self) -> Trial:
        return self._best_program.evidence.incumbent

    @property
    def _why_nothing(self) -> str:
        """Why there is nothing to gain, after two compiles or more: nearly all traffic is in fast memory, nothing waits, and
        what was tried gave nothing. Where fast memory may harm that does not say it."""
        is_known = len(self._trials) >= _ENOUGH_TO_TELL and self._best == 0 and not self._chip.harm
        return self._programs[()].evidence.why_nothing() if is_known else ""

    def _promise(self, proposals: list[Proposal]) -> bool:
        """Whether one of some previews is worth a compile."""
        least = _LEAST_GAIN * self._incumbent.score.total
        return any(proposal.gain >= least for proposal in proposals)

    # ------------------------------------------------------------------------------------------------------- flags and settings

    def _find_flags(self, default: Trial, experience: Experience) -> None:
        """Flags of the chip that change something, by what their previews promise and earlier programs say of them."""
        own = self._compiler.options.keys()
        flags = {name: options for name, options in flags_of(self._chip).items() if not own & options.keys()}
        if self._budget.left < 1 + len(flags) / PREVIEWS_OF_A_COMPILE:
            return
        alike = self._target.name, self._programs[()].evidence.features(default)
        self._bandit.knobs_save = experience.improvement(self._bandit.knobs.name, *alike, None).saved
        settings = [DEFAULT.with_flags(options) for options in flags.values()]
        for (name, options), knobs, preview in zip(flags.items(), settings, self._make_previews(settings), strict=True):
            is_idle = not preview.error and preview.assignment_digest == default.compiled.assignment_digest
            if preview.error or (is_idle and SCOPED_OPTION not in options):
                self._notes += [f"{name}: {preview.error}"] if preview.error else []
                continue
            promised = 1 - self._program_of(knobs, preview).evidence.preview(knobs, preview).score.total / default.score.total
            expected = experience.improvement(name, *alike, None if name in UNSEEN else promised)
            if expected.saved >= _LEAST_GAIN if name in UNSEEN else promised >= -_MOST_LOST:
                self._bandit.add(name, FlagToTry(options, expected, promised, preview), expected.saved)
        self._bandit.learn(experience.about(*alike))

    def _add_between(self, flag: str, saved: float) -> None:
        """Where a flag that set the scoped limit won or lost little, the limit between it and XLA's own is a flag, too."""
        options = between(self._chip, self._target.fast_memory.capacity, flags_of(self._chip).get(flag, {}))
        if options is not None:
            expected = saved + _SAVED_BETWEEN
            self._bandit.add(BETWEEN, FlagToTry(options, Improvement(expected, expected), expected))

    def _chosen(self) -> list[tuple[Arm, Proposal]]:
        """What to compile next, side by side: flags, each once, and the best of the previews made now and before."""
        best, count = self._best_program, self._budget.side_by_side
        now = best.evidence.incumbent.score.total
        chosen: list[tuple[Arm, Proposal]] = []
        unlikely: list[tuple[Arm, Proposal]] = []
        first = self._bandit.first(self._saved_by_knobs)
        for arm in self._bandit.order(first, count):
            if len(chosen) == count:
                break
            if arm is self._bandit.knobs:
                proposals, least = self._by_knobs(best), _LEAST_GAIN
            else:
                proposals, least = self._flagged(arm, best, is_alone=arm in first)[:1], _LEAST_OF_A_FLAG
            likely = [(arm, proposal) for proposal in proposals if proposal.gain >= least * now]
            unlikely += [(arm, proposal) for proposal in proposals if proposal.gain < least * now]
            # Where compiles run side by side, flags may yet take places of settings.
            chosen += likely[: count - len(chosen)]
        return chosen or unlikely[:count]

    @property
    def _saved_by_knobs(self) -> float:
        """Part of the default's cycles that settings of the best program save beside its flags alone."""
        evidence, default = self._best_program.evidence, self._trials[0][0].total
        alone = [trial.score.total for trial in evidence.trials if trial.knobs == DEFAULT.with_flags(dict(trial.knobs.flags))]
        return (min(alone, default=default) - evidence.incumbent.score.total) / default

    def _by_knobs(self, best: Search) -> list[Proposal]:
        """The best previews of the best program; where even more of them promise nothing, those of which least is known."""
        now = best.evidence.incumbent.score.total
        best.preview(self._budget.previews_of_a_round, self._make_previews)
        if not self._bandit.flags and not self._promise(best.worth_compiling(now)[:1]):
            best.preview(min(_MORE, self._budget.previews), self._make_previews)
        proposals = best.worth_compiling(now)
        return proposals if self._promise(proposals[:1]) or self._why_nothing else best.worth_compiling(now, _OPTIMISM)

    def _flagged(self, arm: Arm, best: Search, is_alone: bool) -> list[Proposal]:
        """Settings of the program that a flag makes beside the incumbent's flags, by their previews; or the flag alone.

        What the incumbent's setting says of single values holds where the program stays the same.
        """
        incumbent = best.evidence.incumbent
        flag = self._bandit.flags[arm]
        plain = incumbent.knobs.with_flags(flag.options)
        made = flag.preview if plain == DEFAULT.with_flags(flag.options) else None
        if made is None and not self._budget.previews:
            return []
        del self._bandit.flags[arm]
        preview = made or self._make_previews([plain])[0]
        if preview.error:
            self._notes.append(f"{arm.name}: {preview.error}")
            return []
        program = self._program_of(plain, preview)
        program.take(Proposal(arm.name, plain), preview)
        if not is_alone:
            is_same = program.evidence.program_text == best.evidence.program_text
            named = [msgspec.structs.replace(incumbent.knobs, flags=plain.flags)] if is_same else []
            count = min(_MORE - 1, self._budget.previews)
            program.preview(count, self._make_previews, [Proposal(arm.name, knobs) for knobs in named])
        now = incumbent.score.total
        proposals = (proposal for proposal in program.worth_compiling(now) if proposal.knobs.flags == plain.flags)
        if is_alone:
            # Beside flags whose previews show only what they cost, a preview says little.
            return [proposal._replace(way=arm.name, gain=round(flag.expected.saved * now)) for proposal in proposals]
        beyond = round((flag.expected.saved - flag.promised) * now)
        return [proposal._replace(way=arm.name, gain=proposal.gain + beyond) for proposal in proposals]

    # --------------------------------------------------------------------------------------------------- previews and compiles

    def _program_of(self, knobs: Knobs, compiled: Compiled) -> Search:
        """The program that a setting's flags make; the same for flags that leave text and scoped limit as they are."""
        if knobs.flags in self._programs:
            return self._programs[knobs.flags]
        text, scoped = compiled.program_path.read_bytes(), dict(knobs.flags).get(SCOPED_OPTION)
        alike = (program for flags, program in self._programs.items() if dict(flags).get(SCOPED_OPTION) == scoped)
        same = next((program for program in alike if program.evidence.program_text == text), None)
        if same is None:
            target = self._target
            if scoped is not None and self._chip.scoped is not None:
                left = target.fast_memory.capacity + self._chip.scoped - (int(scoped) << 10)
                target = target.with_capacity(max(left, 1))
            if self._programs:
                # Many kernels are those of the program without flags.
                plain = self._programs[()].evidence
                evidence = Evidence(compiled, target, plain.table, self._predictor, plain.pace)
            else:
                evidence = Evidence(compiled, target, self._table, self._predictor)
            evidence.deadline = self._budget.deadline
            # Ways that act on the chip.
            ways = (way for way in WAYS if way.knob in self._chip.steers)
            arms: dict[Arm, Way] = {Arm(way.name, PRIOR_TRIES * way.worth): way.way for way in ways}
            same = Search(evidence, arms, self._chance)
        self._programs[knobs.flags] = same
        return same

    def _make_previews(self, settings: Sequence[Knobs]) -> list[Compiled]:
        self._budget.previewed += len(settings)
        return self._compiler.previews([knobs.compiler_options() for knobs in settings], self._budget.deadline)

    def _try(self, proposals: list[Proposal]) -> list[Trial | None]:
        """Compile settings side by side; None for those that XLA refuses."""
        deadline = self._budget.deadline
        trials = []
        answers = self._compiler.compile_all([proposal.knobs.compiler_options() for proposal in proposals], deadline)
        for proposal, answer in zip(proposals, answers, strict=True):
            if isinstance(answer, (CompileError, TimeLimitError)) and deadline.expired:
                raise answer
            # The compiler died of this setting, or took longer than it may; of others it may not.
            trials.append(self._add(proposal, answer))
        return trials

    def _add(self, proposal: Proposal, compiled: Compiled | CompileError | TimeLimitError) -> Trial | None:
        """Take a result, or the reason why there is none, into trials and evidence."""
        knobs, trial, score = proposal.knobs, None, Score(0, 0)
        made = compiled if isinstance(compiled, Compiled) else None
        error = str(compiled) if made is None else made.error
        if made is not None and not error:
            try:
                trial = self._program_of(knobs, made).add(knobs, made)
                score = trial.score
            except InputError as unreadable:
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
            processor_seconds=0.0 if made is None else made.record.processor_seconds,
            result="" if error or made is None else f"{made.folder.parent.name}/{made.folder.name}",
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
