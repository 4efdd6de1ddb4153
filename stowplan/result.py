"""The result that ``solve`` returns, which has the same fields for every kind of problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal

import msgspec

from stowplan import kinds
from stowplan.result_text import format_gap, format_percent, format_ratio
from stowplan.units import PS, Unit

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    PlanT = TypeVar("PlanT", default=Any)
else:
    from typing import TypeVar

    PlanT = TypeVar("PlanT")

Status = Literal["optimal", "feasible", "infeasible", "no_plan"]
StopReason = Literal[
    "optimal", "fits", "gap_reached", "criterion", "time_limit", "work_limit", "cancelled", "infeasible", "candidates_done"
]
"""Why a run ended; see :data:`STOPPED`."""
#: Explanation of each stop reason, as printed in summaries.
STOPPED = {
    "optimal": "the plan is proven optimal",
    "infeasible": "it is proven that there is no plan",
    "fits": "any plan within the capacity was asked for",
    "gap_reached": "the gap that was asked for was reached",
    "criterion": "the caller's criterion was met",
    "time_limit": "the time was over",
    "work_limit": "the work of a deterministic run was done",
    "cancelled": "it was cancelled",
    "candidates_done": "every candidate had finished",
}
Outcome = Literal["finished", "stopped", "rejected", "failed", "skipped"]
"""How a candidate ended. ``finished``: it had nothing left to do. ``stopped``: it was ended by the limit, or because the run
was over. ``rejected``: the verifier rejected one of its plans. ``failed``: it raised an error or its process died. ``skipped``:
it was never started."""


@dataclass(frozen=True)
class Progress:
    """State of a run at one moment, passed to the callback ``on_progress`` and to the criteria of ``stop``."""

    seconds: float
    """Seconds since the call of ``solve``."""
    objective: int | None
    """Objective of the best verified plan so far; None if there is no plan yet."""
    bound: int | None
    """Best lower bound that has been proven so far; None if there is none."""
    source: str
    """Name of the candidate that reported the last improvement."""
    improved: float | None = None
    """When the best plan was found, in seconds since the call; None if there is no plan yet."""


def is_within(gap: float, objective: int | None, bound: int | None) -> bool:
    """Whether ``(objective - bound) / objective`` is at most ``gap``; False if the objective or the bound is missing."""
    return objective is not None and bound is not None and objective - bound <= gap * objective


class HistoryEntry(msgspec.Struct, frozen=True):
    """One improvement of the best plan or of the bound during a run."""

    seconds: float
    """Seconds since the call of ``solve``."""
    source: str
    """Name of the candidate that found the improvement."""
    objective: int | None
    """Objective of the best verified plan after this improvement."""
    bound: int | None
    """Best proven lower bound after this improvement."""


class CandidateReport(msgspec.Struct, frozen=True):
    """What one candidate, a method that looks for plans or bounds, found, how long it took, and how it ended."""

    name: str
    objective: int | None
    """Objective of the best valid plan that it reported; None if there is none."""
    bound: int | None
    """Best lower bound that it reported; None if there is none, or if a verified plan refuted it."""
    seconds: float
    """Seconds that it worked, in all of its turns together."""
    outcome: Outcome
    note: str = ""
    """Remarks for people, such as the error with which it failed."""
    family: str = ""
    """``heuristic``, ``learned``, ``exact`` or ``baseline``; empty in results that were stored by earlier versions."""


class Provenance(msgspec.Struct, frozen=True):
    """Where the plan of a result comes from, and the options that are needed to compute it again."""

    candidate: str
    """Source of the plan: the candidate that found it, or the name of the baseline or of the caller's plan that it is. It is
    empty if there is no plan."""
    seed: int
    deterministic: bool
    versions: dict[str, str]
    """Versions of Python, of this package and of the packages that plans depend on, by name."""
    program: str
    """Name of the problem, usually that of the program that was read."""
    target: str
    """The target, as text."""
    cost_model: str
    """The cost model, or another description of what the objective counts."""
    problem_digest: str
    options: dict[str, Any] = {}
    """Options of the call, by name. In a deterministic run that was ended early, they are the options that give its plan."""
    checkpoint: str | None = None
    """Hash of the checkpoint that a learned candidate used."""
    checkpoint_training: str = ""
    """How the policy in that checkpoint was trained, if it is one that comes with this package."""
    guides: tuple[str, ...] = ()
    """File name and SHA-256 of each learned guide whose values a candidate used."""
    family: str = ""
    """Family of the candidate that found the plan: ``heuristic``, ``learned``, ``exact`` or ``baseline``; ``given`` if the
    caller passed the plan."""


class Assumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that all plans had to obey and that the caller could change, such as the capacity or an alignment."""

    name: str
    value: str
    instead: str = ""
    """What to try in its place, as a user writes it; empty if no option changes this rule."""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" + (f" (try {self.instead})" if self.instead else "")


