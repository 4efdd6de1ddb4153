"""What :func:`stowplan.solve` is given, checked: plans at hand, a hint, the baseline that is named, the candidates to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stowplan.arguments import show
from stowplan.errors import InputError, UsageError
from stowplan.models.hint import Hint
from stowplan.portfolio.context import FAMILIES, Options
from stowplan.portfolio.given import HINT, hinted_plan, hinted_values, left_out, resolve, with_maker
from stowplan.portfolio.kind import Candidate, Kind, check, describe_plan
from stowplan.portfolio.run.state import Start

if TYPE_CHECKING:
    from stowplan.portfolio.keep_close.after_run import StabilityPass


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of :func:`stowplan.solve`, checked: all that its result depends on but the clock."""

    kind: Kind[Any, Any]
    problem: Any
    options: Options
    candidates: Sequence[Candidate]
    """What is run, most useful first."""
    starts: Mapping[str, Start]
    """Plans to start from, by name; of those at hand the valid ones."""
    baseline: str | None
    """The baseline that the result is no worse than, where one was named."""
    hints: Sequence[Hint]
    """Values to follow."""
    warnings: Sequence[str]
    plans: Mapping[str, Any]
    """Plans at hand, as they were given."""
    hint: Any
    """As it was given."""
    keeper: StabilityPass | None
    """What keeps the result close to an earlier plan."""

    @property
    def baselines(self) -> tuple[str, ...]:
        """Names of the plans that the result is set beside."""
        named = () if self.baseline is None else (self.baseline,)
        return tuple(dict.fromkeys((*self.starts, *self.kind.baseline_sources, *named)))


def build_call(
    kind: Kind[Any, Any],
    problem: Any,
    options: Options,
    *,
    plans: Mapping[str, Any],
    hint: Any = None,
    keep_close: Any = None,
) -> Call:
    """A call with these arguments, as :func:`stowplan.solve` takes them.

    Raises
    ------
    UsageError
        Names that are none, names that are taken, or a hint or an earlier plan of a wrong type.
    InputError
        A plan that is not valid for the problem, or a hint that is not for it.
    """
    candidates = chosen_candidates(kind.candidates(problem, options), options)
    hinted = hinted_plan(kind, problem, hint)
    if hinted is not None and HINT in plans:
        raise UsageError(f"found a plan named {HINT!r}, which is the name of the hint's: give it another")
    keeper = None if keep_close is None else _keeper(kind, problem, keep_close, plans)
    at_hand = {**plans, **({} if hinted is None else {HINT: hinted})}
    initial, earlier = kind.initial(problem), {} if keeper is None else keeper.starts
    named = resolve(kind, options.baseline, (*initial, *at_hand, *earlier))
    given, warnings = _checked_plans(kind, problem, at_hand, named, {*initial, *kind.baseline_sources})
    starts = {name: Start(plan) for name, plan in initial.items()} | given | earlier
    return Call(
        kind=kind,
        problem=problem,
        options=options,
        candidates=with_maker(kind, problem, named, starts, candidates),
        starts=starts,
        baseline=named,
        hints=hinted_values(kind, problem, hint, starts[HINT].plan if HINT in starts else None),
        warnings=warnings,
        plans=plans,
        hint=hint,
        keeper=keeper,
    )


def check_others(options: Options, plans: Any, on_progress: Any, stop: Any, cancel: Any) -> None:
    """Raise UsageError for an argument of :func:`stowplan.solve` beside the options that is of a wrong type."""
    if plans is not None and not (isinstance(plans, Mapping) and all(isinstance(name, str) for name in plans)):
        raise UsageError(f"found plans {show(plans)}, expected plans by name, a dictionary")
    if on_progress is not None and not callable(on_progress):
        raise UsageError(f"found on_progress {show(on_progress)}, expected a function")
    if cancel is not None and not hasattr(cancel, "is_set"):
        raise UsageError(f"found cancel {show(cancel)}, expected a threading.Event")
    if stop is not None and (not callable(stop) or isinstance(stop, type)):
        raise UsageError(f"found stop {show(stop)}, expected a function of a Progress, such as those of stowplan.stop")
    if stop is not None and options.deterministic:
        raise UsageError("found stop and deterministic, expected one of them: what is known at a moment is a matter of load")


def _keeper(kind: Kind[Any, Any], problem: Any, keep_close: Any, plans: Mapping[str, Any]) -> StabilityPass:
    # Not at the top: most runs have no earlier plan to keep close to.
    from stowplan.portfolio.keep_close.after_run import StabilityPass
    from stowplan.portfolio.keep_close.earlier_plan import EARLIER, given

    keeper = StabilityPass(kind, problem, given(keep_close, kind))
    if EARLIER in plans:
        raise UsageError(f"found a plan named {EARLIER!r}, which is the name of the one to keep close to: give it another")
    return keeper


def _checked_plans(
    kind: Kind[Any, Any], problem: Any, plans: Mapping[str, Any], baseline: str | None, taken: Iterable[str]
) -> tuple[dict[str, Start], list[str]]:
    """The plans at hand, verified, under names that are not ``taken``; and a warning where the baseline's is not valid."""
    starts: dict[str, Start] = {}
    warnings = []
    for name, plan in plans.items():
        if name in taken:
            raise UsageError(f"found a plan named {name!r}, which is the name of one of the package's own: give it another")
        if not isinstance(plan, kind.plan):
            raise UsageError(f"found {describe_plan(plan)} as the plan {name!r}, expected a plan of {kind.name}")
        verification = check(kind, problem, plan)
        if verification.ok:
            starts[name] = Start(plan, verification)
        elif name == baseline and plan.problem == problem.digest:
            warnings.append(left_out(name, f"its plan is not valid: {'; '.join(verification.lines[:1])}"))
        else:
            raise InputError(f"the plan {name!r} is not valid for this problem: {'; '.join(verification.lines[:3])}")
    return starts, warnings


def chosen_candidates(every: list[Candidate], options: Options) -> list[Candidate]:
    """Those that the options name, by family or name; raises UsageError for a name that is none, and where none can run."""
    known = {*FAMILIES, *(candidate.name for candidate in every)}
    unknown = [name for name in options.candidates if name not in known]
    if unknown:
        raise UsageError(f"found candidate {unknown[0]!r}, expected some of {', '.join(sorted(known))}")
    wanted = set(options.candidates)
    by_name = [candidate for candidate in every if candidate.name in wanted]
    by_family = [candidate for candidate in every if candidate.family in wanted and not candidate.by_name_only]
    chosen = [
        candidate for candidate in every if candidate in by_name or (candidate in by_family and not candidate.unavailable)
    ]
    # A family leaves out what cannot run, unless that is all there is.
    for candidate in by_name if chosen else by_family:
        if candidate.unavailable:
            raise UsageError(f"candidate {candidate.name!r} {candidate.unavailable}")
    return chosen
