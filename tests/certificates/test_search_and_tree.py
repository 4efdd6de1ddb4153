"""Proofs by search and by splits: true where they hold, refused beyond the optimum, and within bounds whatever a file says."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from stowplan import files
from stowplan.certificates.checker import FORMS, check_parsed
from stowplan.certificates.checker.prices import MAX_NODES
from stowplan.certificates.checker.reading import MalformedError, UnprovenError, digest
from stowplan.certificates.maker import certify, mapping, tree
from stowplan.models.memory_mapping.prices import Prices
from stowplan.models.modulo_scheduling.plan import decode_objective
from tests.certificates.cases import CASES
from tests.certificates.test_bounds import random_prices
from tests.certificates.test_checker import mutated, verdict_of

Json = dict[str, Any]


def stated(kind: str, rules: Json, proof: Json, bound: int | None = -(10**30)) -> Json:
    """A certificate's document."""
    head = {"format": "stowplan.certificate", "version": 1, "kind": kind, "problem": digest(rules), "bound": bound}
    return head | {"proof": proof}


def shows(kind: str, rules: Json, proof: Json) -> int | None:
    """What a proof shows; None for that there is no plan."""
    return check_parsed(rules, stated(kind, rules, proof)).shown


def searches(kind: str, problem: Any, best: int | None, beyond: int) -> Iterator[Json]:
    """Searches for ``beyond`` more than the optimum; of modulo scheduling than its interval."""
    if kind == "packing" and (best or (best is None and not beyond)):
        yield {"form": "search"} | ({} if best is None else {"below": best + beyond})
    if kind == "operator_order" and best is not None:
        yield from ({"form": "search", "from": side, "below": best + beyond} for side in ("start", "end"))
    if kind == "modulo_scheduling" and (best is not None or not beyond):
        least = problem.machine.spoke_depth + 1 if best is None else decode_objective(best)[0] + beyond
        yield from ({"form": form, "least": least} for form in ("search", "recurrence"))


@pytest.mark.parametrize(("kind", "count"), [("packing", 150), ("operator_order", 150), ("modulo_scheduling", 40)])
def test_a_search_shows_the_optimum_and_no_more(kind: str, count: int) -> None:
    reached = 0
    for seed in range(count):
        problem, best = CASES[kind](seed)
        rules = json.loads(files.encode(problem))
        for proof in searches(kind, problem, best, 1):
            with pytest.raises(UnprovenError):
                shows(kind, rules, proof)
        for proof in searches(kind, problem, best, 0):
            try:
                found = shows(kind, rules, proof)
            except UnprovenError:
                # Tiles and offsets are not all that there is to a plan.
                assert kind == "modulo_scheduling" or (kind == "packing" and best is None)
                continue
            reached += 1
            assert found is None or (best is not None and found <= best), (kind, seed)
    assert reached > count / 3


def small_prices(kind: str, problem: Any, rng: random.Random) -> Json:
    """Any prices of tiers or banks."""
    rules = json.loads(files.encode(problem))
    things = next(rules[name] for name in ("layers", "buffers", "tensors") if name in rules)
    banks = len(rules["tiers"] if "tiers" in rules else rules["banks"] if "buffers" in rules else (0, 1))
    unit = rng.choice([1, 2, 12])
    count = len(things) * (2 if "tiers" in rules else 1)

    def row() -> Json:
        turned = [each for each in range(count) if rng.random() < 0.3]
        rounds = [{"divisor": rng.randint(1, 12), "turned": turned} for _ in range(rng.choice([0, 0, 1, 2]))]
        where = {"memory": rng.randrange(banks), "moment": rng.randrange(len(things))}
        return where | {"price": rng.randint(0, 2 * unit), "rounds": rounds}

    return {
        "form": "prices",
        "denominator": unit,
        "memory": [row() for _ in range(rng.randint(0, 5))],
        "access": [
            [layer, item, rng.randrange(banks), rng.randint(-unit, 6 * unit)]
            for layer, item in product(range(len(things)), range(count))
            if rng.random() < 0.3
        ],
    }


