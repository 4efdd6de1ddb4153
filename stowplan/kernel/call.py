"""Checks the arguments of :func:`stowplan.solve` (plans, a hint, a baseline's name) and selects the candidates to run.

A candidate is one method that looks for plans or bounds; a run has several of them. Candidates and their rules come from the
problem's kind, such as memory mapping or packing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stowplan.arguments import show
from stowplan.errors import UsageError
from stowplan.kernel.context import FAMILIES, Options
from stowplan.kernel.given import check_inputs
from stowplan.kernel.kind import Candidate, Kind
from stowplan.kernel.state import Start
from stowplan.models.hint import Hint

if TYPE_CHECKING:
    from stowplan.kernel.keep_close.after_run import StabilityPass


@dataclass(frozen=True, kw_only=True)
class Call:
    """A checked call of :func:`stowplan.solve`: everything that its result depends on, except the clock."""

    kind: Kind[Any, Any]
    problem: Any
    options: Options
    candidates: Sequence[Candidate]
    """The candidates to run, most useful first."""
    starts: Mapping[str, Start]
    """Plans to start from, by name: the kind's initial plans, which cost nothing to make, and the caller's plans that are
    valid."""
    baseline: str | None
    """Name of the baseline that the result must be no worse than; None if the caller named none."""
    hints: Sequence[Hint]
    """Hints (:class:`~stowplan.models.hint.Hint`) that give values, such as probabilities, for single decisions. They guide
    constructive heuristics. The plan of a hint is one of ``starts`` instead."""
    warnings: Sequence[str]
    """Warnings for the result, for example that the plan of the named baseline is not valid."""
    plans: Mapping[str, Any]
    """The caller's plans by name, valid or not, as they were passed."""
    hint: Any
    """The hint of the caller, as it was passed."""
    stability_pass: StabilityPass | None
    """The search that follows the candidates if the caller gave an earlier plan: it looks for a plan that differs less from the
    earlier plan. None if there is no earlier plan."""


def build_call(
    kind: Kind[Any, Any],
    problem: Any,
    options: Options,
    *,
    plans: Mapping[str, Any],
    hint: Any = None,
    keep_close: Any = None,
) -> Call:
    """Checks the arguments of :func:`stowplan.solve` and makes a :class:`Call` of them.

    Raises
    ------
    UsageError
        A name of a candidate, a baseline or a plan is wrong, or an argument has a wrong type, as :func:`stowplan.solve` lists.
    InputError
        A plan, the hint or the earlier plan is not valid, or is for another problem.
    """
    candidates = select_candidates(kind.candidates(problem, options), options)
    stability_pass = None
    if keep_close is not None:
        # Imported here because most runs have no earlier plan.
        from stowplan.kernel.keep_close.after_run import stability_pass_of

        stability_pass = stability_pass_of(kind, problem, keep_close, plans)
    earlier = {} if stability_pass is None else stability_pass.starts
    inputs = check_inputs(kind, problem, candidates, baseline=options.baseline, plans=plans, hint=hint, earlier=earlier)
    return Call(
        kind=kind,
        problem=problem,
        options=options,
        candidates=inputs.candidates,
        starts=inputs.starts,
        baseline=inputs.baseline,
        hints=inputs.hints,
        warnings=inputs.warnings,
        plans=plans,
        hint=hint,
        stability_pass=stability_pass,
    )


def check_other_arguments(options: Options, plans: Any, on_progress: Any, stop: Any, cancel: Any) -> None:
    """Raises UsageError if an argument of :func:`stowplan.solve` that is not one of its options has a wrong type."""
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


def select_candidates(available: list[Candidate], options: Options) -> list[Candidate]:
    """Selects the candidates that the options name, by family or by name, in the order of ``available``.

    Candidates with ``by_name_only`` are selected only by their own name. A deterministic run has no presolver. The result may
    be empty, for example for a family that the kind does not have.

    Raises
    ------
    UsageError
        A name belongs to no candidate and no family. A candidate that is given by its own name cannot run here, for example
        because a package is missing. No candidate is left, because none of a selected family can run here.
    """
    known_names = {*FAMILIES, *(candidate.name for candidate in available)}
    unknown = [name for name in options.candidates if name not in known_names]
    if unknown:
        raise UsageError(f"found candidate {unknown[0]!r}, expected some of {', '.join(sorted(known_names))}")
    wanted = set(options.candidates)
    by_name = [candidate for candidate in available if candidate.name in wanted]
    by_family = [candidate for candidate in available if candidate.family in wanted and not candidate.by_name_only]
    chosen = [
        candidate for candidate in available if candidate in by_name or (candidate in by_family and not candidate.unavailable)
    ]
    if options.deterministic:
        # The presolver, which runs before all other candidates, stops by the clock. A deterministic run must not do so, and the
        # other candidates do the same work anyway.
        chosen = [candidate for candidate in chosen if candidate.turn != "presolver"]
    # If a family is selected, those of its candidates that cannot run here are left out. It is an error if none remains.
    for candidate in by_name if chosen else by_family:
        if candidate.unavailable:
            raise UsageError(f"candidate {candidate.name!r} {candidate.unavailable}")
    return chosen
