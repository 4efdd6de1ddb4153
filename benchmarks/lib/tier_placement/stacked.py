"""Networks of any number of layers: copies of one, one behind the other."""

from __future__ import annotations

import msgspec

from benchmarks.lib.tier_placement.variants import with_fast_memory
from stowplan.arguments import whole
from stowplan.hardware.nnp_i.problem import FEATURES
from stowplan.models.tier_placement.problem import Layer, Problem


def stacked(problem: Problem, layers: int, *, scaled: bool = False) -> Problem:
    """Copies of a network, one behind the other, cut off at a number of layers.

    Parameters
    ----------
    layers
        Of the result. Layers without inputs read the layer before, but for those of the first copy.
    scaled
        With as many times the fast memory as there are whole copies, so that there is as much to decide as in a single one.
    """
    whole("layers {}", layers, 1)
    count = len(problem.layers)
    made: list[Layer] = []
    rows: list[tuple[int, ...]] = []
    for at in range(layers):
        copy, own = divmod(at, count)
        layer = problem.layers[own]
        inputs = tuple(source + copy * count for source in layer.inputs) or ((at - 1,) if copy else ())
        made.append(msgspec.structs.replace(layer, name=f"{layer.name}.{copy}", inputs=inputs))
        rows.extend(problem.features[own : own + 1])
    result = _with_layers(problem, made, rows)
    return with_fast_memory(result, max(1, layers // count)) if scaled else result


def _with_layers(problem: Problem, layers: list[Layer], rows: list[tuple[int, ...]]) -> Problem:
    features = _recounted(tuple(rows), layers) if problem.features else ()
    return msgspec.structs.replace(problem, layers=tuple(layers), features=features, name=f"{problem.name} stacked")


def _recounted(rows: tuple[tuple[int, ...], ...], layers: list[Layer]) -> tuple[tuple[int, ...], ...]:
    """Node features with what they say of the layers that follow put right: ``n_ops_left`` and ``n_w_left``."""
    operations, weights = FEATURES.index("n_ops_left"), FEATURES.index("n_w_left")
    left, found = 0, []
    for after, (row, layer) in enumerate(zip(reversed(rows), reversed(layers), strict=True)):
        left += layer.weight_bytes
        changed = list(row)
        changed[operations], changed[weights] = after, left
        found.append(tuple(changed))
    return tuple(reversed(found))
