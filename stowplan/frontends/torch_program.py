"""Programs of ``torch.export``, as every front end for them begins: torch itself, its nodes' values and arguments.

Torch is imported when a model or program is read, never before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stowplan.errors import InputError, MissingDependencyError, to_install


def import_torch(what: str) -> Any:
    """Torch; raises MissingDependencyError saying ``what`` needs it, where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(f"reading {what} needs torch: {to_install('learned')}") from error
    return torch


def stored_inputs(program: Any) -> set[str]:
    """Names of the placeholders of an exported program that are parameters, buffers and other constants."""
    signature = program.graph_signature
    return {
        *signature.inputs_to_parameters,
        *signature.inputs_to_buffers,
        *getattr(signature, "inputs_to_lifted_tensor_constants", {}),
        *getattr(signature, "inputs_to_lifted_custom_objs", {}),
    }


def values(node: Any) -> list[Any]:
    """What torch knows of each result of a node."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [value]


def static_shape(tensor: Any, place: str) -> tuple[int, ...]:
    """Sizes of a tensor; raises InputError naming ``place`` where one is not known before the program runs."""
    if not all(type(each) is int for each in tensor.shape):
        shape = [str(each) for each in tensor.shape]
        raise InputError(f"found the shape {shape}, expected a static one: export without dynamic shapes", place=place)
    return tuple(tensor.shape)


def arguments(node: Any) -> Iterator[tuple[Any, Any]]:
    """(argument, what it is given) of an operator, in the order of its schema; nothing of what has none."""
    for at, argument in enumerate(getattr(schema_of(node), "arguments", ())):
        yield argument, node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)


def schema_of(node: Any) -> Any:
    """The schema of a node's operator, None where it has none."""
    # Operators of executorch's edge dialect have torch's own inside.
    return getattr(node.target, "_schema", None) or getattr(getattr(node.target, "_op", None), "_schema", None)


def is_written(argument: Any) -> bool:
    """Whether an operator writes over this argument of its schema."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)
