"""Steps known again in a later version of a program."""

from __future__ import annotations

import random

import pytest

from stowplan.models.hint import Steps, aligned, in_order, matched


def steps(chance: random.Random, count: int) -> Steps:
    kinds = [(chance.randint(0, 2), chance.randint(0, 2)) for _ in range(count)]
    sources = [[chance.randint(-1, number - 1) for _ in range(chance.randint(0, 2))] for number in range(count)]
    return Steps([f"step {number}" for number in range(count)], kinds, [kind[0] for kind in kinds], sources)


def reordered(old: Steps, chance: random.Random) -> tuple[Steps, list[int]]:
    """Another order that keeps sources first, other names; and the old steps' numbers."""
    order: list[int] = []
    left = set(range(len(old.names)))
    while left:
        ready = [number for number in sorted(left) if not left & {*old.sources[number]}]
        order.append(chance.choice(ready))
        left.remove(order[-1])
    new = {number: place for place, number in enumerate(order)}
    sources = [[-1 if source < 0 else new[source] for source in old.sources[number]] for number in order]
    names = [f"renamed {place}" for place in range(len(order))]
    return Steps(names, [old.signatures[number] for number in order], [old.coarse[number] for number in order], sources), order


@pytest.mark.parametrize("seed", range(40))
def test_matches_agree_and_none_is_taken_twice(seed: int) -> None:
    chance = random.Random(seed)
    later, earlier = (steps(chance, chance.randint(0, 12)) for _ in range(2))
    found = matched(later, earlier)
    assert len(found) == len(later.names)
    taken = [other for other in found if other >= 0]
    assert len({*taken}) == len(taken)
    assert all(later.coarse[place] == earlier.coarse[other] for place, other in enumerate(found) if other >= 0)
    # Nothing that agrees is left on both sides.
    rest = {later.coarse[place] for place, other in enumerate(found) if other < 0}
    assert not rest & {earlier.coarse[number] for number in {*range(len(earlier.names))} - {*taken}}


@pytest.mark.parametrize("seed", range(20))
def test_the_same_version_is_known_whole(seed: int) -> None:
    chance = random.Random(seed)
    version = steps(chance, 15)
    renamed = version._replace(names=[f"renamed {number}" for number in range(15)])
    assert matched(renamed, version) == [*range(15)]


@pytest.mark.parametrize("seed", range(30))
def test_steps_that_were_renamed_and_reordered_are_known_by_what_is_around_them(seed: int) -> None:
    chance = random.Random(seed)
    earlier = steps(chance, 20)
    # All different from each other, so that there is one answer.
    earlier = earlier._replace(signatures=[*range(20)])
    later, order = reordered(earlier, chance)
    assert matched(later, earlier) == order


def test_neighbours_tell_steps_apart_that_are_alike() -> None:
    earlier = Steps(["a", "b", "c", "d"], ["in", "out", "x", "x"], ["in", "out", "x", "x"], [[], [], [0], [1]])
    later = Steps(["b", "a", "d", "c"], ["out", "in", "x", "x"], ["out", "in", "x", "x"], [[], [], [0], [1]])
    assert matched(later, earlier) == [1, 0, 3, 2]


def test_names_decide_between_more_of_a_kind_and_a_changed_step_is_known_by_its_kind() -> None:
    earlier = Steps(["a", "b"], ["x", "x"], ["x", "x"], [[], []])
    later = Steps(["new", "a", "b"], ["x", "x", "x"], ["x", "x", "x"], [[], [], []])
    assert matched(later, earlier) == [-1, 0, 1]
    changed = Steps(["other"], ["larger"], ["x"], [[]])
    assert matched(changed, earlier) == [0]


def test_pairs_in_the_same_order() -> None:
    """Earlier step by later one; 3 was moved to the front."""
    assert in_order({0: 1, 1: 2, 3: 0, 5: 4}) == ([0, 1, 5], [1, 2, 4])
    assert in_order({}) == ([], [])


def most_alike(alike: list[list[float]], mine: list[int], theirs: list[int]) -> float:
    """Largest sum of likenesses of pairs in order, by trying all."""
    if not mine or not theirs:
        return 0.0
    return max(
        most_alike(alike, mine[1:], theirs),
        most_alike(alike, mine, theirs[1:]),
        alike[mine[0]][theirs[0]] + most_alike(alike, mine[1:], theirs[1:]),
    )


@pytest.mark.parametrize("seed", range(60))
def test_what_is_left_is_aligned_so_that_it_is_most_alike(seed: int) -> None:
    """Between steps that are known, which stay what they are."""
    chance = random.Random(seed)
    left, right = [chance.randint(0, 4) for _ in range(2)], [chance.randint(0, 4) for _ in range(2)]
    count, others = left[0] + 1 + right[0], left[1] + 1 + right[1]
    found = [-1] * count
    found[left[0]] = left[1]
    alike = [[chance.choice([0.0, 0.3, 0.5, 0.75, 1.0]) for _ in range(others)] for _ in range(count)]
    result = aligned(found, others, lambda one, other: alike[one][other], 0.5)
    assert result[left[0]] == left[1]
    pairs = [(new, old) for new, old in enumerate(result) if old >= 0]
    assert [old for _, old in pairs] == sorted({old for _, old in pairs})
    assert all(alike[new][old] >= 0.5 for new, old in pairs if new != left[0])
    enough = [[value if value >= 0.5 else 0.0 for value in row] for row in alike]
    best = most_alike(enough, [*range(left[0])], [*range(left[1])])
    best += most_alike(enough, [*range(left[0] + 1, count)], [*range(left[1] + 1, others)])
    assert sum(alike[new][old] for new, old in pairs if new != left[0]) == pytest.approx(best)
