"""Programs of ``torch.export`` as graphs: from files, or from a program object."""

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
    """Whether a file is an exported program, by its name."""
    return Path(path).name.lower().endswith(".pt2")


def read_exported(path: str | Path, dims: Mapping[str, int] | None = None) -> Graph:
    """Graph of a file that ``torch.export.save`` wrote.

    Parameters
    ----------
    dims
        Bounds of sizes that it leaves open (:class:`~stowplan.frontends.torch_program.UpperBounds`).

    Raises
    ------
    MissingDependencyError
        There is no torch.
    InputError
        No such file, or a shape that is not static.
    """
    torch = import_torch("an exported program")
    try:
        program = torch.export.load(str(path))
    except Exception as error:
        # What torch raises here has no common type.
        raise InputError(f"not a program that torch.export.save wrote: {first_line(error)}", source=path) from error
    with naming(path):
        return graph_of_exported(program, name=Path(path).name.removesuffix(".pt2"), dims=dims)


def problem_of_exported(program: Any, *, name: str = "program", dims: Mapping[str, int] | None = None) -> Problem:
    """Problem of operator order of an exported program: of the graph that :func:`graph_of_exported` reads."""
    return of_graph(graph_of_exported(program, name=name, dims=dims))


def graph_of_exported(program: Any, *, name: str = "program", dims: Mapping[str, int] | None = None) -> Graph:
    """Graph of a ``torch.export.ExportedProgram``. Sizes that it leaves open are the largest they may be.

    What operators write over has the bytes that it had, and those that touch these bytes keep their order. Warns of operators
    that may allocate what nothing is known of.

    Raises
    ------
    InputError
        A size has no bound, or an operator is not modelled; names the operator.
    """
    signature = program.graph_signature
    changed = set(getattr(signature, "user_inputs_to_mutate", {}).values())
    # Before what it returns stands what its inputs and buffers become.
    first = len(signature.output_specs) - len(signature.user_outputs)
    bounds = UpperBounds(program, dims)
    return FxReader(program.graph_module, stored_inputs(program), changed, bounds=bounds).read(name, first)
