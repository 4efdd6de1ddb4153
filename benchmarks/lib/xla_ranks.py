"""Scores of the compiles of one program text: read with care, XLA's own, and a roofline's; and how far they agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy.stats import spearmanr

from benchmarks.lib.compiles import ProgramText
from stowplan.backends.xla.score import Scorer, scored_program
from stowplan.errors import InputError
from stowplan.frontends.hlo import read_module
from stowplan.frontends.xla_plan import ImportedPlan
from stowplan.hardware.simulator import simulate
from stowplan.hardware.targets import Target
from stowplan.models.memory_mapping.verify import verify

#: Copies under way at once that are compared.
ENGINES = (1, 4, 16)

#: Ways of scoring; careful ones by the number of copy engines.
CAREFUL = {engines: f"careful, {engines}" for engines in ENGINES}
ESTIMATED, ROOFLINE = "XLA's", "roofline"


@dataclass(frozen=True)
class ScoredPlan:
    """One compile: what each way says of it, and how its plan was imported."""

    scores: dict[str, float]
    """Cycles; picoseconds for the roofline."""
    stalls: dict[int, float]
    """Share of the careful score that is stalls, by the number of copy engines."""
    imported: ImportedPlan | None
    """None where nothing is in fast memory."""
    is_verified: bool


def scored(text: ProgramText, target: Target) -> list[ScoredPlan]:
    """Every compile of a text that can be read, its default first."""
    program = scored_program(read_module(text.results[0].program_path))
    scorer = Scorer(program, target)
    found = []
    for result in text.results:
        try:
            module = scorer.read(result)
            score = scorer.score(module)
            imported = scorer.plan(result) if module.has_fast_memory else None
        except InputError:
            continue
        stalls = dict.fromkeys(ENGINES, 0)
        roofline, is_verified = scorer.problem.all_slow_ps, True
        if imported is not None:
            roofline = simulate(scorer.problem, imported.plan).total_ps
            is_verified = verify(scorer.problem, imported.plan).ok
            for engines in ENGINES:
                timeline = scorer.play(imported.plan, module, engines)
                stalls[engines] = round(timeline.stall_ps / target.cycles_ps(1_000_000) * 1_000_000)
        working = score.total - score.stall_cycles
        scores: dict[str, float] = {CAREFUL[engines]: working + waits for engines, waits in stalls.items()}
        scores |= {ESTIMATED: score.cycles + score.stall_cycles, ROOFLINE: roofline}
        shares = {engines: waits / (working + waits) for engines, waits in stalls.items()}
        found.append(ScoredPlan(scores, shares, imported, is_verified))
    return found


def rank(plans: Sequence[ScoredPlan], one: str, other: str) -> float:
    """Spearman's correlation of two ways over the compiles; NaN where one of them tells none apart."""
    ours, theirs = ([plan.scores[way] for plan in plans] for way in (one, other))
    return float(spearmanr(ours, theirs).statistic) if min(len(set(ours)), len(set(theirs))) > 1 else float("nan")


def disagreement(plans: Sequence[ScoredPlan], one: str, other: str) -> float:
    """Largest difference of two ways in the gain over the first compile, percentage points."""
    default = plans[0].scores
    return max(100 * abs(plan.scores[one] / default[one] - plan.scores[other] / default[other]) for plan in plans)


def ranks_row(plans: Sequence[ScoredPlan]) -> Iterator[str]:
    """Cells of a table: ranks, disagreements, and what the number of copy engines changes."""
    careful = CAREFUL[4]
    for one, other in combinations((careful, ESTIMATED, ROOFLINE), 2):
        yield f"{rank(plans, one, other):.2f}"
    for other in (ESTIMATED, ROOFLINE):
        yield f"{disagreement(plans, careful, other):.1f}"
    for engines in ENGINES:
        yield f"{100 * max(plan.stalls[engines] for plan in plans):.1f}"
    for engines in (1, 16):
        yield f"{rank(plans, careful, CAREFUL[engines]):.2f}"


#: Heads of :func:`ranks_row`.
RANKS = (
    "careful, XLA's", "careful, roofline", "XLA's, roofline", "points apart: XLA's", "points apart: roofline",
    *(f"stalls, {engines} engines, %" for engines in ENGINES), "ranks, 1 and 4 engines", "ranks, 16 and 4 engines",
)  # fmt: skip


def import_row(plans: Sequence[ScoredPlan]) -> list[int]:
    """How many plans there are, are imported whole and verified, and what of the others is not XLA's own."""
    imported = [plan.imported for plan in plans if plan.imported is not None]
    counts = [
        (len(each.dropped), each.moved, each.delayed + each.postponed + each.advanced, each.mixed_reads,
         len(each.homeless), len(each.foreign)) for each in imported
    ]  # fmt: skip
    whole = sum(not any(counts_of[:2]) for counts_of in counts)
    sums = [sum(column) for column in zip(*counts, strict=True)] if counts else [0] * 6
    return [len(imported), whole, sum(plan.is_verified for plan in plans if plan.imported is not None), *sums]


#: Heads of :func:`import_row`.
IMPORTS = (
    "plans", "whole", "verified", "stays dropped", "at another offset", "copies at another time", "reads from both memories",
    "values without a tensor", "instructions of XLA's own",
)  # fmt: skip


def drop_reasons(plans: Sequence[ScoredPlan]) -> Counter[str]:
    """How many stays the rules of plans cannot say, by what is in the way."""
    return Counter(item.reason for plan in plans if plan.imported is not None for item in plan.imported.dropped)
