"""A kind of problem as one object, which says how its plans are verified, found and shown.

Each kind is declared in ``portfolio/<kind>/kind.py``. Parts that take long to import and that most calls do not need are
imported by functions of the object: :attr:`Kind.function`, :attr:`Kind.extras`, :attr:`Kind.certificate`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from stowplan import kinds
from stowplan.document import PlanDocument, ProblemDocument
from stowplan.errors import UsageError

# Re-exported, so that modules that declare kinds need to import from this module alone.
from stowplan.kernel.candidate import Candidate as Candidate
from stowplan.kernel.context import Context, Options
from stowplan.kernel.plan_changes import KeepClose, PlanChanges
from stowplan.models.decisions import Decision, Part, field_by_field
from stowplan.models.hint import HintValues
from stowplan.models.offset_table import OffsetTable
from stowplan.units import Unit
from stowplan.verification import Verification, Violation

P = TypeVar("P", bound=ProblemDocument[PlanDocument])
Q = TypeVar("Q", bound=PlanDocument)

Function = Callable[[Any, Context], None]
"""The function of a candidate: ``(problem, context) -> None``. It reports through the context."""


class Highlight(NamedTuple):
    """A fact that summaries print on a line of its own."""

    fact: str
    """Name of the fact."""
    label: str = ""
    """The first word of the line; if empty, the name of the fact."""
    write: Callable[[Any], str] = str
    """Writes the value of the fact as text."""


@dataclass(frozen=True)
class Extras(Generic[P, Q]):
    """Parts of a kind that most calls do not need."""

    hints: HintValues[P, Q] | None = None
    """The values that hints may have. If None, only plans are accepted as hints."""
    changes: Callable[[P, KeepClose], PlanChanges] | None = None
    """How plans are kept close to an earlier one (:mod:`stowplan.kernel.plan_changes`). If None, the fields of plans are
    reverted one by one."""
    adapter: Any = None
    """How the kind's policies are validated, a :class:`stowplan.portfolio.validation.adapter.Adapter`; None if the kind has no
    policies."""


@dataclass(frozen=True, kw_only=True)
class Baseline(Generic[P, Q]):
    """A plan that results are compared with. It is made at no cost before the run, or by a candidate if the caller names it."""

    name: str
    plan: Callable[[P], Q | None] = lambda problem: None
    """Makes the plan if that costs nothing; returns None if it takes a candidate, or if there is no such plan."""
    maker: Callable[[P], Candidate] | None = None
    """Makes the candidate that finds the plan, of the family ``baseline``. It runs only if the baseline is named and has no
    plan yet."""
    why_missing: Callable[[P], str] = lambda problem: ""
    """Says why a problem has no such plan, as a clause for the error if the caller names this baseline; empty if the reason is
    not known."""
    is_known: bool = False
    """Whether the name is reserved even if a problem has no such plan. The names of the first baseline, and of each with a
    maker, are always reserved."""
    is_awaited: Callable[[P], bool] = lambda problem: False
    """Whether a run that has nothing left to gain still waits for this plan, which heuristics find. The run waits until there
    is a plan, or until it is reported that there is none (:meth:`stowplan.kernel.context.Context.no_plan`)."""


@dataclass(frozen=True, kw_only=True)
class Kind(kinds.BaseKind, Generic[P, Q]):
    """A kind of problem, with problems of class ``P`` and plans of class ``Q``. Fields with a default are optional."""

    problem: type[P]
    plan: type[Q]
    verify: Callable[[P, Q], Verification[Any]]
    """The verifier. :func:`check` calls it safely for any object."""
    bound: Callable[[P], int]
    """A lower bound that takes almost no time to compute."""
    candidates: Callable[[P, Options], list[Candidate]]
    """``(problem, options) -> candidates``: all candidates that exist for the problem, most useful first."""
    function: Callable[[str], Callable[[P, Context], None]]
    """The function of the candidate of this name, ``(problem, context) -> None``. Imports the modules that it needs."""
    baselines: tuple[Baseline[P, Q], ...]
    """The baselines that results are compared with. Speedups are computed over the first."""
    facts: Callable[[P, Q | None, Verification[Any] | None], dict[str, Any]]
    """``(problem, plan, verification) -> details`` for :attr:`stowplan.result.Result.details`. Without a plan, the last two
    arguments are None."""
    identity: Callable[[P], dict[str, str]]
    """The entries ``program``, ``target``, ``cost_model`` and ``digest`` of a problem, as :func:`identify` makes them."""
    labels: Callable[[P, Q], dict[str, Any]] = lambda problem, plan: {
        field: getattr(problem, field) for field in ("name", "target") if hasattr(plan, field)
    }
    """``(problem, plan) -> fields`` of plans that repeat facts of the problem, for programs that read or apply the plan without
    its problem."""
    asks_for_any: Callable[[P], bool] = lambda problem: False
    """Whether any valid plan solves the problem, such as any packing within a capacity, so that better ones are not looked
    for."""
    assumptions: tuple[str, ...] = ()
    """Rules that the caller could change, as paths of fields of the problem (``banks.capacity``). If some value of the field
    forbids nothing, the path is followed by ``=`` and this value (``stalls=allowed``)."""
    helpless: Callable[[P], Collection[str]] = lambda problem: ()
    """The paths in :attr:`assumptions` that cannot help if a problem has no plan: whatever value the field had, there would be
    no plan. Called only for problems that are proven to have no plan."""
    least_capacity: Callable[[P], int] | None = None
    """A lower bound on the capacity with which a problem can have a plan."""
    unit_of: Callable[[P], Unit] | None = None
    """The unit of a problem's objective, if that depends on the problem; otherwise it is :attr:`unit`."""
    proven: Callable[[P, int | None, int | None], dict[str, Any]] = lambda problem, objective, bound: {}
    """``(problem, objective, bound) -> details``, which say in the kind's own terms what is proven."""
    granularity: Callable[[P], int] = lambda problem: 1
    """A number of at least 1 that divides all objectives of a problem. Bounds are rounded up to the next multiple of it."""
    first_bounds: Callable[[P], Iterable[int]] = lambda problem: ()
    """Yields better and better bounds of a problem. Each takes some hundredths of a second, and all together take some
    tenths."""
    counts: tuple[str, ...] = ()
    """Keys of the details (:attr:`facts`) that describe the size of a problem."""
    highlights: tuple[Highlight, ...] = ()
    """The facts that summaries print."""
    decisions: tuple[Decision, ...] = ()
    """The sorts of decision that a plan consists of, such as the offsets of buffers. If there are none, plans are compared
    field by field."""
    offset_table: Callable[[P, Q], OffsetTable] | None = None
    """The offset table of a valid plan, for ``--emit`` (:mod:`stowplan.backends.emit`)."""
    extras: Callable[[], Extras[P, Q]] = lambda: Extras()
    """Imports the parts that most calls do not need."""
    presenter: Callable[[Kind[Any, Any]], Any] | None = None
    """Imports and makes the kind's :class:`stowplan.report.presenter.Presenter`. If None, it is the ``PRESENTER`` of
    ``report/<kind>.py``, or the generic one."""

    @property
    def baseline(self) -> str:
        """Name of the baseline over which speedups are computed."""
        return self.baselines[0].name

    def unit_for(self, problem: P) -> Unit:
        """The unit of objectives and bounds of a problem."""
        return self.unit if self.unit_of is None else self.unit_of(problem)

    def initial(self, problem: P) -> dict[str, Q]:
        """The plans of the baselines that cost nothing to make, by name."""
        plans = ((baseline.name, baseline.plan(problem)) for baseline in self.baselines)
        return {name: plan for name, plan in plans if plan is not None}

    def makers(self, problem: P) -> dict[str, Candidate]:
        """The candidates that make plans of baselines, by name."""
        return {baseline.name: baseline.maker(problem) for baseline in self.baselines if baseline.maker is not None}

    def awaited(self, problem: P) -> set[str]:
        """Names of the baselines for which a run waits even if nothing is left to gain (:attr:`Baseline.is_awaited`)."""
        return {baseline.name for baseline in self.baselines if baseline.is_awaited(problem)}

    def finish(self, problem: P, plan: Q, objective: int) -> Q:
        """Returns the plan with the verified objective and the kind's :attr:`labels` in its fields."""
        return msgspec.structs.replace(plan, objective=objective, **self.labels(problem, plan))

    def diff(self, problem: P, first: Q, second: Q) -> tuple[Part, ...]:
        """The decisions in which two valid plans of a problem differ, by sort of decision."""
        parts = tuple(decision.compare(problem, first, second) for decision in self.decisions)
        return parts or field_by_field(first, second)


