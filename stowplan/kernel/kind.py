"""What a kind of problem is: one object that says how its plans are verified, found and shown.

Each is declared in ``portfolio/<kind>/kind.py``. What takes long to import, and most calls go without, is
imported by a function there: :attr:`Kind.function`, :attr:`Kind.extras`, :attr:`Kind.certificate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from stowplan import kinds
from stowplan.document import PlanDocument, ProblemDocument
from stowplan.errors import UsageError

# What declares a kind has all of it from here.
from stowplan.kernel.candidate import Candidate as Candidate
from stowplan.kernel.context import Context, Options
from stowplan.kernel.plan_changes import KeepClose, PlanChanges
from stowplan.models.decisions import Decision, Part, field_by_field
from stowplan.models.hint import HintValues
from stowplan.models.offset_table import OffsetTable
from stowplan.verification import Verification, Violation

P = TypeVar("P", bound=ProblemDocument[PlanDocument])
Q = TypeVar("Q", bound=PlanDocument)

Function = Callable[[Any, Context], None]
"""What a candidate does: ``(problem, context) -> None``."""


@dataclass(frozen=True)
class Extras(Generic[P, Q]):
    """What a kind brings beside solving."""

    hints: HintValues[P, Q] | None = None
    """The values that hints may have; a kind without takes only plans as hints."""
    changes: Callable[[P, KeepClose], PlanChanges] | None = None
    """How plans are kept close (:mod:`stowplan.kernel.plan_changes`); without it fields are reverted."""
    adapter: Any = None
    """How its policies are validated, a :class:`stowplan.portfolio.validation.adapter.Adapter`; None for a kind without."""


@dataclass(frozen=True, kw_only=True)
class Baseline(Generic[P, Q]):
    """A plan that results are compared with: made at no cost before the run, or by a candidate where it is named."""

    name: str
    plan: Callable[[P], Q | None] = lambda problem: None
    """The plan, where making it costs nothing; None where it does, or where there is none."""
    maker: Callable[[P], Candidate] | None = None
    """The candidate that makes it, of the family ``baseline``; a run has it where the baseline is named and has no plan yet."""
    is_known: bool = False
    """Whether its name is reserved where a problem has no plan of it; that of the first, and of one with a maker, always is."""
    is_awaited: Callable[[P], bool] = lambda problem: False
    """Whether heuristics make it first: a run of a problem that could stop waits for it, until there is a plan, or is known to
    be none (:meth:`stowplan.kernel.context.Context.no_plan`)."""


@dataclass(frozen=True, kw_only=True)
class Kind(kinds.BaseKind, Generic[P, Q]):
    """A kind of problem, of problems ``P`` and plans ``Q``. What has a default may be left out."""

    problem: type[P]
    plan: type[Q]
    verify: Callable[[P, Q], Verification[Any]]
    """:func:`check` takes anything for a plan."""
    bound: Callable[[P], int]
    """A bound that costs nothing."""
    candidates: Callable[[P, Options], list[Candidate]]
    """``(problem, options)`` to all candidates there are, most useful first."""
    function: Callable[[str], Callable[[P, Context], None]]
    """What the candidate of a name does, ``(problem, context) -> None``; imports what that needs."""
    baselines: tuple[Baseline[P, Q], ...]
    """What results are compared with; speedups are over the first."""
    facts: Callable[[P, Q | None, Verification[Any] | None], dict[str, Any]]
    """``(problem, plan, what the verifier said of it)`` to details for the result; without a plan both are None."""
    identity: Callable[[P], dict[str, str]]
    """Program, target, cost model and digest of a problem."""
    labels: Callable[[P, Q], dict[str, Any]] = lambda problem, plan: {
        field: getattr(problem, field) for field in ("name", "target") if hasattr(plan, field)
    }
    """``(problem, plan)`` to the fields of plans that repeat what the problem says, for whoever reads or applies them."""
    asks_for_any: Callable[[P], bool] = lambda problem: False
    """Whether any valid plan will do, however good others may be."""
    assumptions: tuple[str, ...] = ()
    """Rules that could be others: fields of the problem (``banks.capacity``), with the value that forbids nothing where there
    is one (``stalls=allowed``)."""
    proven: Callable[[P, int | None, int | None], dict[str, Any]] = lambda problem, objective, bound: {}
    """``(problem, objective, bound)`` to details that say in the kind's own terms what is proven."""
    first_bounds: Callable[[P], Iterable[int]] = lambda problem: ()
    """Better and better bounds of a problem, all of them in tenths of a second, and each in some hundredths."""
    counts: tuple[str, ...] = ()
    """Names of the facts that say how large a problem is."""
    highlights: tuple[str, ...] = ()
    """Names of the facts that summaries print."""
    decisions: tuple[Decision, ...] = ()
    """What its plans decide; plans of a kind without are compared field by field."""
    offset_table: Callable[[P, Q], OffsetTable] | None = None
    """The table of a valid plan, for ``--emit`` (:mod:`stowplan.backends.emit`)."""
    extras: Callable[[], Extras[P, Q]] = lambda: Extras()
    """Imports what most calls go without."""
    presenter: Callable[[Kind[Any, Any]], Any] | None = None
    """Imports and makes its :class:`stowplan.report.presenter.Presenter`; without it there is the ``PRESENTER`` of
    ``report/<kind>.py``, or the generic one."""

    @property
    def baseline(self) -> str:
        """Name of the baseline that speedups are over."""
        return self.baselines[0].name

    def initial(self, problem: P) -> dict[str, Q]:
        """The plans of baselines that cost nothing to make, by name."""
        plans = ((baseline.name, baseline.plan(problem)) for baseline in self.baselines)
        return {name: plan for name, plan in plans if plan is not None}

    def makers(self, problem: P) -> dict[str, Candidate]:
        """The candidates that make baselines, by name."""
        return {baseline.name: baseline.maker(problem) for baseline in self.baselines if baseline.maker is not None}

    def awaited(self, problem: P) -> set[str]:
        """Names of the baselines that a run waits for, though nothing is left to gain."""
        return {baseline.name for baseline in self.baselines if baseline.is_awaited(problem)}

    def finish(self, problem: P, plan: Q, objective: int) -> Q:
        """A plan with the verified objective and the kind's :attr:`labels` written into it."""
        return msgspec.structs.replace(plan, objective=objective, **self.labels(problem, plan))

    def diff(self, problem: P, first: Q, second: Q) -> tuple[Part, ...]:
        """What two valid plans of a problem decide differently, by sorts of decisions."""
        parts = tuple(decision.compare(problem, first, second) for decision in self.decisions)
        return parts or field_by_field(first, second)


