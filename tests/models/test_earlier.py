"""Steps known again in a later version of a program."""

from __future__ import annotations

import random

import pytest

from stowplan.models.earlier import matched


def test_names_and_signatures_decide_and_places_between_them() -> None:
    found = matched(["a", "x", "c", "d"], [1, 2, 3, 9], ["a", "b", "c", "d"], [1, 2, 3, 4])
    assert found == [0, 1, 2, -1]


@pytest.mark.parametrize("seed", range(40))
def test_matches_ascend_and_have_equal_signatures(seed: int) -> None:
    chance = random.Random(seed)
    versions = []
    for _ in range(2):
        count = chance.randint(0, 12)
        versions.append(([chance.choice("abcdefgh") for _ in range(count)], [chance.randint(0, 3) for _ in range(count)]))
    (names, here), (before, there) = versions
    found = matched(names, here, before, there)
    assert len(found) == len(names)
    pairs = [(place, other) for place, other in enumerate(found) if other >= 0]
    assert all(here[place] == there[other] for place, other in pairs)
    assert [other for _, other in pairs] == sorted({other for _, other in pairs})


@pytest.mark.parametrize("seed", range(20))
def test_the_same_version_is_known_whole(seed: int) -> None:
    chance = random.Random(seed)
    kinds = [chance.randint(0, 4) for _ in range(chance.randint(1, 20))]
    assert matched(
        [f"new {place}" for place in range(len(kinds))], kinds, [f"old {place}" for place in range(len(kinds))], kinds
    ) == [*range(len(kinds))]
