"""Reads programs of ``torch.export`` as graphs, from files or from program objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stowplan.errors import InputError, first_line, naming
from stowplan.frontends.graph.fx import FxReader
from stowplan.frontends.torch_program import UpperBounds, import_torch, stored_inputs
from stowplan.graph.graph import Graph
from stowplan.models.operator_order.problem import Problem, of_graph


def is_exported(path: str | Path) -> bool:
    """Whether a file is an exported program, judging by its name."""
    return Path(path).name.lower().endswith(".pt2")


def read_exported(path: str | Path, dims: Mapping[str, int] | None = None) -> Graph:
    """Reads the graph of a file that ``torch.export.save`` has written.

    Parameters
    ----------
    dims
        Upper bounds of symbolic sizes (:class:`~stowplan.frontends.torch_program.UpperBounds`).

    Raises
    ------
    MissingDependencyError
        The package torch is not installed.
    InputError
        The file cannot be loaded, or its graph cannot be read (:func:`graph_of_exported`).
    """
    torch = import_torch("an exported program")
    try:
        program = torch.export.load(str(path))
    except Exception as error:
        # Torch raises errors of many types here.
        raise InputError(f"not a program that torch.export.save wrote: {first_line(error)}", source=path) from error
    with naming(path):
        return graph_of_exported(program, name=Path(path).name.removesuffix(".pt2"), dims=dims)


def problem_of_exported(program: Any, *, name: str = "program", dims: Mapping[str, int] | None = None) -> Problem:
    """The problem of operator order of an exported program; parameters and errors are those of :func:`graph_of_exported`."""
    return of_graph(graph_of_exported(program, name=name, dims=dims))


def graph_of_exported(program: Any, *, name: str = "program", dims: Mapping[str, int] | None = None) -> Graph:
    """Reads the graph of a ``torch.export.ExportedProgram``; each symbolic size is replaced by its upper bound.

    If an operator overwrites bytes, the operators that use these bytes before it in the program stay before it, and those that
    use them after it stay after it. A warning is issued for operators that may allocate memory that is not counted.

    Raises
    ------
    InputError
        A size has no bound, or an operator is not modelled; the message names the operator.
    """
    signature = program.graph_signature
    changed = set(getattr(signature, "user_inputs_to_mutate", {}).values())
    # A program returns the new values of the inputs and module buffers that it overwrites, and after them its results.
    first = len(signature.output_specs) - len(signature.user_outputs)
    bounds = UpperBounds(program, dims)
    return FxReader(program.graph_module, stored_inputs(program), changed, bounds=bounds).read(name, first)
