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
from stowplan.frontends.torch_program import is_higher_order, tensors_of
from stowplan.log import warn_unmodelled

#: Namespaces of operators that hold what they read and write, and nothing that matters beside.
_NAMESPACES = frozenset(("aten", "prims", "quantized_decomposed"))

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

#: Those whose results are new and that hold little beside; the second gives what may be missing.
_PLAIN = {
    "auto_functionalized": "",
    "auto_functionalized_v2": "",
    "flex_attention": "without a fused kernel it holds all scores, which are not counted",
}


class Inside(NamedTuple):
    """What a graph that an operator runs needs beside what it is given. Sizes are bytes."""

    peak: int
    results: Sequence[int]
    """[results] of the storage under each."""
    is_random: bool


def _of_cond(node: Any, graphs: Sequence[Inside], own: int, results: Sequence[Any]) -> int:
    """Results of the branch are those of the operator."""
    return max(0, max(each.peak for each in graphs) - own)


def _of_loop(node: Any, graphs: Sequence[Inside], own: int, results: Sequence[Any]) -> int:
    """The last iteration's values, as large as the results, live while the next runs."""
    return max(each.peak for each in graphs)


def _of_map(node: Any, graphs: Sequence[Inside], own: int, results: Sequence[Any]) -> int:
    """Results of all iterations live while they are stacked."""
    return max(own, graphs[0].peak)


def _of_scan(node: Any, graphs: Sequence[Inside], own: int, results: Sequence[Any]) -> int:
    """Results are scattered into their places with two indices of 8 bytes for each element of an iteration's."""
    stacked = tensors_of(results[len(node.args[1]) :])
    return graphs[0].peak + sum(16 * math.prod(each.shape[1:]) for each in stacked)


class Nested(NamedTuple):
    """A branch or a loop."""

    scratch: Callable[[Any, Sequence[Inside], int, Sequence[Any]], int]
    """Bytes beside operands and results, given the node, its graphs, the bytes of its results and these."""
    returns: Callable[[Any, Sequence[Inside]], list[Sequence[int]]]
    """Sizes of the storages that graphs hand on as the operator's first results."""


NESTED = {
    "cond": Nested(_of_cond, lambda node, graphs: [each.results for each in graphs]),
    "while_loop": Nested(_of_loop, lambda node, graphs: [graphs[1].results]),
    "map_impl": Nested(_of_map, lambda node, graphs: []),
    "scan": Nested(_of_scan, lambda node, graphs: [graphs[0].results[: len(node.args[1])]]),
}


def copied_storages(node: Any, args: Sequence[Any]) -> list[Sequence[int]]:
    """Bytes that the storages under an operator's first results have at least, given its arguments' values."""
    name = str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")
    return [[args[0].untyped_storage().nbytes()]] if name in _COPY_STORAGE else []


def expect_modelled(node: Any, place: str) -> None:
    """Raise InputError for an operator that no table has; warn of one that may hold more than is known."""
    target = node.target
    if is_higher_order(node):
        name = str(target)
        if name not in (*INLINED, *_PLAIN, *NESTED):
            raise InputError(f"found the higher-order operator {name}, expected one of those modelled", place=place)
        if _PLAIN.get(name):
            warn_unmodelled(f"{name}: {_PLAIN[name]}", place)
        if name == "wrap_with_autocast":
            warn_unmodelled(f"{name}: copies of operands and weights in the lower precision are not counted", place)
        target = node.args[0] if name.startswith("auto_functionalized") else None
    elif not hasattr(target, "_schema") and tensors_of(node.meta.get("val")):
        raise InputError(f"found the function {target}, expected an operator of torch", place=place)
    if getattr(target, "namespace", "aten") not in _NAMESPACES:
        warn_unmodelled(f"{target} is a custom operator: what it allocates beside its results is not counted", place)