def random_tree(leaf: Callable[[], Json], decide: Callable[[], list[int]], rng: random.Random, depth: int = 0) -> list[Json]:
    """Nodes in preorder, with any prices of rows."""
    if depth == 4 or rng.random() < 0.3:
        return [leaf() | {"splits": [rng.choice([0, rng.randint(0, 40)]) for _ in range(depth)]}]
    # A decision that names nothing is 1 in every plan.
    split = [decide() if rng.random() < 0.9 else [] for _ in range(rng.randint(1, 3))]
    below = [random_tree(leaf, decide, rng, depth + 1) for _ in range(2)]
    return [{"split": split, "most": rng.randint(0, len(split))}, *below[0], *below[1]]


@pytest.mark.parametrize("kind", [kind for kind, forms in FORMS.items() if "tree" in forms])
def test_any_tree_proves_something_true(kind: str) -> None:
    reached = 0
    for seed in range(80):
        problem, best = CASES[kind](seed)
        if best is None or (kind == "memory_mapping" and not problem.use_count):
            continue
        rng, rules = random.Random(seed), json.loads(files.encode(problem))
        if kind == "memory_mapping":
            leaf, decide = (lambda p=problem, r=rng: random_prices(p, r)), (lambda p=problem, r=rng: [r.randrange(p.use_count)])
        else:
            # Some of them do not exist.
            leaf, decide = (lambda p=problem, r=rng: small_prices(kind, p, r)), (lambda r=rng: [r.randrange(8), r.randrange(4)])
        for _ in range(12):
            found = shows(kind, rules, {"form": "tree", "nodes": random_tree(leaf, decide, rng)})
            assert found is not None, (kind, seed)
            assert found <= best, (kind, seed)
            reached += found == best
    assert reached > 0


