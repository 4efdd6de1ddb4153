"""What a validation says, as plain data: the JSON of ``stowplan validate`` (``docs/guide/validate.md``)."""

from __future__ import annotations

import msgspec

from stowplan.models.document import Document
from stowplan.portfolio.batch import Settings
from stowplan.portfolio.validation.decisions import DecisionReport
from stowplan.portfolio.validation.statistics import Spread

FORMAT = "stowplan.validation"
VERSION = 1


class Exact(msgspec.Struct, frozen=True, kw_only=True):
    """What the exact side came to."""

    objective: int | None
    """Of the best verified plan."""
    bound: int | None
    is_proven: bool
    """Whether the objective is the optimum."""
    candidate: str
    stop_reason: str
    seconds: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of a policy, verified."""

    objective: int | None = None
    """None where there is no valid plan."""
    gap: float | None = None
    """To the optimum where that is proven, else to the bound."""
    least_gap: float | None = None
    """To the best plan that the exact side knows: the true gap is this or more, and ``gap`` or less."""
    second_gap: float | None = None
    """Of objectives of two numbers that of the second, where the first is the optimum's."""
    is_optimal: bool = False
    """Equal to a proven optimum."""
    note: str = ""
    """Why there is no plan: ``lost``, or the rule that it breaks; ``stopped`` where time was up before the game was over."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, or its control, on one problem."""

    likeliest: Outcome
    sampled: tuple[Outcome, ...] = ()
    best: Outcome = Outcome(note="stopped")
    """The best of the sampled ones."""
    seconds: float = 0.0


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """Value estimates beside true returns, over the positions of the sampled games."""

    correlation: float | None = None
    """Spearman's, over all positions; None where there is none, as of a constant."""
    at_equal_positions: float | None = None
    """The same within positions of equal number, pooled: what is not owed to how much of the game is left."""
    positions: int = 0
    games: int = 0
    note: str = ""
    """Why there are no estimates."""
    points: tuple[tuple[float, float], ...] = ()
    """(estimate, return) of some positions, evenly spread over all."""


class RewardCorrelation(msgspec.Struct, frozen=True, kw_only=True):
    """The game's reward beside a measured latency: of sampled games of policy and control, or of compiled results."""

    measured: str
    """``simulated`` or ``compiled``."""
    correlation: float | None
    """Pearson's; -1 where more reward always is less time, None where there is none."""
    count: int
    points: tuple[tuple[int, int], ...] = ()
    """(reward, latency)."""


class ProblemReport(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of the suite."""

    name: str
    input: str
    exit_code: int = 0
    """What failed says so by its code; 0 otherwise."""
    error: str | None = None
    kind: str = ""
    unit: str = ""
    digest: str = ""
    exact: Exact | None = None
    baseline_name: str = ""
    baseline: Outcome | None = None
    policy: Side | None = None
    control: Side | None = None
    values: Values | None = None
    rewards: tuple[RewardCorrelation, ...] = ()
    decisions: DecisionReport | None = None
    decisions_note: str = ""
    """Why no decisions were looked at."""
    notes: tuple[str, ...] = ()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One way to plan, over all problems of a kind."""

    name: str
    gaps: Spread
    second_gaps: Spread | None = None
    """Of objectives of two numbers, where the first is the optimum's."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All problems of one kind."""

    kind: str
    agent: str
    policy: str
    """Path of the policy file."""
    digest: str
    """sha256 of it."""
    problems: int
    proven: int
    """Problems whose optimum is proven: gaps of the others are to a bound, and may be less than they seem."""
    rows: tuple[Row, ...]
    second: str = ""
    """Name of the second number of objectives of two; gaps of it are of plans whose first is the optimum's."""
    correlation: float | None = None
    """Rank correlation of values with returns, pooled within problems."""
    at_equal_positions: float | None = None
    values_note: str = ""
    """Why there are no value estimates."""
    training: str = ""
    """How the policy was trained, by what its file says."""
    rewards: tuple[RewardCorrelation, ...] = ()
    """Means of the correlations of the problems."""


class Validation(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole run."""

    settings: Settings
    games: int
    solves: int
    problems: tuple[ProblemReport, ...]
    summaries: tuple[Summary, ...]
    asked: int
    """Problems of the suite; fewer were finished where the run was interrupted."""
    interrupted: bool = False
    format: str = FORMAT
    version: int = VERSION
