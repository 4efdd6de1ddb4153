"""Programs of ``torch.export``, as every front end for them begins: torch itself, its nodes' values and arguments.

Torch is imported when a model or program is read, never before.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from stowplan.errors import InputError, MissingDependencyError, first_line, to_install


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


class FakeRun:
    """Runs the nodes of a graph on tensors without data, one after the other.

    Tensors of its values share a storage exactly where those of a real run do: an operator whose schema says that its result may
    be a view copies where strides, types or conjugation demand it, and some that return what they are given say nothing of it.
    What ``meta["val"]`` holds after ``torch.export.load`` shares nothing.

    Parameters
    ----------
    module
        With ``graph``, and the submodules and constants that its nodes name.
    mode
        Of the tensors; a new one where None.
    """

    def __init__(self, module: Any, mode: Any = None):
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self._torch, self._module = torch, module
        self.mode = mode or FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self.values: dict[Any, Any] = {}
        """Of the nodes that ran. While they are held, no two storages have one key."""

    def run(self, node: Any) -> Any:
        """The value of a node whose arguments have run.

        Raises
        ------
        InputError
            It does not run, and what it returns may be a view.
        """
        torch = self._torch
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(self._module)
            value = self.mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
        elif node.op == "call_function":
            args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
            try:
                with self.mode, torch.no_grad():
                    value = node.target(*args, **keywords)
            except Exception as error:
                # What torch raises here has no common type.
                schema = schema_of(node)
                if schema is None or any(each.alias_info is not None for each in (*schema.arguments, *schema.returns)):
                    message = f"torch cannot run {node.target} without data: {first_line(error)}"
                    raise InputError(message, place=f"operator {node.name}") from error
                value = self.fresh(node.meta.get("val"))
        else:
            value = self.fresh(node.meta.get("val"))
        self.values[node] = value
        return value

    def fresh(self, value: Any) -> Any:
        """A value with tensors of the same shapes and strides, each with a storage of its own."""
        torch = self._torch

        def like(tensor: Any) -> Any:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

        with self.mode:
            return torch.utils._pytree.tree_map_only(torch.Tensor, like, value)


def storage_key(tensor: Any) -> int:
    """What two tensors have in common that share a storage, while both are held."""
    return int(tensor.untyped_storage()._cdata)