@pytest.mark.parametrize("kind", ["tier_placement", "banked_packing", "memory_mapping"])
def test_trees_close_what_the_relaxation_leaves(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ROUNDS", (0, 0))
    # With no prices, what is decided must do.
    monkeypatch.setattr(mapping, "prices_of", lambda search, duals: none_of(search.model.problem))
    # A limit on work, not on time.
    monkeypatch.setattr(tree, "MAX_LEAF_WORK", 1000)
    trees = tight = mutants = 0
    rng = random.Random(3)
    for seed in range(60):
        problem, best = CASES[kind](seed)
        if best is None:
            continue
        found = certify(problem, bound=best, seconds=60.0)
        assert found.bound is not None
        assert found.bound <= best, seed
        if found.form != "tree":
            continue
        trees, tight = trees + 1, tight + (found.bound == best)
        rules, document = json.loads(files.encode(problem)), json.loads(files.encode(found))
        for _ in range(100):
            mutants += 1
            verdict = verdict_of(rules, mutated(document, rng))
            if verdict is None:
                continue
            assert verdict.bound is not None, seed
            assert verdict.bound <= best, seed
    assert trees >= 3
    assert tight > 0.6 * trees
    assert mutants >= 300


def none_of(problem: Any) -> Prices:
    """Prices at which everything is free."""
    return Prices.none(problem.horizon, problem.use_count)


def test_cuts_say_more_than_the_relaxation(monkeypatch: pytest.MonkeyPatch) -> None:
    # Cuts alone, and none of trees.
    monkeypatch.setattr(tree, "MAX_LEAF_WORK", 0)
    reached = []
    for rounds in ((0, 0), (40, 2)):
        monkeypatch.setattr(tree, "ROUNDS", rounds)
        cases = [CASES["tier_placement"](seed) for seed in range(60)]
        reached.append(sum(certify(problem, bound=best).bound == best for problem, best in cases if best is not None))
    assert reached[1] > reached[0]


@pytest.mark.parametrize("kind", [kind for kind, forms in FORMS.items() if "search" in forms])
def test_mutated_searches_claim_no_more(kind: str) -> None:
    rng = random.Random(5)
    accepted = tried = 0
    for seed in range(40):
        problem, best = CASES[kind](seed)
        rules = json.loads(files.encode(problem))
        for proof in searches(kind, problem, best, 0):
            for _ in range(25):
                tried += 1
                verdict = verdict_of(rules, mutated(stated(kind, rules, proof, best), rng))
                if verdict is None:
                    continue
                accepted += 1
                assert best is None or (verdict.bound is not None and verdict.bound <= best), (kind, seed)
    assert tried > 800
    assert 0 < accepted < tried


HUGE = 10**40
HOSTILE: list[tuple[str, Json]] = [
    ("packing", {"form": "search", "below": HUGE}),
    ("packing", {"form": "search", "below": None}),
    ("operator_order", {"form": "search", "from": "end", "below": HUGE}),
    ("operator_order", {"form": "search", "from": {}, "below": -1}),
    ("modulo_scheduling", {"form": "search", "least": HUGE}),
    ("modulo_scheduling", {"form": "search", "least": "1" * 10**6}),
    ("tier_placement", {"form": "tree"}),
    ("tier_placement", {"form": "tree", "nodes": {}}),
    ("tier_placement", {"form": "tree", "nodes": [[]] * 5}),
    ("tier_placement", {"form": "tree", "nodes": [{"split": [[0, 0]], "most": 0}] * MAX_NODES}),
    ("tier_placement", {"form": "tree", "nodes": [{"split": [[0, 0]], "most": 0}] * 10**5}),
    ("tier_placement", {"form": "tree", "nodes": [{"split": [[]], "most": 0}, {}]}),
    ("tier_placement", {"form": "tree", "nodes": [0]}),
    ("tier_placement", {"form": "tree", "nodes": [{"form": "tree", "nodes": []}]}),
    ("tier_placement", {"form": "tree", "nodes": [{"form": "prices", "denominator": 1}] * 2}),
    ("tier_placement", {"form": "prices", "denominator": 1, "memory": [{"memory": 0, "moment": 0, "price": "a"}]}),
    ("tier_placement", {"form": "prices", "denominator": 1, "memory": [{"memory": HUGE, "moment": 0, "price": 1}]}),
    (
        "banked_packing",
        {"form": "prices", "denominator": 1, "memory": [{"memory": 0, "moment": 0, "price": 1, "rounds": [[]]}]},
    ),
    ("memory_mapping", {"form": "tree", "nodes": [{"split": [[HUGE]], "most": HUGE}]}),
]


@pytest.mark.parametrize(("kind", "proof"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_proofs_are_refused_in_one_line(kind: str, proof: Json) -> None:
    problem = next(problem for problem, best in map(CASES[kind], range(20)) if best is not None)
    with pytest.raises((MalformedError, UnprovenError)) as caught:
        shows(kind, json.loads(files.encode(problem)), proof)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_search_ends() -> None:
    """Where there are more orders, or more buffers, than a search looks at, it says so."""
    buffer: Json = {"id": "a", "lower": 0, "upper": 1, "size": 1, "alignment": 1, "gaps": [], "offset": None}
    many: Json = {"format": "stowplan.packing.problem", "buffers": [buffer] * 2000, "capacity": None}
    with pytest.raises(UnprovenError, match="too long"):
        shows("packing", many, {"form": "search", "below": 2000})
    ops = [{"id": str(each), "reads": [], "writes": [each], "in_place": [], "kind": ""} for each in range(40)]
    tensors = [{"id": str(each), "size": 1 + each % 7, "alignment": 1, "alias_of": None} for each in range(40)]
    rules: Json = {"format": "stowplan.operator_order.problem", "tensors": tensors, "ops": ops, "inputs": []}
    rules |= {"outputs": [*range(20)], "free_inputs": True, "precedences": []}
    with pytest.raises(UnprovenError):
        shows("operator_order", rules, {"form": "search", "below": 60})
