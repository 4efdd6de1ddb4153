"""What is modelled of the operators in an exported program that are no plain ATen operators.

Higher-order operators run graphs, or operators, that they are given. Those that run one graph once stand for its operators; of
branches and loops is known what torch's own eager implementations hold beside operands and results (2.13, measured); what is in
none of these tables is refused.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from stowplan.errors import InputError
from stowplan.frontends.torch_program import is_higher_order, tensors_of, warn_of_unknown
from stowplan.log import warn_unmodelled

#: Operators that copy all of the storage under their first argument, however little of it that is a view of: kernels of 2.13,
#: measured. Runs without data copy the view.
_COPY_STORAGE = ("copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")


class Inlined(NamedTuple):
    """Where a higher-order operator that runs one graph once has it, and what it is given, among its arguments."""

    graph: int
    operands: int
    context: Callable[..., AbstractContextManager[Any]] = lambda *_: contextlib.nullcontext()
    """In what the graph runs, given the arguments before it."""


def _autocast(device: str, dtype: Any, enabled: bool, cache: bool | None) -> AbstractContextManager[Any]:
    import torch

    return torch.autocast(device, dtype, enabled, cache)


INLINED = {
    "wrap_with_set_grad_enabled": Inlined(1, 2),
    "wrap_with_autocast": Inlined(4, 5, _autocast),
    "invoke_subgraph": Inlined(0, 2),
    "tag_activation_checkpoint": Inlined(0, 1),
}

#: What is not counted of operators that are in no other table, or hold more than their graphs do.
_UNSEEN = {
    "auto_functionalized": "what the operator that it runs allocates is",
    "auto_functionalized_v2": "what the operator that it runs allocates is",
    "flex_attention": "the scores that it holds without a fused kernel are",
    "wrap_with_autocast": "copies of operands and weights in the lower precision are",
}


class Inside(NamedTuple):
    """What a graph that an operator runs needs beside what it is given. Sizes are bytes."""

    peak: int
    results: Sequence[int]
    """[results] of the storage under each."""
    is_random: bool


def _of_map(node: Any, graphs: Sequence[Inside], own: int, results: Sequence[Any]) -> int:
    """Results of all iterations live while the last runs, and while they are stacked."""
    times, part = max((len(tensor) for tensor in tensors_of(results)), default=0), sum(graphs[0].results)
    return max(times * part, (times - 1) * part + graphs[0].peak - own)


def _of_scan(node: Any, graphs: Sequence[Inside], own: int, results: Sequence[Any]) -> int:
    """Results are scattered into their places with two indices of 8 bytes for each element of an iteration's."""
    stacked = tensors_of(results[len(node.args[1]) :])
    return graphs[0].peak + sum(16 * math.prod(map(int, tensor.shape[1:])) for tensor in stacked)


#: Branches and loops: bytes beside operands and results, given the node, its graphs, the bytes of its results and these.
NESTED: dict[str, Callable[[Any, Sequence[Inside], int, Sequence[Any]], int]] = {
    # Results of the branch are those of the operator.
    "cond": lambda node, graphs, own, results: max(0, *(graph.peak - own for graph in graphs)),
    # The last iteration's values, as large as the results, live while the next runs.
    "while_loop": lambda node, graphs, own, results: max(graph.peak for graph in graphs),
    "map_impl": _of_map,
    "scan": _of_scan,
}


def copied_storages(node: Any, args: Sequence[Any]) -> list[Sequence[int]]:
    """Bytes that the storages under an operator's first results have at least, given its arguments' values."""
    name = str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")
    # Of what shows the same bytes several times, the view is copied.
    if name not in _COPY_STORAGE or any(
        stride == 0 and size > 1 for stride, size in zip(args[0].stride(), args[0].shape, strict=True)
    ):
        return []
    return [[args[0].untyped_storage().nbytes()]]


def expect_modelled(node: Any, place: str) -> None:
    """Raise InputError for an operator that no table has; warn of one that may hold more than is known."""
    if is_higher_order(node):
        name = str(node.target)
        if name not in INLINED and name not in NESTED and name not in _UNSEEN:
            raise InputError(f"found the higher-order operator {name}, expected one of those modelled", place=place)
        if name in _UNSEEN:
            warn_unmodelled(f"{name}: {_UNSEEN[name]} not counted", place)
    elif not hasattr(node.target, "_schema") and tensors_of(node.meta.get("val")):
        raise InputError(f"found the function {node.target}, expected an operator of torch", place=place)
    else:
        warn_of_unknown(node.target, place)
