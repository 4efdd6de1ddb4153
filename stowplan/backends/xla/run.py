"""One run of the loop: compile, learn what the compile cost, steer again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from stowplan.backends.xla.compiler import Compiler
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.experience import Experience, Improvement
from stowplan.backends.xla.flags import BETWEEN, UNSEEN, FlagToTry, between, flags_of
from stowplan.backends.xla.planning import planned
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.proposals import WAYS, Proposal, Way, harm_last, plan_first
from stowplan.backends.xla.score import Score
from stowplan.backends.xla.search import BATCH, PRIOR_TRIES, Arm, Search, by_promise
from stowplan.backends.xla.steer import ALL_SLOW, DEFAULT, SCOPED_OPTION, Flags, Steer
from stowplan.backends.xla.store import Compiled
from stowplan.backends.xla.tuning import TrialRecord, Tuning, TuningProgress
from stowplan.deadline import Deadline
from stowplan.errors import InputError, TimeLimitError, brief
from stowplan.hardware.costs.signatures import LatencyTable, Predictor
from stowplan.hardware.targets import Target, XlaChip, xla_chip

#: After so many compiles it is said where there is nothing to gain.
_ENOUGH_TO_TELL = 2

#: Previews that take a compile's time together, about; measured were 9 to 40 of a program's compile.
PREVIEWS_OF_A_COMPILE = 20

#: Compiles' worth of time between two compiles of steers, that one included: the rest goes to previews.
_ROUND = 1.6

#: Where no preview promises this part of the incumbent's cycles, so many more are made.
_LEAST_GAIN, _MORE = 0.001, 8
#: What a flag's preview may lose of the default's cycles, and of the incumbent's with steers found for it.
_MOST_LOST, _LEAST_OF_A_FLAG = 0.1, 0.0
#: Part of the default's cycles for which a flag comes before steers, by itself.
_FIRST_GAIN = 0.005
#: What may be lost by a scoped limit for the one between it and XLA's own to be tried, and what that saves beside it, about:
#: parts of the default's cycles.
_LOST_BESIDE, _SAVED_BETWEEN = 0.01, 0.02
#: Part of what steers save that counts beside flags: it is lost where a flag wins later.
_STEERS_KEPT = 0.5
#: Part of what a prediction may be off by that is hoped for where none promises anything.
_OPTIMISM = 0.25

#: What the best preview, and a flag, are worth before anything is known of them: shares of compiles that were better than the
#: incumbent.
_STEERING_WORTH, _FLAG_WORTH = 0.6, 0.3
#: How much more that is for a flag for each part of the default's cycles that its preview saves.
_WORTH_OF_A_GAIN = 6.0


@dataclass
class Run:
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
    _previews: int = 0
    _programs: dict[Flags, Search] = field(default_factory=dict)
    """By the flags that make a program; the same for flags that make the same."""
    _steering: Arm = field(default_factory=lambda: Arm("steer", PRIOR_TRIES * _STEERING_WORTH))
    _steers_save: float = 0.0
    """What the first compile of a steer is expected to save of the default's cycles."""
    _steered_compiles: int = 0
    _flags: dict[Arm, FlagToTry] = field(default_factory=dict)
    """Flags not tried yet."""

    def all(self, table: LatencyTable | None, predictor: Predictor | None, experience: Experience) -> None:
        """The opening, then the loop."""
        first = self._compiler.compile(DEFAULT.compiler_options(), self._deadline)
        if first.error:
            raise CompileError(f"{self._compiler.workload.name}: {first.error}")
        self._known = table, predictor
        default = self._add("default", DEFAULT, first)
        assert default is not None, "a first result that cannot be read is an error"
        self._notes += default.score.notes()
        try:
            self._loop(self._programs[()], default, experience)
        except (CompileError, InputError, TimeLimitError) as error:
            # What was found before is not lost by it.
            if self._deadline.expired:
                self._stop = self._out_of_time
            else:
                self._stop = "failed"
                self._notes.append(str(error))

    @property
    def _out_of_time(self) -> str:
        return "cancelled" if self._deadline.was_cancelled else "time_limit"

    def _program_of(self, steer: Steer, compiled: Compiled) -> Search:
        """The program that a steer's flags make; the same for flags that leave text and scoped limit as they are."""
        if steer.flags in self._programs:
            return self._programs[steer.flags]
        text, scoped = compiled.program_path.read_bytes(), dict(steer.flags).get(SCOPED_OPTION)
        alike = (each for flags, each in self._programs.items() if dict(flags).get(SCOPED_OPTION) == scoped)
        same = next((each for each in alike if each.evidence.program_text == text), None)
        if same is None:
            target = self._target
            if scoped is not None and self._chip.scoped is not None:
                left = target.fast_memory.capacity + self._chip.scoped - (int(scoped) << 10)
                target = target.with_capacity(max(left, 1))
            table, predictor = self._known
            if self._programs:
                # Many kernels are those of the program without flags.
                plain = self._programs[()].evidence
                evidence = Evidence(compiled, target, plain.table, predictor, plain.pace)
            else:
                evidence = Evidence(compiled, target, table, predictor)
            evidence.deadline = self._deadline
            same = Search(evidence, self._ways(), self._chance)
        self._programs[steer.flags] = same
        return same

    @property
    def _chip(self) -> XlaChip:
        return xla_chip(self._target)

    def _ways(self) -> dict[Arm, Way]:
        """Those that act on the chip."""
        ways = (each for each in WAYS if each.steer in self._chip.steers)
        return {Arm(each.name, PRIOR_TRIES * each.worth): each.way for each in ways}

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
            previews=self._previews,
            notes=tuple(self._notes),
        )

    @property
    def _left(self) -> float:
        """What is left of the budget, in compiles."""
        return self._budget - len(self._records) - self._previews / PREVIEWS_OF_A_COMPILE

    @property
    def _count(self) -> int:
        """Compiles that come next, side by side."""
        return max(1, min(self._jobs, int(self._left)))

    @property
    def _room(self) -> int:
        """Previews before them that are within the budget; a few where there are none to choose from."""
        return max(0 if self._previews else BATCH, round(PREVIEWS_OF_A_COMPILE * (self._left - self._count)))

    def _loop(self, program: Search, default: Trial, experience: Experience) -> None:
        given: list[Proposal] = []
        if self._chip.harm and self._left >= 1:
            all_slow = self._try(Proposal("all_slow", ALL_SLOW))
            if all_slow is not None:
                given.append(Proposal("harm_last", harm_last(program.evidence, default, all_slow)))
        if self._chip.harm and self._left >= 1:
            fast = planned(program.evidence, "table", self._chance).tensors
            given.append(Proposal("plan_first", plan_first(program.evidence, fast)))
        self._flags = self._known_flags(program, default, experience)
        while self._left >= 1 and not self._deadline.expired:
            before = self._best_program.evidence.incumbent.score.total
            chosen = self._chosen(given)
            promises = self._promise([each for _, each in chosen])
            given = []
            if not promises and (reason := self._why_nothing):
                self._notes.append(f"nothing to gain here: {reason}")
                self._stop = "nothing_to_gain"
                return
            if not chosen:
                self._stop = "exhausted"
                self._notes += self._best_program.refusals
                return
            for (arm, _), trial in zip(chosen, self._try_all([proposal for _, proposal in chosen]), strict=True):
                arm.tries += 1
                arm.wins += trial is not None and trial.score.total < before
                self._steered_compiles += arm is self._steering
                if trial is not None and trial.score.total <= (1 + _LOST_BESIDE) * before:
                    self._add_between(arm.name, 1 - trial.score.total / default.score.total)
        if self._deadline.expired:
            self._stop = self._out_of_time

    @property
    def _best_program(self) -> Search:
        """The one whose best trial is the best of all."""
        found = [each for each in self._programs.values() if each.evidence.trials]
        return min(found, key=lambda each: each.evidence.incumbent.score.total)

    def _known_flags(self, program: Search, default: Trial, experience: Experience) -> dict[Arm, FlagToTry]:
        """Flags of the chip that change something, by what their previews promise and earlier programs say of them."""
        own = self._compiler.options.keys()
        options = {name: each for name, each in flags_of(self._chip).items() if not own & each.keys()}
        if self._left < 1 + len(options) / PREVIEWS_OF_A_COMPILE:
            return {}
        alike = self._target.name, program.evidence.features(default)
        known = experience.about(*alike)
        self._steers_save = experience.improvement(self._steering.name, *alike, None).saved
        steers = [DEFAULT.with_flags(each) for each in options.values()]
        flags: dict[Arm, FlagToTry] = {}
        for (name, each), steer, preview in zip(options.items(), steers, self._make_previews(steers), strict=True):
            is_idle = not preview.error and preview.assignment_digest == default.compiled.assignment_digest
            if preview.error or (is_idle and SCOPED_OPTION not in each):
                self._notes += [f"{name}: {preview.error}"] if preview.error else []
                continue
            promised = 1 - self._program_of(steer, preview).evidence.preview(steer, preview).score.total / default.score.total
            expected = experience.improvement(name, *alike, None if name in UNSEEN else promised)
            if expected.saved >= _LEAST_GAIN if name in UNSEEN else promised >= -_MOST_LOST:
                arm = Arm(name, PRIOR_TRIES * min(_FLAG_WORTH + _WORTH_OF_A_GAIN * expected.saved, 1.0))
                flags[arm] = FlagToTry(each, expected, promised, preview)
        for arm in (self._steering, *flags):
            wins, tries = known.get(arm.name, (0.0, 0.0))
            arm.wins, arm.tries = arm.wins + wins, arm.tries + tries
        return flags

    def _add_between(self, flag: str, saved: float) -> None:
        """Where a flag that set the scoped limit won or lost little, the limit between it and XLA's own is a flag, too."""
        options = between(self._chip, self._target.fast_memory.capacity, flags_of(self._chip).get(flag, {}))
        if options is not None:
            expected = saved + _SAVED_BETWEEN
            self._flags[Arm(BETWEEN, PRIOR_TRIES * _FLAG_WORTH)] = FlagToTry(options, Improvement(expected, expected), expected)

    @property
    def _why_nothing(self) -> str:
        """Why there is nothing to gain, after two compiles or more: nearly all traffic is in fast memory, nothing waits, and
        what was tried gave nothing. Where fast memory may harm that does not say it."""
        is_known = len(self._records) >= _ENOUGH_TO_TELL and self._best == 0 and not self._chip.harm
        return self._programs[()].evidence.why_nothing() if is_known else ""

    def _chosen(self, given: list[Proposal]) -> list[tuple[Arm, Proposal]]:
        """What to compile next, side by side: flags, each once, and the best of the previews made now and before."""
        best = self._best_program
        now = best.evidence.incumbent.score.total
        chosen: list[tuple[Arm, Proposal]] = []
        unlikely: list[tuple[Arm, Proposal]] = []
        count, first = self._count, self._first
        promise = [*first, *(arm for arm in by_promise([self._steering, *self._flags]) if arm not in first)]
        # Few at a time: each of them takes previews.
        steering = promise.index(self._steering)
        for arm in promise[: max(steering, count) + 1]:
            if len(chosen) == count:
                break
            rounds = max(1, round(self._left / _ROUND))
            most = min(self._room, max(BATCH, int(PREVIEWS_OF_A_COMPILE * (self._left - rounds) / rounds)))
            if arm is self._steering:
                steered, least = self._steered(best, most, given), _LEAST_GAIN
            else:
                steered, least = self._flagged(arm, best, is_alone=arm in first)[:1], _LEAST_OF_A_FLAG
            likely = [(arm, each) for each in steered if each.gain >= least * now]
            unlikely += [(arm, each) for each in steered if each.gain < least * now]
            # Where compiles run side by side, flags may yet take places of steers.
            chosen += likely[: count - len(chosen)]
        return chosen or unlikely[:count]

    @property
    def _first(self) -> list[Arm]:
        """What comes before all else: flags by themselves, which take no previews but their own, the best mean first.

        Before them stand steers, where as much work is expected to save more by these.

        A flag by itself has to save more than steers have already.
        """
        trials = self._best_program.evidence.trials
        alone = [each.score.total for each in trials if each.steer == DEFAULT.with_flags(dict(each.steer.flags))]
        default = self._records[0].total
        found = (min(alone, default=default) - self._best_program.evidence.incumbent.score.total) / default
        flags = {arm: flag.expected for arm, flag in self._flags.items() if flag.expected.saved >= _FIRST_GAIN + found}
        first = sorted(flags, key=lambda arm: -flags[arm].mean)
        steers_save = _STEERS_KEPT / _ROUND * self._steers_save / (1 + self._steered_compiles)
        is_behind = any(each.saved >= steers_save for each in flags.values())
        return first if is_behind or not first else [self._steering, *first]

    def _steered(self, best: Search, most: int, given: list[Proposal]) -> list[Proposal]:
        """The best previews of the best program; where even more of them promise nothing, those of which least is known."""
        now = best.evidence.incumbent.score.total
        best.preview(most, self._make_previews, given)
        if not self._flags and not self._promise(best.worth_compiling(now)[:1]):
            best.preview(min(_MORE, self._room), self._make_previews)
        found = best.worth_compiling(now)
        return found if self._promise(found[:1]) or self._why_nothing else best.worth_compiling(now, _OPTIMISM)

    def _promise(self, found: list[Proposal]) -> bool:
        """Whether one of some previews is worth a compile."""
        least = _LEAST_GAIN * self._best_program.evidence.incumbent.score.total
        return any(each.gain >= least for each in found)

    def _flagged(self, arm: Arm, best: Search, is_alone: bool) -> list[Proposal]:
        """Steers of the program that a flag makes beside the incumbent's flags, by their previews; or the flag alone.

        What the incumbent's steer says of single values holds where the program stays the same.
        """
        incumbent = best.evidence.incumbent
        flag = self._flags[arm]
        plain = incumbent.steer.with_flags(flag.options)
        made = flag.preview if plain == DEFAULT.with_flags(flag.options) else None
        if made is None and not self._room:
            return []
        del self._flags[arm]
        preview = made or self._make_previews([plain])[0]
        if preview.error:
            self._notes.append(f"{arm.name}: {preview.error}")
            return []
        program = self._program_of(plain, preview)
        program.take(Proposal(arm.name, plain), preview)
        if not is_alone:
            is_same = program.evidence.program_text == best.evidence.program_text
            named = [msgspec.structs.replace(incumbent.steer, flags=plain.flags)] if is_same else []
            program.preview(min(_MORE - 1, self._room), self._make_previews, [Proposal(arm.name, steer) for steer in named])
        now = incumbent.score.total
        found = (each for each in program.worth_compiling(now) if each.steer.flags == plain.flags)
        if is_alone:
            # Beside flags whose previews show only what they cost, a preview says little.
            return [each._replace(way=arm.name, gain=round(flag.expected.saved * now)) for each in found]
        beyond = round((flag.expected.saved - flag.promised) * now)
        return [each._replace(way=arm.name, gain=each.gain + beyond) for each in found]

    def _make_previews(self, steers: Sequence[Steer]) -> list[Compiled]:
        self._previews += len(steers)
        return self._compiler.previews([steer.compiler_options() for steer in steers], self._deadline)

    def _try(self, proposal: Proposal) -> Trial | None:
        """Compile a steer; None where XLA refuses it."""
        return self._try_all([proposal])[0]

    def _try_all(self, proposals: list[Proposal]) -> list[Trial | None]:
        """Compile steers side by side; None for those that XLA refuses."""
        found = self._compiler.compile_all([each.steer.compiler_options() for each in proposals], self._deadline)
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

    def _add(self, way: str, steer: Steer, compiled: Compiled | str, gain: float = 0.0) -> Trial | None:
        """Take a result, or the reason why there is none, into records and evidence."""
        trial, score, error = None, Score(0, 0), compiled if isinstance(compiled, str) else compiled.error
        if not isinstance(compiled, str) and not error:
            try:
                trial = self._program_of(steer, compiled).add(steer, compiled)
                score = trial.score
            except InputError as unreadable:
                if not self._records:
                    raise
                error = str(unreadable)
        if error and steer.flags in self._programs:
            self._programs[steer.flags].drop(steer)
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
            previews=self._previews,
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
