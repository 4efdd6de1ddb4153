"""Operators gathered into layers, on traces written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from stowplan.errors import InputError, UsageError
from stowplan.frontends.network.coarsen import Granularity, Operation, Trace, coarsen

MAP = (1, 8, 4, 4)


def op(name: str, kind: str, *inputs: str, shape: tuple[int, ...] = MAP, **more: Any) -> Operation:
    return Operation(name=name, op=kind, inputs=inputs, shape=shape, label=kind, **more)


def trace(*operations: Operation, outputs: tuple[str, ...] = (), integers: tuple[str, ...] = ()) -> Trace:
    inputs = {"x": MAP, **dict.fromkeys(integers, (1, 4))}
    names = outputs or (operations[-1].name,)
    return Trace(name="t", inputs=inputs, integer_inputs=frozenset(integers), operations=operations, outputs=names)


def shape_of(network: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(layer.op, layer.inputs) for layer in network.layers]


def test_a_convolution_takes_up_what_follows_it() -> None:
    network = coarsen(
        trace(
            op("c", "conv", "x", weights=72, macs=1000),
            op("b", "batchnorm", "c", weights=16),
            op("r", "relu", "b"),
            op("d", "conv", "r", weights=72),
            op("e", "bias_add", "d", weights=8),
            op("f", "batchnorm", "e", weights=16),
            op("s", "add", "f", "r"),
            op("z", "relu", "s"),
        )
    )
    assert shape_of(network) == [("conv", ()), ("conv", (0,))]
    # A batch norm folds into the kernel; its shift is a bias, unless there is one already.
    assert [layer.weight_elements for layer in network.layers] == [72 + 8, 72 + 8]
    assert network.layers[1].fused == ("bias_add", "batchnorm", "add", "relu")
    assert network.layers[1].input_elements == 128
    assert network.macs == 1000


def test_a_residual_add_goes_to_the_later_branch() -> None:
    network = coarsen(trace(op("a", "conv", "x"), op("b", "conv", "x"), op("s", "add", "b", "a"), op("r", "relu", "s")))
    assert shape_of(network) == [("conv", ()), ("conv", (0,))]
    assert network.layers[1].fused == ("add", "relu")


@pytest.mark.parametrize("others", [("r", "c"), ("c", "r")])
def test_what_someone_else_reads_is_not_taken_up(others: tuple[str, str]) -> None:
    """The convolution's own output is an output of the network too."""
    network = coarsen(trace(op("c", "conv", "x"), op("r", "relu", "c"), outputs=others))
    assert shape_of(network) == [("conv", ()), ("relu", (0,))]


def test_fine_keeps_every_operator() -> None:
    steps = [
        op("p", "matmul_w", "x", weights=64),
        op("b", "bias_add", "p", weights=8),
        op("v", "view", "b"),
        op("w", "transpose", "v"),
        op("f", "free", "w"),
        op("s", "softmax", "f"),
    ]
    fine = coarsen(trace(*steps))
    assert [layer.op for layer in fine.layers] == ["matmul_w", "bias_add", "view", "transpose", "softmax"]
    assert fine.layers[4].inputs == (3,)
    layers = coarsen(trace(*steps), "layer")
    assert shape_of(layers) == [("fc", ()), ("softmax", (0,))]
    assert layers.layers[0].weight_elements == 72


def test_embeddings_that_are_added_are_one_gather() -> None:
    network = coarsen(
        trace(
            op("w", "embedding", "ids", weights=1000, gathered=128),
            op("p", "embedding", "ids", weights=500, gathered=128),
            op("e", "add", "w", "p"),
            op("n", "layernorm", "e", weights=16),
            integers=("ids",),
        )
    )
    assert shape_of(network) == [("embedding", ()), ("layernorm", (0,))]
    assert (network.layers[0].weight_elements, network.layers[0].weights_read) == (1500, 256)


def test_masks_come_from_the_host() -> None:
    network = coarsen(
        trace(
            op("m", "elementwise", "mask", shape=(1, 16)),
            op("q", "matmul", "x"),
            op("s", "add", "q", "m"),
            integers=("mask",),
        ),
        "fine",
    )
    assert shape_of(network) == [("matmul", ()), ("add", (0,))]
    assert network.external_elements == (128, 16)


@pytest.mark.parametrize("granularity", ["layer", "fine"])
def test_layers_have_the_names_of_their_first_operations(granularity: Granularity) -> None:
    steps = (op("c", "conv", "x"), op("r", "relu", "c"), op("d", "conv", "r"), op("s", "relu", "d"))
    layers = coarsen(trace(*steps), granularity).layers
    assert [layer.name for layer in layers] == (["c", "d"] if granularity == "layer" else ["c", "r", "d", "s"])


def test_dead_operators_are_left_out() -> None:
    network = coarsen(trace(op("c", "conv", "x"), op("dead", "conv", "x"), outputs=("c",)))
    assert len(network.layers) == 1


def test_unknown_operators_are_named() -> None:
    network = coarsen(trace(op("c", "conv", "x"), op("o", "other", "c")))
    assert network.notes == ("other is not known here: it counts as moving its inputs and its output",)


def test_errors() -> None:
    with pytest.raises(InputError, match="c reads 'y', which nothing before it makes"):
        coarsen(trace(op("c", "conv", "y")))
    with pytest.raises(InputError, match="found no operation to run"):
        coarsen(trace(op("f", "free", "x")))
    with pytest.raises(UsageError, match="found granularity 'coarse'"):
        coarsen(trace(op("c", "conv", "x")), "coarse")  # type: ignore[arg-type]
