"""Checks the plans, the baseline name and the hint that a caller of :func:`stowplan.solve` gives, and reads hints from files.

A baseline is a plan that results are compared with, and its *maker* is the candidate that finds this plan if it is not known
before the run. If the caller names a baseline, the result is the better of two plans: the best plan that the candidates found,
and the baseline's plan. The ``-prod`` results of Wang et al. 2023 (section 5, table 3) are defined in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError, brief
from stowplan.frontends.read import read_plan
from stowplan.kernel.kind import Candidate, Kind, check, describe_plan, kind_of
from stowplan.kernel.state import Start
from stowplan.log import cut
from stowplan.models import hint as hints
from stowplan.models.hint import Hint
from stowplan.result import CandidateReport

#: Name of the production baseline: the compiler's own plan if the caller gave it, otherwise the kind's default baseline.
PRODUCTION = "prod"

#: Name of XLA's own plan.
XLA = "xla"


class CheckedInputs(NamedTuple):
    """The checked inputs of a call besides its problem."""

    candidates: list[Candidate]
    """The candidates to run, the most useful first. If the named baseline has no plan yet, its maker comes first."""
    starts: dict[str, Start]
    """Plans to start from, by name."""
    baseline: str | None
    """Name of the baseline that the result must be no worse than; None if the caller named none."""
    hints: list[Hint]
    """Hints with values, which guide constructive heuristics."""
    warnings: list[str]
    """Warnings for the result."""


def check_inputs(
    kind: Kind[Any, Any],
    problem: Any,
    candidates: Sequence[Candidate],
    *,
    baseline: str | None,
    plans: Mapping[str, Any],
    hint: Any,
    earlier: Mapping[str, Start],
) -> CheckedInputs:
    """Checks the inputs of a call besides its problem.

    Parameters
    ----------
    kind, problem, candidates
        The problem with its kind, and the candidates that were selected for it.
    baseline, plans, hint
        Arguments of :func:`stowplan.solve`.
    earlier
        The earlier plan to keep close to, checked, by its name; empty if there is none that is valid for this problem.

    Raises
    ------
    UsageError, InputError
        Under the conditions that :func:`resolve_baseline`, :func:`add_hinted_plan` and :func:`checked_plans` list.
    """
    caller_plans, initial = add_hinted_plan(kind, problem, plans, hint), kind.initial(problem)
    baseline_name = resolve_baseline(kind, problem, baseline, (*initial, *caller_plans, *earlier))
    valid_plans, warnings = (
        checked_plans(kind, problem, caller_plans, baseline_name, {*initial, *reserved_names(kind)})
        if caller_plans
        else ({}, [])
    )
    starts = {**{name: Start(plan) for name, plan in initial.items()}, **valid_plans, **earlier}
    hint_values = hinted_values(kind, problem, hint, starts[HINT].plan if HINT in starts else None)
    return CheckedInputs(
        add_baseline_maker(kind, problem, baseline_name, starts, candidates), starts, baseline_name, hint_values, warnings
    )


def resolve_baseline(kind: Kind[Any, Any], problem: Any, baseline: str | None, plan_names: Iterable[str]) -> str | None:
    """Resolves the name of a baseline that a caller gave; returns None for None.

    Parameters
    ----------
    kind, problem
        The problem with its kind.
    baseline
        The name as given, or :data:`PRODUCTION`.
    plan_names
        Names of the kind's initial plans, which cost nothing to make, and of the caller's plans, whether they are valid or not.

    Raises
    ------
    UsageError
        There is no baseline of that name, or this problem has no such plan.
    """
    known_names = dict.fromkeys((*plan_names, *reserved_names(kind)))
    if baseline == PRODUCTION and PRODUCTION not in known_names:
        return XLA if XLA in known_names else kind.baseline
    if baseline is not None and baseline not in known_names:
        why = next((each.why_missing(problem) for each in kind.baselines if each.name == baseline), "")
        found = f"{baseline!r}, which has no plan here ({why})" if why else repr(baseline)
        raise UsageError(f"found baseline {found}, expected one of {', '.join((*known_names, PRODUCTION))}")
    return baseline


def add_baseline_maker(
    kind: Kind[Any, Any], problem: Any, baseline: str | None, starts: Iterable[str], chosen: Sequence[Candidate]
) -> list[Candidate]:
    """Returns the candidates of a run. If the named baseline has no plan yet, the candidate that makes its plan comes first."""
    if baseline is None or baseline in starts:
        return list(chosen)
    maker = kind.makers(problem).get(baseline)
    return list(chosen) if maker is None else [maker, *(candidate for candidate in chosen if candidate.name != baseline)]


def reserved_names(kind: Kind[Any, Any]) -> list[str]:
    """Names that no plan of the caller may have, because they belong to baselines of the kind.

    They are the names of the kind's first baseline, of each baseline with a maker, and of each baseline with ``is_known``. They
    are reserved even if the problem has no such baseline plan.
    """
    others = (baseline for baseline in kind.baselines[1:] if baseline.is_known or baseline.maker is not None)
    return [kind.baseline, *(baseline.name for baseline in others)]


def baseline_warning(name: str, why: str) -> str:
    """The warning that a baseline has no plan."""
    return f"the baseline {name} is left out: {why}"


def missing_baseline_warning(name: str, reports: Sequence[CandidateReport]) -> str:
    """The warning that the named baseline has no plan, so that the result is not compared with it.

    ``reports`` are the reports of all candidates. If the baseline has a maker, the maker's report says why there is no plan.
    """
    maker = next((report for report in reports if report.name == name), None)
    if maker is None:
        why = "it has no valid plan for this problem"
    elif maker.outcome in ("stopped", "skipped"):
        why = "it was not done within the limit"
    else:
        why = cut(maker.note) or "it has no valid plan for this problem"
    return baseline_warning(name, why)


def checked_plans(
    kind: Kind[Any, Any], problem: Any, plans: Mapping[str, Any], baseline: str | None, reserved: Iterable[str]
) -> tuple[dict[str, Start], list[str]]:
    """Verifies the plans that a caller gave.

    Parameters
    ----------
    kind, problem
        The problem to solve.
    plans
        The plans by name.
    baseline
        Name of the baseline that the caller named, or None.
    reserved
        Reserved names, which no plan may have.

    Returns
    -------
    tuple
        The valid plans by name, and a warning if the plan of the named baseline is not valid.

    Raises
    ------
    UsageError
        A plan has a reserved name, or is not a plan of the kind.
    InputError
        A plan is for another problem; or it is not valid, and not the named baseline.
    """
    starts: dict[str, Start] = {}
    warnings = []
    for name, plan in plans.items():
        if name in reserved:
            raise UsageError(f"found a plan named {name!r}, which is the name of one of the package's own: give it another")
        if not isinstance(plan, kind.plan):
            raise UsageError(f"found {describe_plan(plan)} as the plan {name!r}, expected a plan of {kind.name}")
        verification = check(kind, problem, plan)
        if verification.ok:
            starts[name] = Start(plan, verification)
        elif name == baseline and plan.problem == problem.digest:
            warnings.append(baseline_warning(name, f"its plan is not valid: {'; '.join(verification.lines[:1])}"))
        else:
            raise InputError(f"the plan {name!r} is not valid for this problem: {'; '.join(verification.lines[:3])}")
    return starts, warnings


#: Name under which the plan of a hint takes part.
HINT = "hint"


def hinted_plan(kind: Kind[Any, Any], problem: Any, hint: Any) -> Any:
    """The plan of a hint, or the plan that was given as a hint; None if there is none. The plan is not verified.

    Raises
    ------
    UsageError
        It is neither a hint nor a plan of the kind, or has values that the kind does not accept.
    InputError
        The hint is for another problem, or damaged.
    """
    if isinstance(hint, Hint):
        hints.check_hint(problem, hint, kind.extras().hints)
        return hints.plan_of(hint)
    if hint is not None and not isinstance(hint, kind.plan):
        raise UsageError(
            f"found {describe_plan(hint)} as the hint, expected a stowplan.models.hint.Hint or a plan of {kind.name}"
        )
    return hint


def add_hinted_plan(kind: Kind[Any, Any], problem: Any, plans: Mapping[str, Any], hint: Any) -> dict[str, Any]:
    """Returns the given plans by name, with the plan of the hint, if it has one, added under the name :data:`HINT`.

    Raises
    ------
    UsageError, InputError
        As for :func:`hinted_plan`. A UsageError also if ``plans`` has the name :data:`HINT` already.
    """
    plan = hinted_plan(kind, problem, hint)
    if plan is not None and HINT in plans:
        raise UsageError(f"found a plan named {HINT!r}, which is the name of the hint's: give it another")
    return {**plans} if plan is None else {**plans, HINT: plan}


def hinted_values(kind: Kind[Any, Any], problem: Any, hint: Any, plan: Any) -> list[Hint]:
    """A list of one hint, which has values, such as probabilities, and no plan; or an empty list.

    The values are those of the given hint. If it has only a plan, they are derived from that plan. The list is empty if there
    are neither values nor a plan, or if the kind cannot derive values from a plan.

    Parameters
    ----------
    kind, problem
        The problem to solve.
    hint
        The hint as given, checked.
    plan
        The verified plan that :func:`hinted_plan` found in it; None if there is none.
    """
    if isinstance(hint, Hint) and hint.values:
        return [msgspec.structs.replace(hint, plan=None)]
    kind_hints = None if plan is None else kind.extras().hints
    if kind_hints is None:
        return []
    return [msgspec.structs.replace(kind_hints.of_plan(problem, plan), plan=None)]


def read_hint_of_earlier(path: Path, earlier: Any, problem: Any) -> Hint:
    """Reads a hint or a plan for ``earlier``, an earlier version of a problem, and transfers it to the problem.

    Raises
    ------
    InputError
        The file cannot be read or has neither a hint nor a plan, it is for another problem than ``earlier``, or its plan is not
        valid for ``earlier``.
    UsageError
        The two problems are of different kinds, or the kind cannot match the steps of two versions.
    """
    kind = kind_of(problem)
    if kind_of(earlier) is not kind:
        raise UsageError(f"found a hint for a problem of {kind_of(earlier).name}, expected one of {kind.name}")
    kind_hints = kind.extras().hints
    if kind_hints is None:
        raise UsageError(f"found a hint of an earlier version: problems of {kind.title} take none, only their own")
    hint = read_hint(path, earlier)
    plan = hints.plan_of(hint) if isinstance(hint, Hint) else hint
    if plan is not None and not (verification := check(kind, earlier, plan)).ok:
        raise InputError(f"not valid for the earlier version: {'; '.join(verification.lines[:3])}", source=path)
    (values,) = hinted_values(kind, earlier, hint, plan)
    values = msgspec.structs.replace(values, plan=None if plan is None else msgspec.to_builtins(plan))
    return kind_hints.transferred(problem, earlier, values)


def read_hint(path: Path, problem: Any) -> Any:
    """Reads a hint or a plan from a file. The plan is not verified.

    Raises
    ------
    InputError
        The file cannot be read or has neither a hint nor a plan, or it is for another problem. The message names the file.
    UsageError
        The hint has values, but the kind accepts only plans as hints; or ``problem`` is no problem.
    """
    data = files.read_bytes(path)
    if files.peek_format(data) == hints.FORMAT:
        hint = Hint.decode(data, path)
        try:
            hints.check_hint(problem, hint, kind_of(problem).extras().hints)
        except InputError as error:
            raise error.within(path) from None
        return hint
    kind = kind_of(problem)
    if files.is_json(path) and files.peek_format(data) != kind.plan_format:
        expected = f"expected a hint or a plan: {hints.FORMAT}, {kind.plan_format}"
        raise InputError(f"found {files.describe(data)}, {expected}", source=path, place="format")
    plan = read_plan(path, problem)
    if plan.problem != problem.digest:
        named, expected = brief(plan.problem, hints.NAME), brief(problem.digest, hints.NAME)
        raise InputError(f"found a plan for the problem {named}, expected {expected}", source=path, place="problem")
    return plan
