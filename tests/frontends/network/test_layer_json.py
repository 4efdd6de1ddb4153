"""Layer files: what is read, what is written, and what is refused with one clear line."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stowplan.errors import InputError
from stowplan.frontends.network.layer_json import decode_layers, encode_layers, is_layer_file, read_layers, save_layers
from tests.paths import EXAMPLES

#: Layers, edges, multiply-accumulates and weights of the paper's networks.
NETWORKS = {
    "resnet50": (57, 72, 4_089_184_256, 25_530_472),
    "resnet101": (108, 140, 7_801_405_440, 44_496_488),
    "bert_base_s128": (376, 423, 11_173_822_464, 108_893_186),
    "bert_base_s384": (376, 423, 35_333_406_720, 108_893_186),
}


def node(number: int, **changes: Any) -> dict[str, Any]:
    return {"id": number, "op": "fc", "name": f"n{number}", "ofm": [1, 1, 4], "ofm_elems": 4, "ifm_elems": 4, **changes}


def diamond() -> dict[str, Any]:
    """0 -> 1, 2 -> 3."""
    nodes = [node(0), node(1, weight_elems=8), node(2), node(3, op="add", ifm_elems=8)]
    return {"name": "diamond", "nodes": nodes, "edges": [[0, 1], [0, 2], [1, 3], [2, 3]]}


def decode(value: Any) -> Any:
    return decode_layers(json.dumps(value).encode(), "net.json")


@pytest.mark.parametrize("name", NETWORKS)
def test_examples(name: str) -> None:
    network = read_layers(EXAMPLES / f"{name}.layers.json")
    assert (len(network.layers), len(network.edges), network.macs, network.weight_elements) == NETWORKS[name]


@pytest.mark.parametrize("name", ["resnet50", "bert_base_s128"])
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    network = read_layers(EXAMPLES / f"{name}.layers.json")
    assert decode_layers(encode_layers(network)) == network
    save_layers(network, tmp_path / "again.json")
    assert read_layers(tmp_path / "again.json") == network
    assert is_layer_file((tmp_path / "again.json").read_bytes())


def test_corpus_files(corpus: Path) -> None:
    """Files of another tool's, without a format, with sizes in bytes that are checked."""
    counts = {path.stem: len(read_layers(path).layers) for path in sorted((corpus / "layers").glob("*.json"))}
    assert counts == {
        "bert_base_s128_fine": 376,
        "bert_base_s384": 135,
        "bert_base_s384_fine": 376,
        "resnet101_b1": 108,
        "resnet50_b1": 57,
    }


def test_any_order_of_nodes_gives_an_order_to_run_in() -> None:
    original = json.loads((EXAMPLES / "resnet50.layers.json").read_text())
    shuffled = copy.deepcopy(original)
    random.Random(3).shuffle(shuffled["nodes"])
    random.Random(4).shuffle(shuffled["edges"])
    network, again = decode(original), decode(shuffled)
    assert sorted(layer.name for layer in again.layers) == sorted(layer.name for layer in network.layers)
    assert all(source < number for number, layer in enumerate(again.layers) for source in layer.inputs)

    def named_edges(found: Any) -> set[tuple[str, str]]:
        return {(found.layers[start].name, found.layers[end].name) for start, end in found.edges}

    assert named_edges(again) == named_edges(network)


def test_derived() -> None:
    network = decode(diamond())
    assert network.consumers == ((1, 2), (3,), (3,), ())
    assert network.external_elements == (4, 0, 0, 0)


def change(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return apply


BAD = {
    "cycle": (change("edges", to=[[0, 1], [1, 2], [2, 1], [2, 3]]), "edges: found a cycle: 1 (n1) -> 2 (n2) -> 1 (n1)"),
    "self": (change("edges", to=[[0, 0]]), "found a cycle: 0 (n0) -> 0 (n0)"),
    "unknown op": (change("nodes", 1, "op", to="conf"), "layers[1] (n1): found op 'conf', expected one of conv, fc"),
    "negative size": (change("nodes", 1, "weight_elems", to=-8), "layers[1] (n1): found weight_elements -8, expected 0 to"),
    "negative shape": (change("nodes", 2, "ofm", to=[-1, -1, 4]), "found output_shape[0] -1"),
    "empty output": (change("nodes", 0, "ofm_elems", to=0), "found output_elements 0, expected at least 1"),
    "dangling edge": (change("edges", 3, to=[2, 9]), "edges[3]: found an edge to or from 9, expected the id of a node"),
    "double edge": (change("edges", 3, to=[0, 1]), "edges[3]: found the edge 0 -> 1 twice"),
    "double id": (change("nodes", 3, "id", to=0), "nodes[3] (n3): found the id 0 twice"),
    "text for a number": (change("nodes", 0, "macs", to="many"), "nodes[0].macs: Expected `int`, got `str`"),
    "fraction": (change("nodes", 0, "ofm_elems", to=4.5), "nodes[0].ofm_elems: Expected `int`, got `float`"),
    "edges of three": (change("edges", 0, to=[0, 1, 2]), "edges[0]"),
    "nodes no list": (change("nodes", to={}), "nodes: Expected `array`, got `object`"),
    "unknown field": (change("nodes", 0, "colour", to="red"), "nodes[0]: Object contains unknown field `colour`"),
    "bytes and elements": (change("nodes", 1, "weight_bytes_fp16", to=8), "found weight_bytes_fp16 8, expected 16"),
    "shape and elements": (change("nodes", 0, "ofm", to=[1, 1, 5]), "found 4 output elements, expected 1 * 1 * 5"),
    "reads too little": (change("nodes", 3, "ifm_elems", to=4), "found 4 input elements, expected the 8 of its inputs"),
    "reads no weights": (change("nodes", 0, "gather_elems", to=3), "found 3 elements read of weights, expected weights"),
    "no layers": (lambda value: value.update(nodes=[], edges=[]), "layers: found no layers"),
    "version": (change("version", to=7), "version: found version 7, expected 1"),
    "beyond all bounds": (change("nodes", 0, "macs", to=1 << 60), "found macs 1152921504606846976"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str) -> None:
    spoil, expected = BAD[case]
    value = diamond()
    spoil(value)
    with pytest.raises(InputError) as caught:
        decode(value)
    assert str(caught.value).startswith("net.json: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"nodes": [', b"[" * 5000])
def test_what_is_no_json_at_all(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^net\.json: "):
        decode_layers(data, "net.json")