def identify(problem: Any, cost_model: str | None = None, target: str | None = None) -> dict[str, str]:
    """The identity of a problem, for :attr:`Kind.identity`. The target and the cost model must be given as text for problems
    without the fields ``target`` and ``cost_model``."""
    return {
        "program": problem.name,
        "target": problem.target if target is None else target,
        "cost_model": problem.cost_model if cost_model is None else cost_model,
        "digest": problem.digest,
    }


def check(kind: Kind[Any, Any], problem: Any, plan: Any) -> Verification[Any]:
    """Verifies any object as a plan of the kind. It raises no error: errors of the verifier become violations."""
    try:
        if isinstance(plan, kind.plan):
            return kind.verify(problem, plan)
        violation = Violation("wrong_kind", f"found {describe_plan(plan)}, expected a plan of {kind.name}")
    except Exception as error:  # an error of the verifier must not end the run, which may have valid plans
        violation = Violation("the verifier failed", f"{type(error).__name__}: {error}")
    return Verification((violation,), None)


def describe_plan(plan: Any) -> str:
    """Describes an object that was given as a plan, for error messages: ``a plan of packing``, ``a str``, ..."""
    other = kinds.of_format(getattr(plan, "format", None), "plan")
    return f"a {type(plan).__name__}" if other is None else f"a plan of {other.name}"


def kind(name: str) -> Kind[Any, Any]:
    """The kind of this name; raises UsageError if there is none, or if the registered object is no :class:`Kind`."""
    return _checked_kind(kinds.by_name(name))


def kind_of(problem: object) -> Kind[Any, Any]:
    """The kind of a problem object; raises UsageError for other objects, or if the registered object is no :class:`Kind`. Only
    that kind is imported."""
    return _checked_kind(kinds.of_problem(problem))


def registered() -> list[Kind[Any, Any]]:
    """All kinds. This imports every one of them; raises UsageError if a registered object is no :class:`Kind`."""
    return list(map(_checked_kind, kinds.registered()))


def _checked_kind(kind: kinds.BaseKind) -> Kind[Any, Any]:
    """Checks that a registered kind is a complete :class:`Kind`."""
    if not isinstance(kind, Kind):
        raise UsageError(f"found a {type(kind).__name__} as the kind {kind.name}, expected a stowplan.kernel.kind.Kind")
    return kind
