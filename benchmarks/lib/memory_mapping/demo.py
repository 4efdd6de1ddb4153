"""The demo of MMapGame, as its file was made: one training step of a few dense layers."""

from __future__ import annotations

from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use

#: Picoseconds a byte, read or written by a step; a copy takes what slow memory does.
SLOW_PS, FAST_PS = 10, 1

#: Bytes of each layer's weights, and of what goes into the first layer and comes out of each.
WEIGHTS = (3072, 4096, 2048, 1024)
ACTIVATIONS = (1024, 2048, 2048, 1024, 512)


def made() -> Problem:
    """A training step of four layers: forward, then backward with each layer's weights updated in place; 34 moves.

    Latencies follow a roofline, the larger of computing and moving bytes. ``optimum.py`` proves the best game in a minute.
    """
    layers = range(len(WEIGHTS))
    weight = {layer: layer for layer in layers}
    activation = {layer: len(WEIGHTS) + layer for layer in range(len(ACTIVATIONS))}
    gradient = {layer: len(WEIGHTS) + len(ACTIVATIONS) + layer for layer in range(len(ACTIVATIONS))}
    tensors = (
        *(_tensor(f"weights.{layer}", WEIGHTS[layer], is_input=True, is_output=True) for layer in layers),
        *(_tensor(f"activation.{layer}", size, is_input=layer == 0) for layer, size in enumerate(ACTIVATIONS)),
        *(_tensor(f"gradient.{layer}", size, is_output=layer == 0) for layer, size in enumerate(ACTIVATIONS)),
    )
    forward = [
        _step(tensors, f"forward.{layer}", (activation[layer], weight[layer]), (activation[layer + 1],)) for layer in layers
    ]
    loss = _step(tensors, "loss", (activation[len(WEIGHTS)],), (gradient[len(WEIGHTS)],))
    backward = [
        _step(
            tensors,
            f"backward.{layer}",
            (gradient[layer + 1], activation[layer], weight[layer]),
            (gradient[layer], weight[layer]),
        )
        for layer in reversed(layers)
    ]
    return Problem(
        name="demo",
        target="demo",
        cost_model="roofline",
        capacity=8192,
        alignment=512,
        tensors=tensors,
        steps=(*forward, loss, *backward),
    )


def _tensor(name: str, size: int, *, is_input: bool = False, is_output: bool = False) -> Tensor:
    return Tensor(name, size, SLOW_PS * size, SLOW_PS * size, is_input=is_input, is_output=is_output)


def _step(tensors: tuple[Tensor, ...], name: str, reads: tuple[int, ...], writes: tuple[int, ...]) -> Step:
    uses = tuple(
        Use(tensor, is_output, tensors[tensor].size)
        for is_output, group in ((False, reads), (True, writes))
        for tensor in group
    )
    moved = sum(use.bytes for use in uses)
    still = (0,) * len(uses)
    compute = Piece(base_ps=5 * moved, slow_ps=still, fast_ps=still)
    memory = Piece(0, slow_ps=tuple(SLOW_PS * use.bytes for use in uses), fast_ps=tuple(FAST_PS * use.bytes for use in uses))
    return Step(name, "dense", weight=1, uses=uses, pieces=(compute, memory))