def identify(problem: Any, cost_model: str | None = None, target: str | None = None) -> dict[str, str]:
    """The identity of a problem; its cost model and its target in words where it does not name them itself."""
    return {
        "program": problem.name,
        "target": problem.target if target is None else target,
        "cost_model": problem.cost_model if cost_model is None else cost_model,
        "digest": problem.digest,
    }


def check(kind: Kind[Any, Any], problem: Any, plan: Any) -> Verification[Any]:
    """What the kind's verifier says of anything that is given as a plan; never raises."""
    try:
        if isinstance(plan, kind.plan):
            return kind.verify(problem, plan)
        violation = Violation("wrong_kind", f"found {describe_plan(plan)}, expected a plan of {kind.name}")
    except Exception as error:  # a plan that the verifier stumbles over must not cost the plans at hand
        violation = Violation("the verifier failed", f"{type(error).__name__}: {error}")
    return Verification((violation,), None)


def describe_plan(plan: Any) -> str:
    """What is given as a plan, for an error message: ``a plan of packing``, ``a str`` ..."""
    other = kinds.of_format(getattr(plan, "format", None), "plan")
    return f"a {type(plan).__name__}" if other is None else f"a plan of {other.name}"


def kind(name: str) -> Kind[Any, Any]:
    """Kind of this name; raises UsageError where there is none."""
    return _whole(kinds.by_name(name))


def kind_of(problem: object) -> Kind[Any, Any]:
    """Kind of a problem object; raises UsageError for anything else. Imports that kind alone."""
    return _whole(kinds.of_problem(problem))


def registered() -> list[Kind[Any, Any]]:
    """All kinds, imported."""
    return list(map(_whole, kinds.registered()))


def _whole(kind: kinds.BaseKind) -> Kind[Any, Any]:
    if not isinstance(kind, Kind):
        raise UsageError(f"found a {type(kind).__name__} as the kind {kind.name}, expected a stowplan.kernel.kind.Kind")
    return kind