class Result(msgspec.Struct, Generic[PlanT], frozen=True, kw_only=True):
    """The best plan that passed verification, what is proven about it, and how it was found.

    Objectives and bounds are integers in ``unit``; smaller is better.
    """

    kind: str
    """Name of the kind of problem, such as ``packing``."""
    plan: PlanT | None
    """The plan (a :class:`stowplan.document.PlanDocument`), or ``None`` if none was found or none exists."""
    objective: int | None
    """Objective of the plan; None without a plan."""
    bound: int | None
    """Proven lower bound: no valid plan has a smaller objective. It is the largest bound of all candidates, and is kept even if
    no plan was found."""
    status: Status
    """``optimal`` and ``infeasible`` are reported only with a proof. ``feasible``: there is a plan, but no proof that it is
    optimal. ``no_plan``: no plan was found, and it is not proven that none exists, for example because time ran out."""
    stop_reason: StopReason
    """Why the run ended; :data:`STOPPED` explains each reason."""
    verified: bool
    """Whether the verifier has accepted the plan; False only without a plan."""
    baseline_name: str
    """Name of the baseline that the caller named, otherwise of the kind's default baseline."""
    baseline: int | None
    """Objective of the baseline named by ``baseline_name``."""
    baselines: dict[str, int]
    """Objectives of all baselines by name."""
    history: tuple[HistoryEntry, ...]
    """Improvements of the plan and of the bound, in the order in which they were found."""
    candidates: tuple[CandidateReport, ...]
    """Reports of all candidates: of those that ran, in the order in which they started, then of the others."""
    provenance: Provenance
    seconds: float
    """Seconds from the call of ``solve`` to the end of the run."""
    unit: Unit = PS
    """Unit of the objective and the bound."""
    details: dict[str, Any] = {}
    """Facts that depend on the kind: the capacity, the normalised return, stalls and so on."""
    highlights: dict[str, str] = {}
    """Lines that the summary prints about the details: the text of each line by its first word."""
    warnings: tuple[str, ...] = ()
    """Messages for people, for example about candidates that failed."""
    assumptions: tuple[Assumption, ...] = ()
    """The rules that the bound rests on; ``optimal`` and ``infeasible`` hold under these rules."""
    seconds_before: float = 0.0
    """Seconds of the time limit that had passed when ``solve`` was called, for starting Python and reading the input. It is 0
    if the time limit began with the call."""
    cut_short: bool = False
    """Whether a deterministic run was ended before its work was complete. Another call may then find a better plan."""
    certificate: Any = None
    """Proof of the bound (a :class:`stowplan.certificates.certificate.Certificate`), if ``certify`` was set."""
    problem: Any = None
    """The problem that was solved, which pictures of the plan need. None if it is not available, as in results loaded from a
    file."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumptions that a proof of infeasibility rests on, as text; empty for every other status."""
        return (*map(str, self.assumptions),) if self.status == "infeasible" else ()

    @property
    def gap(self) -> float | None:
        """``(objective - bound) / objective``: 0 if the plan is proven optimal, None if the objective or the bound is
        missing."""
        return self._gap_to(self.bound)

    @property
    def certified_bound(self) -> int | None:
        """The bound that the certificate proves. None if there is no certificate, or if it proves that no plan exists."""
        return self.certificate.bound if self.proof else None

    @property
    def proof(self) -> str:
        """Form of the certificate's proof; empty if there is no certificate, or if its bound rests on trusting a solver."""
        return self.certificate.form if self.certificate is not None and self.certificate.is_proof else ""

    @property
    def certified_gap(self) -> float | None:
        """The same as :attr:`gap`, computed from the certified bound."""
        return self._gap_to(self.certified_bound)

    def _gap_to(self, bound: int | None) -> float | None:
        if self.objective is None or bound is None:
            return None
        return max(0.0, (self.objective - bound) / self.objective) if self.objective else 0.0

    @property
    def speedup(self) -> float | None:
        """``baseline / objective``; None if either is missing, or if only the objective is 0. It is at least 1, unless
        ``keep_close`` allowed a plan that is worse than the best one."""
        return _ratio(self.baseline, self.objective)

    @property
    def exit_code(self) -> int:
        """Exit code of the command line for this result: 0 if there is a plan, 1 if it is proven infeasible, 3 if no plan was
        found, 130 if the run was cancelled."""
        if self.stop_reason == "cancelled":
            return 130
        return {"infeasible": 1, "no_plan": 3}.get(self.status, 0)

    @property
    def gain_percent(self) -> float | None:
        """How many per cent smaller than the baseline's the objective is. None if either is missing, or if the unit consists of
        two numbers."""
        if self.baseline is None or self.objective is None or not self.unit.has_ratios:
            return None
        return 100 * (self.baseline - self.objective) / self.baseline if self.baseline else 0.0 if self.objective == 0 else None

    @property
    def is_baseline(self) -> bool:
        """Whether the plan is the plan of the baseline, because nothing better was found."""
        return self.objective is not None and self.provenance.candidate == self.baseline_name

    @property
    def depends_on_limit(self) -> bool:
        """Whether a longer time limit might have given a better result. A deterministic run is limited by work, not by time."""
        return self.stop_reason not in ("optimal", "infeasible", "fits", "gap_reached") and not self.provenance.deterministic

    @property
    def is_reproducible(self) -> bool:
        """Whether another call with the same arguments could be expected to say the same.

        This holds if the result is proven, if no work was left, or if the run used its whole limit. It does not hold if the run
        was cancelled, if a criterion of the caller ended it, if a candidate failed, or if part of the work of a deterministic
        run was left out.
        """
        if self.stop_reason in ("cancelled", "criterion") or any(report.outcome == "failed" for report in self.candidates):
            return False
        return not self.cut_short

    def speedup_over(self, name: str) -> float | None:
        """:attr:`speedup` over the baseline of this name; None if no such baseline has an objective, or if there is no plan."""
        return _ratio(self.baselines.get(name), self.objective)

    def within(self, time_limit: float, seconds_before: float) -> Result[PlanT]:
        """Returns this result as that of a call whose time limit began before ``solve`` was called.

        Parameters
        ----------
        time_limit
            The caller's whole time limit in seconds.
        seconds_before
            Seconds of that limit that had passed when ``solve`` was called.
        """
        provenance = msgspec.structs.replace(self.provenance, options=self.provenance.options | {"time_limit": time_limit})
        return msgspec.structs.replace(self, provenance=provenance, seconds_before=round(seconds_before, 3))

    @property
    def stopped(self) -> str:
        """Why and when the run ended, as text: ``stopped at the time limit of 5.0 s (3.2 s of it reading and start-up)``, or
        ``ended after 0.2 s: the plan is proven optimal``."""
        limit = self.provenance.options.get("time_limit")
        if self.stop_reason != "time_limit" or limit is None:
            return f"ended after {self.seconds:.1f} s: {STOPPED[self.stop_reason]}"
        if self.provenance.deterministic:
            # A deterministic run is limited by work. The time limit matters only if the work takes twice as long, when its
            # processes are killed.
            return f"stopped at twice the time limit of {limit} s"
        part = "of it reading" if self.seconds_before < limit else "for reading"
        before = f" ({self.seconds_before:.1f} s {part} and start-up)" if self.seconds_before >= 0.05 else ""
        return f"stopped at the time limit of {limit} s{before}"

    def __repr__(self) -> str:
        return f"<stowplan.Result\n{self.summary()}>"

    def to_dict(self, plan: Any = None) -> dict[str, Any]:
        """Returns the result as plain values for JSON, without the problem and the certificate.

        Parameters
        ----------
        plan
            A value to write in place of the plan, such as the path of its file; by default the plan itself.
        """
        names = [field for field in self.__struct_fields__ if field not in ("plan", "problem", "highlights", "certificate")]
        values: dict[str, Any] = {"plan": msgspec.to_builtins(self.plan) if plan is None else plan}
        values.update((name, msgspec.to_builtins(getattr(self, name))) for name in names)
        values["unit"] = self.unit.name
        certified = () if self.certificate is None else ("certified_bound", "certified_gap", "proof")
        derived = ("gap", "speedup", "gain_percent", "is_baseline", "is_reproducible", "stopped", *certified)
        return values | {name: getattr(self, name) for name in derived}

    def summary(self) -> str:
        """A summary of a few lines, as printed by ``print(result)`` and the command line."""
        return _summary(self)

    def _repr_html_(self) -> str:
        """HTML for notebooks: the main figures, the candidates, and a picture of the plan."""
        shown: str = kinds.load("stowplan.report.notebook:result_html")(self)
        return shown


