"""Programs of ``torch.export`` as graphs of operators and tensors. Parameters, buffers and constants are no tensors here.

Torch is imported when a program is read, never before. Whether a result is a view comes from the operator's schema, and whether
it may take an operand's place from its tag as pointwise.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import InputError, first_line, naming
from stowplan.frontends.torch_program import arguments, import_torch, is_written, schema_of, static_shape, stored_inputs, values
from stowplan.models.operator_order.problem import Op, Problem, Tensor


def is_exported(path: str | Path) -> bool:
    """Whether a file is an exported program, by its name."""
    return Path(path).name.lower().endswith(".pt2")


def read_exported(path: str | Path) -> Problem:
    """Problem of a file that ``torch.export.save`` wrote.

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
        return problem_of_exported(program, name=Path(path).name.removesuffix(".pt2"))


def problem_of_exported(program: Any, *, name: str = "program") -> Problem:
    """Problem of a ``torch.export.ExportedProgram`` with static shapes.

    One with operators that write over what they read is made functional first.

    Raises
    ------
    InputError
        A shape is not static; names the operator.
    """
    if any(is_written(argument) for node in program.graph.nodes for argument, _ in arguments(node)):
        try:
            program = program.run_decompositions({})
        except Exception as error:
            raise InputError(f"torch cannot make the program functional: {first_line(error)}") from error
    return _Reader(program).problem(name)


class _Reader:
    """Walks the graph of an exported program."""

    def __init__(self, program: Any):
        self._nodes = list(program.graph.nodes)
        self._stored = stored_inputs(program)
        self._tensors: list[Tensor] = []
        self._values: dict[Any, list[int | None]] = {}
        """Tensors of each node, in the order of its results; None for what is stored or no tensor."""

    def problem(self, name: str) -> Problem:
        """The problem."""
        inputs: list[int] = []
        outputs: dict[int, None] = {}
        ops: list[Op] = []
        for node in self._nodes:
            check_reading()
            if node.op == "placeholder":
                is_stored = node.name in self._stored
                self._values[node] = [None] if is_stored else [self._add(node, value, 0) for value in values(node)]
                inputs += [each for each in self._values[node] if each is not None]
            elif node.op == "output":
                outputs = {each: None for used in node.all_input_nodes for each in self._of(used)}
            elif node.op == "call_function":
                op = self._op(node)
                if op is not None:
                    ops.append(op)
        return Problem(
            name=name,
            tensors=tuple(self._tensors),
            ops=tuple(ops),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
        )

    def _of(self, node: Any) -> list[int]:
        return [each for each in self._values.get(node, ()) if each is not None]

    def _op(self, node: Any) -> Op | None:
        if getattr(node.target, "__name__", "") == "getitem":
            source, index = node.args
            found = self._values.get(source, [])
            self._values[node] = [found[index]] if isinstance(index, int) and index < len(found) else []
            return None
        reads = list(dict.fromkeys(each for used in node.all_input_nodes for each in self._of(used)))
        results = values(node)
        views = _views(node)
        found = []
        for at, value in enumerate(results):
            base = self._of(views[at]) if at in views else []
            if at in views and not base:
                # A view of what is stored is stored.
                found.append(None)
            else:
                found.append(self._add(node, value, at, base[0] if base else None))
        self._values[node] = found
        writes = [each for each in found if each is not None]
        if results and not writes:
            return None
        return Op(
            id=node.name,
            reads=tuple(reads),
            writes=tuple(writes),
            in_place=self._in_place(node, reads, writes),
            kind=str(node.target),
        )

    def _in_place(self, node: Any, reads: list[int], writes: list[int]) -> tuple[tuple[int, int], ...]:
        import torch

        if torch.Tag.pointwise not in getattr(node.target, "tags", ()) or len(writes) != 1:
            return ()
        result = writes[0]
        if self._tensors[result].alias_of is not None:
            return ()
        users = {each: len(used.users) for used in node.all_input_nodes for each in self._of(used)}
        same = [each for each in reads if self._tensors[self._base(each)].size == self._tensors[result].size]
        return tuple((each, result) for each in sorted(same, key=lambda each: (users[each], each))[:1])

    def _base(self, tensor: int) -> int:
        while (other := self._tensors[tensor].alias_of) is not None:
            tensor = other
        return tensor

    def _add(self, node: Any, value: Any, at: int, base: int | None = None) -> int | None:
        """A tensor for a result; None where it is none."""
        if not hasattr(value, "element_size"):
            return None
        size = math.prod(static_shape(value, f"operator {node.name}")) * int(value.element_size())
        name = node.name if at == 0 else f"{node.name}#{at}"
        if base is not None:
            # Expanded views are larger than what they are views of.
            size = min(size, self._tensors[base].size)
        self._tensors.append(Tensor(id=name, size=size, alignment=max(1, int(value.element_size())), alias_of=base))
        return len(self._tensors) - 1


def _views(node: Any) -> dict[int, Any]:
    """The node whose value each result is a view of, by the operator's schema."""
    schema = schema_of(node)
    if schema is None:
        return {}
    sources = {}
    for argument, given in arguments(node):
        if argument.alias_info is not None and not is_written(argument) and hasattr(given, "meta"):
            for each in argument.alias_info.before_set:
                sources[each] = given
    found = {}
    for at, result in enumerate(schema.returns):
        if result.alias_info is not None:
            for each in result.alias_info.before_set:
                if each in sources:
                    found[at] = sources[each]
    is_list = len(schema.returns) == 1 and str(schema.returns[0].type).startswith("List")
    if is_list and schema.returns[0].alias_info is not None and len(set(sources.values())) == 1:
        source = next(iter(sources.values()))
        found = {at: source for at, _ in enumerate(values(node))}
    return found
