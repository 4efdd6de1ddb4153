"""Front end for graphs of operators and tensors, and the targets for which they are planned.

A reader for each format makes a :class:`stowplan.graph.graph.Graph`: ONNX, programs of ``torch.export``, HLO, TensorFlow Lite
and JSON. The target says which problem is made from the graph: an order of the operators (``order``), offsets in one arena
(``arena``), recomputation within a memory limit (``rematerialization``), or, for a device with several memories, a bank for
each tensor.

A module imports only modules that come before it in this list:

- ``fx``: graphs of ``torch.fx``
- ``onnx``, ``torch_export``, ``hlo``, ``tflite``, ``graph_file``: readers, one for each format
- ``lowering``: makes packing problems from a graph
"""

from __future__ import annotations

from msgspec.structs import replace

from stowplan.errors import naming
from stowplan.frontends.formats import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.graph.graph_file import decode_graph, is_graph_file
from stowplan.frontends.graph.torch_export import is_exported, read_exported
from stowplan.frontends.network.onnx_model import is_onnx
from stowplan.frontends.options import ReadOptions, named_inputs
from stowplan.frontends.tflite.model import is_tflite
from stowplan.graph.graph import Graph
from stowplan.hardware.memories import is_memory_target, load_target, target_names

#: Names of the targets that are questions and not machines.
ORDER_TARGET, ARENA_TARGET, REMAT_TARGET = "order", "arena", "rematerialization"
#: The value of :func:`_target` for every target with several memories.
MEMORY_TARGET = "memories"