def _ratio(baseline: int | None, objective: int | None) -> float | None:
    """``baseline / objective``. None if either is missing, or if the objective is 0 and the baseline is not."""
    if baseline is None or objective is None:
        return None
    if objective == 0:
        return 1.0 if baseline == 0 else None
    return baseline / objective


def _summary(result: Result) -> str:
    """The lines of :meth:`Result.summary`."""
    lines = [f"{result.provenance.program} on {result.provenance.target} ({result.provenance.cost_model})"]
    shown = result.unit.write_apart((result.objective, result.bound, result.certified_bound, *result.baselines.values()))
    if result.objective is None:
        lines.append("  no plan")
    else:
        how = "verified" if result.verified else "NOT verified"
        lines.append(f"  objective  {shown[result.objective]}  ({how}, by {result.provenance.candidate})")
    if result.bound is not None and result.unit.has_ratios:
        gap = "" if result.gap is None else f"  gap {format_gap(result.gap)}"
        lines.append(f"  bound      {shown[result.bound]}{gap}")
    if result.certificate is not None:
        lines.append(f"  certified  {certified(result, shown)}")
    lines.append(f"  status     {result.status}, {result.stopped}")
    lines.extend(f"  {label:<9}  {text}" for label, text in result.highlights.items())
    if "explanation" in result.details:
        lines.append(f"  because    {result.details['explanation']}")
    lines.extend(f"  assuming   {assumption}" for assumption in result.assumed)
    what = "speedup" if result.unit == PS else "ratio"
    for name, value in result.baselines.items():
        ratio = result.speedup_over(name)
        if not result.unit.has_ratios:
            lines.append(f"  baseline   {name}: {shown[value]}")
            continue
        ratio_text = f"{format_ratio(ratio)} over {name} ({shown[value]})" if ratio else ""
        lines.append(f"  {what:<9}  {ratio_text}" if ratio_text else f"  baseline   {name}")
    if "baseline" in result.provenance.options and (gain := describe_gain(result)):
        lines.append(f"  gain       {gain}")
    lines.extend(f"  warning    {warning}" for warning in result.warnings)
    return "\n".join(lines)


def certified(result: Result, shown: Mapping[Any, str]) -> str:
    """Says what the certificate of a result proves; the result must have one. ``shown`` maps objectives and bounds to their
    text."""
    if not result.proof:
        return f"nothing: {result.certificate.proof.get('solver') or 'a solver'} is trusted"
    if result.certificate.bound is None:
        return f"no plan exists  (by {result.proof})"
    gap = result.certified_gap if result.unit.has_ratios else None
    gap_text = "" if gap is None else f"  gap {format_gap(gap)}"
    return f"{shown[result.certificate.bound]}{gap_text}  (by {result.proof})"


def describe_gain(result: Result) -> str:
    """Says how much the plan improves on the baseline; empty if there is no plan, or if the baseline has no objective."""
    if result.baseline is None or result.objective is None:
        return ""
    if result.is_baseline:
        return f"none over {result.baseline_name}: nothing better was found, and this is its plan"
    if result.objective == result.baseline:
        return f"none over {result.baseline_name}: the plan is another of the same objective"
    if result.gain_percent is None:
        after, before = result.unit.write(result.objective), result.unit.write(result.baseline)
        return f"{after} in place of {before} of {result.baseline_name}"
    return f"{format_percent(result.gain_percent)} better than {result.baseline_name}"
