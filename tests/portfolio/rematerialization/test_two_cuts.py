"""Drafts of two cuts are plans within the limit, near the bound where layers repeat, and there before other plans."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.models.rematerialization.bounds import added_cost, load_bound
from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.moments import first_moments
from stowplan.models.rematerialization.problem import Host, Op, Problem, Tensor
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
from stowplan.portfolio.rematerialization import candidates, two_cuts
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.two_cuts import TwoCuts, drafts, drafts_by_lower_limits, drafts_within
from tests.kernel.recorder import Recorder
from tests.models.rematerialization.cases import least_cost, limited, random_problem, training


class Written:
    """A graph in the making; tensor 0 is its input."""

    def __init__(self) -> None:
        self.tensors = [Tensor(id="x", size=4)]
        self.ops: list[Op] = []

    def add(self, kind: str, reads: list[int], size: int, cost: int) -> int:
        """An operator; the number of what it writes."""
        self.tensors.append(Tensor(id=f"{kind} {len(self.tensors)}", size=size))
        made = len(self.tensors) - 1
        self.ops.append(Op(id=f"{kind} {len(self.ops)}", kind=kind, reads=tuple(reads), writes=(made,), cost=cost))
        return made

    def problem(self, *outputs: int) -> Problem:
        return Problem(tensors=tuple(self.tensors), ops=tuple(self.ops), inputs=(0,), outputs=outputs, free_inputs=False)


def deep(layers: int, head: int = 3) -> Problem:
    """Layers of four operators and one that adds what came in; backwards each reads what its forward operator read."""
    graph, outputs, value, read = Written(), list[int](), 0, []
    for _ in range(head):
        value = graph.add("head", [value], 4, 2)
    for _ in range(layers):
        inner = [value]
        for at in range(4):
            inner.append(graph.add(f"forward {at}", [inner[-1]], 8 + at, 3 + at))
        read.append(inner)
        value = graph.add("sum", [value, inner[-1]], 4, 1)
    gradient = graph.add("loss", [value], 4, 1)
    for inner in reversed(read):
        back = gradient
        for at in reversed(range(4)):
            outputs.append(graph.add(f"weight {at}", [back, inner[at]], 1, 3))
            back = graph.add(f"backward {at}", [back, inner[at + 1]], 4, 3)
        gradient = graph.add("sum back", [gradient, back], 4, 1)
    return graph.problem(*outputs, gradient)


def drafted(problem: Problem) -> tuple[int, int] | None:
    """Added cost of the best draft of a problem, mended, and the bound; None where there is no draft within the limit."""
    structure = build(problem)
    insertion, moments, bounds, costs = Insertion(structure), Moments(structure), [0], []
    assert problem.limit is not None
    for sequence in drafts(insertion, moments, problem.limit, bounds.append) or ():
        draft = verify(problem, structure.made(sequence))
        assert {violation.code for violation in draft.violations} <= {"over_limit"}, draft
        repaired = insertion.repaired(sequence, problem.limit)
        if repaired is not None:
            plan = structure.made(repaired)
            verification = verify(problem, plan)
            assert verification.ok, verification
            costs.append(plan.objective)
    assert bounds == sorted(set(bounds))
    return (min(costs), bounds[-1]) if costs else None


def test_drafts_of_hundreds_of_graphs_are_plans() -> None:
    found = 0
    for seed in range(600):
        problem = random_problem(seed, 8) if seed % 3 == 2 else training(seed, 9)
        if seed % 4 == 1 and len(problem.ops) > 4:
            # Operators that must not run again behind others.
            problem = msgspec.structs.replace(problem, precedences=((0, 2), (1, len(problem.ops) - 1)))
        structure = build(problem)
        low, high = load_bound(structure), structure.ordering.peak(structure.order)
        for part in (0.3, 0.6, 0.9):
            found += drafted(msgspec.structs.replace(problem, limit=low + int(part * (high - low)))) is not None
    assert found > 200


def test_no_draft_costs_less_than_the_best_plan() -> None:
    found = 0
    for seed in range(60):
        draft = drafted(limited(seed))
        if draft is not None:
            best = least_cost(limited(seed))
            assert best is not None
            assert draft[1] <= best <= draft[0]
            found += 1
    assert found > 5


@pytest.mark.parametrize("count", [12, 60])
@pytest.mark.parametrize("part", [0.2, 0.4, 0.6, 0.8])
def test_where_layers_repeat_mended_drafts_are_near_the_bound(count: int, part: float) -> None:
    structure = build(deep(count))
    low, high = load_bound(structure), structure.ordering.peak(structure.order)
    draft = drafted(msgspec.structs.replace(structure.problem, limit=low + int(part * (high - low))))
    assert draft is not None
    assert draft[1] <= draft[0] <= 1.2 * draft[1]


def test_the_moment_moves_as_long_as_bounds_rise() -> None:
    moved = 0
    for seed in range(200):
        structure = build(training(seed, 9))
        limit = load_bound(structure) + 1
        bounds: list[int] = []
        drafts(Insertion(structure), Moments(structure), limit, bounds.append)
        best = added_cost(structure, limit)
        assert best is None or max(bounds, default=0) <= best
        moved += len(bounds) > 1
    assert moved > 5


def test_parts_have_every_operator_once_and_do_not_read_one_another() -> None:
    for seed in range(50):
        structure = build(training(seed, 9))
        ops = {op for op in structure.order if (op * 7 + seed) % 3}
        parts = TwoCuts(Insertion(structure), Moments(structure), structure.order[-1]).parts(ops)
        assert sorted(op for part in parts for op in part) == sorted(ops)
        number = {op: at for at, part in enumerate(parts) for op in part}
        for op in ops:
            for value in structure.needs[op]:
                writer = structure.writer[value]
                assert writer not in ops or number[writer] == number[op]


def test_a_repair_ends_after_so_many_added_runs() -> None:
    structure = build(deep(60))
    low, high = load_bound(structure), structure.ordering.peak(structure.order)
    limit, insertion = low + (high - low) // 4, Insertion(structure)
    assert insertion.repaired(structure.order, limit, most_added=20) is None
    whole = insertion.repaired(structure.order, limit)
    assert whole is not None
    assert insertion.repaired(structure.order, limit, most_added=len(whole)) == whole


def test_large_graphs_have_one_before_all_else() -> None:
    problem = deep(90)
    assert len(problem.ops) >= two_cuts.PARAMS.large
    structure = build(problem)
    low, high = load_bound(structure), structure.ordering.peak(structure.order)
    context = Recorder(looks=40)
    candidates.search(msgspec.structs.replace(problem, limit=(low + high) // 2), context)
    assert context.plans[0][1] == "two cuts"
    assert context.bounds


def test_what_stays_of_a_large_graph_does_not_fit() -> None:
    problem = deep(90)
    context = Recorder()
    candidates.search(msgspec.structs.replace(problem, limit=load_bound(build(problem)) - 1), context)
    assert context.infeasible
    assert not context.plans


def test_cuts_say_nothing_of_a_large_graph_with_a_host() -> None:
    problem = msgspec.structs.replace(deep(90), host=Host(bandwidth=1.0, limit=1 << 40))
    context, least = Recorder(looks=40), load_bound(build(problem))
    candidates.search(msgspec.structs.replace(problem, limit=least), context)
    assert context.why is None
    assert not context.bounds
    # What one operator takes is proven with a host, too.
    candidates.search(msgspec.structs.replace(problem, limit=least - 1), context)
    assert context.infeasible


def stream(layers: int) -> Problem:
    """A residual stream: what each layer adds to it is dear and read again, the sums are cheap and read again, too."""
    graph, value, read = Written(), 0, []
    for _ in range(layers):
        summand = graph.add("layer", [value], 4, 100)
        value = graph.add("sum", [value, summand], 4, 1)
        read.append((summand, value))
    gradient = graph.add("loss", [value], 4, 1)
    for summand, value in reversed(read):
        gradient = graph.add("backward", [gradient, value, summand], 4, 100)
    return graph.problem(gradient)


def test_a_long_chain_runs_again_piece_by_piece() -> None:
    """Room for all summands and some sums: every sum again, which would be all there is at once, costs less than one layer."""
    layers = 60
    problem = stream(layers)
    structure = build(problem)
    limit = 4 * (layers + 22)
    moments, insertion = Moments(structure), Insertion(structure)
    moment = next(op for op in structure.order if problem.ops[op].kind == "loss")
    assert moments.added_cost(moment, limit)
    cuts = TwoCuts(insertion, moments, moment)
    plans = [structure.made(sequence) for sequence in drafts_within(cuts, limit)]
    costs = [plan.objective for plan in plans]
    assert costs == sorted(set(costs), reverse=True)
    assert all(plan.peak <= limit for plan in plans)
    assert costs[-1] <= layers
    # All sums at once are above the limit, whatever else runs again.
    assert structure.made(cuts.draft(limit, False, is_whole=True)).peak > limit


def test_what_is_kept_leaves_the_others_with_all_that_they_read() -> None:
    less = 0
    for seed in range(150):
        structure = build(training(seed, 9))
        insertion, moments = Insertion(structure), Moments(structure)
        middle = structure.order[structure.ops // 2]
        cuts = TwoCuts(insertion, moments, middle)
        again = {op for op in structure.order[: structure.ops // 2] if not structure.once[op]}
        full = cuts.live(cuts.sequence(again))
        for places in (1, 2, 5):
            kept = set(cuts.still_recomputed(again, places))
            assert kept <= again
            live = cuts.live(cuts.sequence(kept))
            assert live is not None or full is None
            less += len(kept) < len(again)
    assert less > 100


def test_cuts_about_a_lower_limit_are_within_where_those_about_the_limit_are_not() -> None:
    """Temporary tensors behind the moment, of which the cuts there know nothing."""
    found = 0
    for seed in range(400):
        structure = build(training(seed, 9))
        low, high = load_bound(structure), structure.ordering.peak(structure.order)
        insertion, moments = Insertion(structure), Moments(structure)
        for part in (0.3, 0.6):
            limit = low + int(part * (high - low))
            (moment,) = first_moments(structure, 1)
            if not moments.added_cost(moment, limit):
                continue
            cuts = TwoCuts(insertion, moments, moment)
            if drafts_within(cuts, limit):
                continue
            plans = [structure.made(sequence) for sequence in drafts_by_lower_limits(cuts, limit)]
            assert all(plan.peak <= limit for plan in plans)
            assert [plan.objective for plan in plans] == sorted((plan.objective for plan in plans), reverse=True)
            found += bool(plans)
    assert found > 5
