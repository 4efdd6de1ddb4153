"""What ``solve`` returns, for every kind of problem."""

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
#: Why a run ended, for people.
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
"""Of a candidate. ``rejected``: a plan of it failed verification; ``stopped``: ended by the limit."""


@dataclass(frozen=True)
class Progress:
    """What is known at a moment of a run: what ``on_progress`` and criteria of ``stop`` are given."""

    seconds: float
    """Since the call."""
    objective: int | None
    """Of the best verified plan so far."""
    bound: int | None
    """The best proven so far."""
    source: str
    """Candidate that last found something better."""
    improved: float | None = None
    """When the best plan came, in seconds since the call; None where there is none."""


def is_within(gap: float, objective: int | None, bound: int | None) -> bool:
    """Whether (objective - bound) / objective is at most the gap; not while either is missing."""
    return objective is not None and bound is not None and objective - bound <= gap * objective


class HistoryEntry(msgspec.Struct, frozen=True):
    """The incumbent or the bound improved."""

    seconds: float
    source: str
    """Candidate that found it."""
    objective: int | None
    """Best verified objective so far."""
    bound: int | None
    """Best proven bound so far."""


class CandidateReport(msgspec.Struct, frozen=True):
    """What became of one candidate."""

    name: str
    objective: int | None
    bound: int | None
    seconds: float
    outcome: Outcome
    note: str = ""
    family: str = ""
    """``heuristic``, ``learned``, ``exact`` or ``baseline``; empty in results of earlier versions."""


class Provenance(msgspec.Struct, frozen=True):
    """How to get this result again."""

    candidate: str
    seed: int
    deterministic: bool
    versions: dict[str, str]
    program: str
    target: str
    cost_model: str
    problem_digest: str
    options: dict[str, Any] = {}
    checkpoint: str | None = None
    """Hash of the checkpoint of a learned candidate."""
    checkpoint_training: str = ""
    """How that policy was trained, of the package's own."""
    guides: tuple[str, ...] = ()
    """File and sha256 of each learned guide whose values a candidate took up."""
    family: str = ""
    """Of the candidate whose plan it is: ``heuristic``, ``learned``, ``exact`` or ``baseline``; ``given`` of plans at hand."""


class Assumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that plans were held to, and that could be another."""

    name: str
    value: str
    instead: str = ""
    """What to try in its place, as a user writes it; empty where there is no option."""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" + (f" (try {self.instead})" if self.instead else "")


class Result(msgspec.Struct, Generic[PlanT], frozen=True, kw_only=True):
    """The verified best plan, what is proven about it, and how it was found.

    Objectives and bounds are integers in ``unit``; smaller is better.
    """

    kind: str
    plan: PlanT | None
    """The plan (a :class:`stowplan.document.PlanDocument`), or ``None`` where there is none."""
    objective: int | None
    bound: int | None
    """Proven: no valid plan is better. The best of all candidates' bounds; kept even where no plan was found."""
    status: Status
    """``optimal`` and ``infeasible`` only with a proof; running out of time is neither."""
    stop_reason: StopReason
    verified: bool
    baseline_name: str
    baseline: int | None
    """Objective of the named baseline."""
    baselines: dict[str, int]
    """Objectives of all baselines."""
    history: tuple[HistoryEntry, ...]
    candidates: tuple[CandidateReport, ...]
    provenance: Provenance
    seconds: float
    """From the call of ``solve`` to the end of the run."""
    unit: Unit = PS
    details: dict[str, Any] = {}
    """Facts of the kind: capacity, normalised return, stalls and the like."""
    highlights: tuple[str, ...] = ()
    """Names of the details that the summary prints."""
    warnings: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    """What the bound rests on, and so what ``optimal`` and ``infeasible`` are said of."""
    seconds_before: float = 0.0
    """Seconds of the time limit that had passed when ``solve`` was called, for starting up and reading the input: 0 where the
    limit is that of the call."""
    cut_short: bool = False
    """Whether a deterministic run was ended before its work was done: another may come further."""
    certificate: Any = None
    """What is shown of the bound (a :class:`stowplan.certificates.certificate.Certificate`), where that was asked for."""
    problem: Any = None
    """What was solved, for pictures of the plan; None where it is not at hand, as in results that were stored."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """What a proof that there is no plan rests on, for people; empty where there is none."""
        return (*map(str, self.assumptions),) if self.status == "infeasible" else ()

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective: 0 where proven optimal, None where either is missing."""
        return self._gap_to(self.bound)

    @property
    def certified_bound(self) -> int | None:
        """The bound that the certificate proves; None where there is none, or it proves that there is no plan."""
        return self.certificate.bound if self.proof else None

    @property
    def proof(self) -> str:
        """Form of the certificate's proof; empty where it has none, and a solver must be trusted."""
        return self.certificate.form if self.certificate is not None and self.certificate.is_proof else ""

    @property
    def certified_gap(self) -> float | None:
        """As :attr:`gap`, of the certified bound."""
        return self._gap_to(self.certified_bound)

    def _gap_to(self, bound: int | None) -> float | None:
        if self.objective is None or bound is None:
            return None
        return max(0.0, (self.objective - bound) / self.objective) if self.objective else 0.0

    @property
    def speedup(self) -> float | None:
        """Baseline / objective; at least 1 whenever the baseline is a candidate."""
        return _ratio(self.baseline, self.objective)

    @property
    def exit_code(self) -> int:
        """What the command line returns for it: 0 solved, 1 proven infeasible, 3 no plan, 130 cancelled."""
        if self.stop_reason == "cancelled":
            return 130
        return {"infeasible": 1, "no_plan": 3}.get(self.status, 0)

    @property
    def gain_percent(self) -> float | None:
        """What the plan saves of the baseline's objective, in per cent; None where either is missing, or has two numbers."""
        if self.baseline is None or self.objective is None or not self.unit.has_ratios:
            return None
        return 100 * (self.baseline - self.objective) / self.baseline if self.baseline else 0.0 if self.objective == 0 else None

    @property
    def is_baseline(self) -> bool:
        """Whether the plan is the baseline's own: nothing better was found."""
        return self.objective is not None and self.provenance.candidate == self.baseline_name

    @property
    def depends_on_limit(self) -> bool:
        """Whether more time might have given a better result; a deterministic run is limited by work."""
        return self.stop_reason not in ("optimal", "infeasible", "fits", "gap_reached") and not self.provenance.deterministic

    @property
    def is_reproducible(self) -> bool:
        """Whether it says what another call with the same arguments would say as well.

        It is proven, or nothing was left to do, or the run had its whole limit. It was not cancelled, nor ended by a criterion
        of the caller's; no candidate failed, and no part of deterministic work was left out.
        """
        if self.stop_reason in ("cancelled", "criterion") or any(report.outcome == "failed" for report in self.candidates):
            return False
        return not self.cut_short

    def speedup_over(self, name: str) -> float | None:
        """Speedup over another of the baselines, None where it has no objective."""
        return _ratio(self.baselines.get(name), self.objective)

    def within(self, time_limit: float, seconds_before: float) -> Result[PlanT]:
        """The same as the result of a caller's limit, in seconds, of which so many had passed when solving began."""
        provenance = msgspec.structs.replace(self.provenance, options=self.provenance.options | {"time_limit": time_limit})
        return msgspec.structs.replace(self, provenance=provenance, seconds_before=round(seconds_before, 3))

    @property
    def stopped(self) -> str:
        """Why and when the run ended, for people: ``stopped at the time limit of 5.0 s (3.2 s of it reading and start-up)``, or
        ``ended after 0.2 s: the plan is proven optimal``."""
        limit = self.provenance.options.get("time_limit")
        if self.stop_reason != "time_limit" or limit is None:
            return f"ended after {self.seconds:.1f} s: {STOPPED[self.stop_reason]}"
        if self.provenance.deterministic:
            # It is limited by work, and what is not done then is ended from outside.
            return f"stopped at twice the time limit of {limit} s"
        part = "of it reading" if self.seconds_before < limit else "for reading"
        before = f" ({self.seconds_before:.1f} s {part} and start-up)" if self.seconds_before >= 0.05 else ""
        return f"stopped at the time limit of {limit} s{before}"

    def __repr__(self) -> str:
        return f"<stowplan.Result\n{self.summary()}>"

    def to_dict(self, plan: Any = None) -> dict[str, Any]:
        """Plain values, without the problem and the certificate.

        Parameters
        ----------
        plan
            Stands for the plan, such as its path; by default the plan itself.
        """
        names = [field for field in self.__struct_fields__ if field not in ("plan", "problem", "highlights", "certificate")]
        values: dict[str, Any] = {"plan": msgspec.to_builtins(self.plan) if plan is None else plan}
        values.update((name, msgspec.to_builtins(getattr(self, name))) for name in names)
        values["unit"] = self.unit.name
        certified = () if self.certificate is None else ("certified_bound", "certified_gap", "proof")
        derived = ("gap", "speedup", "gain_percent", "is_baseline", "is_reproducible", "stopped", *certified)
        return values | {name: getattr(self, name) for name in derived}

    def summary(self) -> str:
        """A few lines for people."""
        return _summary(self)

    def _repr_html_(self) -> str:
        """What notebooks show: figures, candidates, and a picture of the plan."""
        shown: str = kinds.load("stowplan.report.notebook:result_html")(self)
        return shown


def _ratio(baseline: int | None, objective: int | None) -> float | None:
    """How many times faster; None where either is missing, or where one takes no time and the other does."""
    if baseline is None or objective is None:
        return None
    if objective == 0:
        return 1.0 if baseline == 0 else None
    return baseline / objective


def _summary(result: Result) -> str:
    """A few lines for people."""
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
    lines.extend(f"  {name:<9}  {result.details[name]}" for name in result.highlights if name in result.details)
    if "explanation" in result.details:
        lines.append(f"  because    {result.details['explanation']}")
    lines.extend(f"  assuming   {assumption}" for assumption in result.assumed)
    what = "speedup" if result.unit == PS else "ratio"
    for name, value in result.baselines.items():
        ratio = result.speedup_over(name)
        if not result.unit.has_ratios:
            lines.append(f"  baseline   {name}: {shown[value]}")
            continue
        given = f"{format_ratio(ratio)} over {name} ({shown[value]})" if ratio else ""
        lines.append(f"  {what:<9}  {given}" if given else f"  baseline   {name}")
    if "baseline" in result.provenance.options and (gain := gained(result)):
        lines.append(f"  gain       {gain}")
    lines.extend(f"  warning    {warning}" for warning in result.warnings)
    return "\n".join(lines)


def certified(result: Result, shown: Mapping[Any, str]) -> str:
    """What the certificate proves, for people; ``shown`` has values as they are written."""
    if not result.proof:
        return f"nothing: {result.certificate.proof.get('solver') or 'a solver'} is trusted"
    if result.certificate.bound is None:
        return f"no plan exists  (by {result.proof})"
    gap = result.certified_gap if result.unit.has_ratios else None
    gap_text = "" if gap is None else f"  gap {format_gap(gap)}"
    return f"{shown[result.certificate.bound]}{gap_text}  (by {result.proof})"


def gained(result: Result) -> str:
    """What the plan gains over the baseline, for people; empty where there is nothing to compare."""
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