def read_graph(source: Source, options: ReadOptions, *, keeps_order: bool = False) -> Graph:
    """Reads the graph of a file.

    Parameters
    ----------
    source
        The file.
    options
        The options of the user, of which ``dim``, ``shape``, ``keep`` and ``in_place`` are used if they apply to the format.
    keeps_order
        Whether operators run in the order of the file, as for the target ``arena``. If so, the nodes of graphs that an ONNX
        node runs are operators as well. This also decides the default of the option ``in_place``, which says whether the result
        of an element-wise operator may be written over an operand: ``"none"`` if the order is kept, and otherwise
        ``"elementwise"``.

    Raises
    ------
    InputError
        The file cannot be read or is not valid, or ``options.keep`` names an input that the graph does not have.
    MissingDependencyError
        The package onnx or torch is needed and not installed.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    path = source.path
    in_place = options.in_place == "elementwise" if keeps_order else options.in_place != "none"
    if source.data is not None:
        graph = decode_graph(source.data, path)
    elif is_tflite(path):
        from stowplan.frontends.graph.tflite import read_tflite_graph

        graph = read_tflite_graph(path)
    elif is_onnx(path):
        from stowplan.frontends.graph.onnx import read_onnx

        graph = read_onnx(path, options.user_sizes, flat=keeps_order, in_place=in_place)
    elif is_exported(path):
        graph = read_exported(path, options.user_sizes.dims)
    else:
        from stowplan.frontends.graph.hlo import read_hlo

        graph = read_hlo(path, in_place=in_place)
    if not in_place:
        from stowplan.frontends.graph.lowering import without_pairs

        graph = without_pairs(graph)
    if options.keep:
        with naming(path):
            numbers = named_inputs(options.keep, ((graph.tensors[number].id, number) for number in graph.inputs))
        graph = replace(graph, outputs=tuple(dict.fromkeys((*graph.outputs, *numbers))))
    return graph


def _options(source: Source) -> frozenset[str]:
    """Names of the options that apply to reading a graph."""
    path = source.path
    if source.data is not None:
        return frozenset({"target"})
    if is_tflite(path):
        return frozenset({"target", "keep"})
    if is_onnx(path):
        return frozenset({"target", "dim", "shape", "keep", "in_place"})
    return frozenset({"target", "dim", "keep", "in_place"} if is_exported(path) else {"target", "in_place"})


def _target(source: Source) -> str | None:
    """The target for which a file is read as a graph; None if it is not read as one.

    It is the target that the user names. Without one, it is ``arena`` for a TensorFlow Lite model and ``order`` for an exported
    program.
    """
    if source.data is not None and not is_graph_file(source.data):
        return None
    if source.target in (ORDER_TARGET, ARENA_TARGET, REMAT_TARGET):
        return str(source.target)
    if is_memory_target(source.target):
        return MEMORY_TARGET
    return ARENA_TARGET if is_tflite(source.path) else ORDER_TARGET if is_exported(source.path) else None


def _words(source: Source) -> str:
    """Words for a file that is read as a graph."""
    if source.data is not None:
        return "a graph of operators and tensors"
    if is_tflite(source.path):
        return "a TensorFlow Lite model"
    if is_onnx(source.path):
        return "an ONNX model"
    return "a program of torch.export" if is_exported(source.path) else "an HLO module"


def _claims(source: Source) -> bool | None:
    """Whether a file is meant for a target of this package other than ``arena``. It is asked if the user names several targets.

    True for an exported program, False for a TensorFlow Lite model, which is meant for ``arena``, and None for all other files,
    for which this is not certain.
    """
    return False if is_tflite(source.path) else True if is_exported(source.path) else None


def _open_order(source: Source, options: ReadOptions) -> Opened:
    """Makes the problem of operator order; raises the errors of :func:`read_graph`, as the other ``_open`` functions do."""
    from stowplan.models.operator_order.problem import of_graph

    return Opened(of_graph(read_graph(source, options)))


def _open_rematerialization(source: Source, options: ReadOptions) -> Opened:
    """Makes the problem of rematerialization."""
    from stowplan.models.rematerialization.problem import of_graph

    return Opened(of_graph(read_graph(source, options), limit=options.capacity))


def _open_arena(source: Source, options: ReadOptions) -> Opened:
    """Makes the packing problem of a graph, or of a TensorFlow Lite model with all its subgraphs."""
    _ARENA.load(str(options.target))
    if is_tflite(source.path):
        from stowplan.frontends.graph.tflite import warn_of_scratch
        from stowplan.frontends.tflite.model import read_tflite

        model = read_tflite(source.path, options.capacity, options.replace_offline_plan, options.keep)
        warn_of_scratch(model)
        return Opened(model.problem)
    from stowplan.frontends.graph.lowering import arena_problem

    # The graph has pairs of results and operands that may share bytes only if --set in_place=elementwise asks for them.
    graph = read_graph(source, options, keeps_order=True)
    return Opened(arena_problem(graph, options.capacity, in_place=True))


def _open_banks(source: Source, options: ReadOptions) -> Opened:
    """Makes the banked packing problem for a device with several memories."""
    from stowplan.frontends.graph.lowering import banks_problem

    target = load_target(str(options.target))
    graph = read_graph(source, options, keeps_order=True)
    return Opened(banks_problem(graph, target, in_place=True))


_BANKS = TargetFamily(
    "graphs whose tensors are placed in several memories",
    "banked packing",
    "stm32h743",
    "a bank of memory and an offset in it for each tensor",
    load_target,
    target_names,
    lambda target: ", ".join(f"{bank.name} {bank.capacity / 2**10:g} KiB" for bank in target.banks),
)

BANKS = InputFormat(
    what=_words,
    suffixes=(".onnx", ".pt2", ".tflite"),
    accepts=_options,
    matches=lambda source: _target(source) == MEMORY_TARGET,
    open=_open_banks,
    targets=_BANKS,
    claims=_claims,
)

_ARENA = TargetFamily.of_one(
    "graphs whose tensors share an arena",
    "packing",
    ARENA_TARGET,
    "offsets of its tensors in one arena",
    "offsets for all tensors in the least memory, with operators in the order of the file",
)

ARENA = InputFormat(
    what=_words,
    suffixes=(".tflite",),
    accepts=lambda source: (
        _options(source) | {"capacity"} | ({"replace_offline_plan"} if is_tflite(source.path) else frozenset())
    ),
    matches=lambda source: _target(source) == ARENA_TARGET,
    open=_open_arena,
    targets=_ARENA,
    claims=lambda source: True if is_tflite(source.path) else None,
)

ORDER = InputFormat(
    what=_words,
    suffixes=(".onnx", ".pt2", ".hlo", ".hlo.txt"),
    accepts=_options,
    matches=lambda source: _target(source) == ORDER_TARGET,
    open=_open_order,
    targets=TargetFamily.of_one(
        "graphs to order",
        "operator order",
        ORDER_TARGET,
        "the order of its operators with the least peak, and offsets",
        "the order of operators with the least peak memory, and offsets",
    ),
    claims=_claims,
)

REMATERIALIZATION = InputFormat(
    what=_words,
    suffixes=(".onnx", ".pt2", ".hlo", ".hlo.txt"),
    accepts=lambda source: _options(source) | {"capacity"},
    matches=lambda source: _target(source) == REMAT_TARGET,
    open=_open_rematerialization,
    targets=TargetFamily.of_one(
        "graphs whose operators may run again",
        "rematerialization",
        REMAT_TARGET,
        "which operators run again to stay within a memory limit",
        "which operators run again so that the peak is at most --capacity, at the least added cost",
    ),
    claims=_claims,
)

#: The format of graphs in JSON; without a target, their operators are ordered.
GRAPH_FILE = InputFormat(
    what=_words,
    suffixes=(".json",),
    accepts=lambda source: frozenset(),
    matches=lambda source: source.data is not None and is_graph_file(source.data),
    open=_open_order,
)

#: All formats of graphs, in the order in which they are tried.
FORMATS = (ARENA, ORDER, REMATERIALIZATION, BANKS, GRAPH_FILE)
