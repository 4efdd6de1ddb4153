"""What a mapper sees: shapes and bounds, symmetry, and the columns that look ahead."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("gymnasium")

from stowplan.errors import InputError
from stowplan.hardware.se.machines import load_machine
from stowplan.learned_guidance.modulo_scheduling.observation import ENDLESS, TILE_COLUMNS, observation_space, observe
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.learned_guidance.modulo_scheduling.view import NODE_COLUMNS, Limits, View
from stowplan.models.modulo_scheduling.problem import Problem
from tests.learned_guidance.modulo_scheduling.graphs import butterflies, chain, distance

COLUMN = {name: at for at, name in enumerate(TILE_COLUMNS)}


@pytest.mark.parametrize("problem", [butterflies(), distance(), chain(4, back=1)], ids=lambda each: each.name)
def test_observations_are_of_their_space(problem: Problem) -> None:
    limits = Limits(nodes=40, edges=80, tiles=20, slots=20)
    space, chance = observation_space(limits), np.random.default_rng(0)
    for ii in (2, 16):
        mapping = Mapping(problem, max(ii, View(problem).least_ii))
        while mapping.current >= 0 and not mapping.stuck:
            seen = observe(mapping, limits)
            assert space.contains(seen)
            assert seen["mask"].sum() == mapping.mask().sum()
            assert seen["tiles"][:, COLUMN["legal"]].sum() == mapping.mask().any(axis=1).sum()
            assert (seen["tiles"][16:] == 0).all()
            places = np.argwhere(mapping.mask())
            mapping.place(*(int(each) for each in places[int(chance.integers(len(places)))]))
        assert space.contains(observe(mapping, limits))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"found 4 nodes, expected 3 at most"):
        observe(Mapping(chain(4), 1), Limits(nodes=3, edges=9, tiles=16, slots=4))


def test_a_row_upside_down_looks_the_same_but_for_the_row() -> None:
    problem = butterflies()
    limits = Limits.of([problem], 4)
    one, two, chance = Mapping(problem, 3), Mapping(problem, 3), np.random.default_rng(1)
    others = [at for name, at in COLUMN.items() if name != "row"]
    while one.current >= 0 and not one.stuck:
        a, b = observe(one, limits), observe(two, limits)
        assert np.allclose(a["tiles"][:, others], b["tiles"][::-1, others])
        assert np.allclose(a["globals"], b["globals"])
        assert np.allclose(a["states"], b["states"])
        places = np.argwhere(one.mask())
        tile, slot = (int(each) for each in places[int(chance.integers(len(places)))])
        one.place(tile, slot)
        two.place(15 - tile, slot)


def test_graph_and_nodes_do_not_depend_on_names_and_interval() -> None:
    problem = chain(3)
    named = msgspec.structs.replace(problem, name="another")
    limits = Limits.of([problem, chain(3, back=3)])
    one, two = observe(Mapping(problem, 1), limits), observe(Mapping(named, 7), limits)
    for name in ("graph", "nodes", "edges", "edge_features", "hops"):
        assert np.array_equal(one[name], two[name])
    other = observe(Mapping(chain(3, back=3), 4), limits)
    assert not np.array_equal(one["graph"], other["graph"])


def test_heights_and_recurrences_of_nodes() -> None:
    nodes = View(chain(3, back=1)).nodes
    columns = {name: nodes[:, at].tolist() for at, name in enumerate(NODE_COLUMNS)}
    assert columns["height"] == [1.0, 0.5, 0.0]
    assert columns["depth"] == [0.0, 0.5, 1.0]
    assert columns["recurrent"] == [1.0, 1.0, 1.0]
    assert columns["carried_in"] == [1.0, 0.0, 0.0]


def test_slack_of_a_recurrence_is_what_its_interval_leaves() -> None:
    # Three instructions of 3 clocks go round in 9; at II 10 a clock is left for links.
    problem = chain(3, back=1)
    limits = Limits.of([problem], 16)
    mapping = Mapping(problem, 10, look_ahead=False)
    assert (observe(mapping, limits)["slack"][:16] == ENDLESS).all()
    mapping.place(5, 0)
    seen = observe(mapping, limits)
    # On its own tile 1 clock is left; one tile on, the way there and back takes 2; two tiles on 4.
    assert [int(seen["slack"][tile]) for tile in (5, 6, 7)] == [1, -1, -3]


def test_columns_look_ahead() -> None:
    # The consumer of two needs a tile within a link of both: none where they are five tiles apart.
    problem = butterflies(2)
    mapping = Mapping(problem, 2, look_ahead=False)
    limits = Limits.of([problem], 2)
    mapping.place(0, 0)
    seen = observe(mapping, limits)["tiles"]
    assert seen[5, COLUMN["none_left"]] > 0
    assert seen[5, COLUMN["overreach"]] > 0
    assert seen[2, COLUMN["none_left"]] == 0
    assert seen[2, COLUMN["overreach"]] == 0


def test_machines_of_other_sizes() -> None:
    limits = Limits(nodes=20, edges=40, tiles=16, slots=8)
    seen = observe(Mapping(chain(4, machine=load_machine("mesh-4x4")), 2), limits)
    assert observation_space(limits).contains(seen)
    assert seen["sizes"].tolist()[2] == 16
