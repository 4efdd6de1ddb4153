"""More networks to train on: stacked, thinned, with other memories, and generated. All are the same for the same generator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from stowplan.arguments import number, whole
from stowplan.errors import UsageError
from stowplan.hardware.network import Precision
from stowplan.hardware.nnp_i.costs import build_problem
from stowplan.hardware.nnp_i.features import FEATURES
from stowplan.hardware.nnp_i.target import load_target
from stowplan.learned_guidance.tier_placement.networks import FORMS, Form, random_network, rounded
from stowplan.models.tier_placement.problem import Layer, Problem

#: Layers of generated networks, where nothing else is asked for.
LAYERS = 20, 400

#: All weights of a generated network that an inference reads, over the capacity of the first tier that is faster than the
#: slowest: of the first number, it holds them all; of the last, most stay outside.
WEIGHTS = 0.4, 8.0

#: Fast memory of generated and thinned networks, times the target's; half of them have the target's own.
FAST_MEMORY = 0.5, 4.0

#: Widths of generated networks.
WIDTHS = 8, 8192

#: Parts of what :func:`varied` gives that are a given network as it is, thinned, and stacked; the rest is generated.
AS_IT_IS, THINNED, STACKED = 0.2, 0.25, 0.05

#: A network is stacked so many times, at most.
COPIES = 3

#: Blocks are looked for in so many layers.
_LONGEST_BLOCK = 64

_Rows = tuple[tuple[int, ...], ...]


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
    result = _with_layers(problem, made, rows, "stacked")
    return with_fast_memory(result, max(1, layers // count)) if scaled else result


def with_fast_memory(problem: Problem, factor: float) -> Problem:
    """The same network with so many times the capacity in all tiers but the slowest."""
    number("factor {}", factor, 0, or_least=False)
    slowest, *faster = problem.tiers
    tiers = (slowest, *(msgspec.structs.replace(tier, capacity=int(tier.capacity * factor)) for tier in faster))
    return msgspec.structs.replace(problem, tiers=tiers)


def thinned(problem: Problem, chance: np.random.Generator) -> Problem:
    """The same network with some of its blocks left out, and half the time with other capacities of fast memory.

    A block is a run of layers with one way in and one way out, both of one shape, in which what comes in is read more than
    once: a residual block, attention, a feed-forward pair. What read its output reads its input instead. Where a network has no
    such blocks, only capacities change.
    """
    part = float(chance.uniform(0.1, 0.6))
    left_out = [block for block in blocks(problem) if chance.random() < part]
    result = without(problem, left_out)
    return with_fast_memory(result, _fast_memory(chance))


def blocks(problem: Problem) -> list[tuple[int, int]]:
    """``(u, v)`` for each smallest block, ascending: layers u + 1 to v read u and each other, layers after them only v."""
    layers, last = problem.layers, problem.last_use
    shape = [layer.output_bytes for layer in layers]
    if problem.features:
        begin = FEATURES.index("ofm_x")
        shape_of = [(size, *row[begin : begin + 3]) for size, row in zip(shape, problem.features, strict=True)]
    else:
        shape_of = [(size,) for size in shape]
    found: list[tuple[int, int]] = []
    for way_in in range(len(layers)):
        # The smallest that begins here; of nested ones the inner, which begins later, wins.
        end, reads = way_in, 0
        for way_out in range(way_in + 1, min(len(layers) - 1, way_in + _LONGEST_BLOCK) + 1):
            layer = layers[way_out]
            if not layer.inputs or layer.inputs[0] < way_in:
                break
            reads += way_in in layer.inputs
            end = max(end, last[way_out - 1])
            is_closed = end <= way_out and last[way_out] > way_out
            if is_closed and reads > 1 and shape_of[way_out] == shape_of[way_in]:
                while found and found[-1][1] > way_in:
                    found.pop()
                found.append((way_in, way_out))
                break
    return found


def without(problem: Problem, left_out: list[tuple[int, int]]) -> Problem:
    """The network without these blocks ``(u, v)``, see :func:`blocks`: whatever read v reads u."""
    stands_for = list(range(len(problem.layers)))
    for way_in, way_out in left_out:
        stands_for[way_in + 1 : way_out + 1] = [-1] * (way_out - way_in)
        stands_for[way_out] = way_in
    kept = [at for at, other in enumerate(stands_for) if other == at]
    place = {at: new for new, at in enumerate(kept)}

    def new(source: int) -> int:
        while stands_for[source] != source:
            source = stands_for[source]
        return place[source]

    made = [
        msgspec.structs.replace(problem.layers[at], inputs=tuple(sorted({new(source) for source in problem.layers[at].inputs})))
        for at in kept
    ]
    return _with_layers(problem, made, [problem.features[at] for at in kept] if problem.features else [], "thinned")


def generated(
    chance: np.random.Generator,
    *,
    layers: int | None = None,
    form: Form | None = None,
    precision: Precision | None = None,
    target: str = "nnp-i",
) -> Problem:
    """A random network on a chip.

    Sizes are drawn so that the weights that an inference reads take :data:`WEIGHTS` times the capacity of the first fast tier,
    evenly in logarithms, and half of the chips have other capacities than the target's (:data:`FAST_MEMORY`).

    Parameters
    ----------
    layers
        About so many; without, :data:`LAYERS`, evenly in logarithms.
    form
        See :mod:`stowplan.learned_guidance.tier_placement.networks`; any without.
    precision
        Any of the target's without.

    Raises
    ------
    UsageError
        Fewer than 8 layers, or no such form.
    """
    if form is not None and form not in FORMS:
        raise UsageError(f"found form {form!r}, expected one of {', '.join(FORMS)}")
    chip = load_target(target)
    count = round(_log_uniform(chance, LAYERS)) if layers is None else whole("layers {}", layers, 8)
    form = FORMS[int(chance.integers(len(FORMS)))] if form is None else form
    precision = chip.precisions[int(chance.integers(len(chip.precisions)))] if precision is None else precision
    factor, ratio, seed = _fast_memory(chance), _log_uniform(chance, WEIGHTS), int(chance.integers(2**63))

    def made(width: int) -> Problem:
        network = random_network(form, np.random.default_rng(seed), layers=count, width=width)
        return with_fast_memory(build_problem(network, chip, precision), factor)

    # Weights grow about as the square of the width: a second step takes out what the first one missed.
    width = 64
    for _ in range(2):
        problem = made(width)
        size = sum(layer.weights_read for layer in problem.layers)
        width = min(WIDTHS[1], max(WIDTHS[0], rounded(width * math.sqrt(ratio * problem.tiers[1].capacity / size))))
    return msgspec.structs.replace(made(width), name=f"{form}-{seed % 10**6:06}")


def varied(problems: Sequence[Problem], chance: np.random.Generator) -> Problem:
    """A network to train on: one of ``problems`` as it is, thinned or stacked, or a generated one; without any, generated."""
    kind = chance.random() if problems else 1.0
    if kind >= AS_IT_IS + THINNED + STACKED:
        return generated(chance)
    problem = problems[int(chance.integers(len(problems)))]
    if kind < AS_IT_IS:
        return problem
    if kind < AS_IT_IS + THINNED:
        return thinned(problem, chance)
    copies = int(chance.integers(2, COPIES + 1))
    return stacked(problem, copies * len(problem.layers), scaled=bool(chance.random() < 0.5))


def _with_layers(problem: Problem, layers: list[Layer], rows: list[tuple[int, ...]], what: str) -> Problem:
    features = recounted(tuple(rows), layers) if problem.features else ()
    return msgspec.structs.replace(problem, layers=tuple(layers), features=features, name=f"{problem.name} {what}")


def recounted(rows: _Rows, layers: list[Layer]) -> _Rows:
    """Node features with what they say of the layers that follow put right: ``n_ops_left`` and ``n_w_left``."""
    operations, weights = FEATURES.index("n_ops_left"), FEATURES.index("n_w_left")
    left, found = 0, []
    for after, (row, layer) in enumerate(zip(reversed(rows), reversed(layers), strict=True)):
        left += layer.weight_bytes
        changed = list(row)
        changed[operations], changed[weights] = after, left
        found.append(tuple(changed))
    return tuple(reversed(found))


def _fast_memory(chance: np.random.Generator) -> float:
    return _log_uniform(chance, FAST_MEMORY) if chance.random() < 0.5 else 1.0


def _log_uniform(chance: np.random.Generator, limits: tuple[float, float]) -> float:
    return math.exp(chance.uniform(math.log(limits[0]), math.log(limits[1])))
