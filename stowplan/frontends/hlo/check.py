"""Checks a module: refuses inconsistent sizes, and warns of everything that is not modelled, with its possible effect.

A result whose number of elements does not follow from its operands is refused, because bytes would be counted wrongly. The
module is no verifier of HLO: element types, layouts, ranks and most values of attributes are not checked.

The functions from :func:`_elementwise` on compute the number of elements of a result. ``at`` is the instruction, ``out`` is the
declared shape of the result, and ``arrays`` are the operands, in which tuples are replaced by their arrays. They raise
InputError if an attribute is missing or wrong, and IndexError or ValueError if operands are missing or have another rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import prod

from stowplan.frontends.hlo.module import HloModule, Instruction, convolution_labels, numbers, padding, ranges
from stowplan.frontends.hlo.opcodes import (
    ATTRIBUTES,
    CUSTOM_CALLS,
    ELEMENTWISE,
    HOST,
    MODULE_ATTRIBUTES,
    NAMING,
    SAME_NUMBER,
    SPACES,
    UNMODELLED_TIMES,
)
from stowplan.frontends.hlo.shape import BITS, ArrayShape, excerpt
from stowplan.frontends.hlo.walk import custom_target
from stowplan.log import warn_unmodelled

#: Shapes of the arrays that an instruction reads.
_Arrays = Sequence[ArrayShape]
#: Opcodes whose operands become the parameters of the computations that they call.
_CALLING = ("fusion", "call", "async-start", "while")
#: The name of an attribute, also inside of a string.
_NAMES = re.compile(r"(?:^|, )([\w-]+)=")
#: Parts of warnings: what is not counted for an unknown attribute, and for a custom call of an unknown target.
_UNKNOWN_ATTRIBUTE = "is not known: what it changes, or a computation that it names, is not counted"
_UNKNOWN_CALL = "its arithmetic and memory of its own count as none, its results share storage only where the text says so"


def check_module(module: HloModule, *, timed: bool, spaces: frozenset[int] = SPACES) -> None:
    """Warns of everything in a module that is not modelled, or only in part.

    Parameters
    ----------
    module
        The module.
    timed
        Whether the problem depends on the times of instructions, and not only on sizes.
    spaces
        Numbers of the memory spaces that the reader supports; a warning names every other one.

    Raises
    ------
    InputError
        The number of elements of a result does not follow from its operands, the operands of a call have other sizes than the
        parameters of the computation, or an attribute on which sizes depend is missing or wrong.
    """
    for name in sorted({*module.attributes} - MODULE_ATTRIBUTES):
        warn_unmodelled(f"the attribute {excerpt(name)} {_UNKNOWN_ATTRIBUTE}", "the module")
    for computation in module.computations.values():
        for instruction in computation.instructions:
            operands = [leaf for name in instruction.operands for _, leaf in computation.by_name[name].shape.leaves]
            _check_elements(instruction, operands)
            called = [module.computations[name] for name in instruction.called if instruction.opcode in _CALLING]
            for body in called:
                parameter_arrays = [leaf for parameter in body.parameters for _, leaf in parameter.shape.leaves]
                if any(one.elements != two.elements for one, two in zip(operands, parameter_arrays, strict=False)):
                    raise instruction.error(f"found operands of other sizes than the parameters of %{body.name}")
                if instruction.opcode == "async-start" and len(body.instructions) > len(body.parameters) + 1:
                    warn_unmodelled("memory of the computation's own counts as none", f"instruction {instruction.name}")
            for text in _unmodelled(instruction, operands, timed, spaces):
                warn_unmodelled(text, f"instruction {instruction.name}")


def _unmodelled(instruction: Instruction, operands: _Arrays, timed: bool, spaces: frozenset[int]) -> Iterator[str]:
    """Yields a text for each part of an instruction that is not modelled."""
    opcode, target = instruction.opcode, custom_target(instruction)
    # A search for names is fast, but also finds names inside of strings. Attributes are therefore parsed only if it finds an
    # unknown name.
    if not ATTRIBUTES.issuperset(_NAMES.findall(instruction.attributes_text)):
        for name in sorted({*instruction.attributes} - ATTRIBUTES):
            yield f"the attribute {excerpt(name)} {_UNKNOWN_ATTRIBUTE}"
    results = [leaf for _, leaf in instruction.shape.leaves]
    if target is not None and CUSTOM_CALLS.get(target) != "":
        yield f"custom call of {excerpt(target)}: {CUSTOM_CALLS.get(target, _UNKNOWN_CALL)}"
    for leaf in results:
        if leaf.memory_space not in spaces:
            yield f"memory space S({leaf.memory_space}) counts as the device's"
    thread = instruction.attribute("async_execution_thread") or '"main"'
    if thread != '"main"' or '_xla_compute_type="host"' in instruction.attributes_text:
        yield f"it runs beside the device's own thread, on {excerpt(thread)}: its time counts, memory of its own does not"
    text = UNMODELLED_TIMES.get(opcode)
    if text is None and opcode not in NAMING and any(leaf.memory_space == HOST for leaf in (*results, *operands)):
        text = UNMODELLED_TIMES["infeed"]
    if timed and text:
        yield f"{opcode} {text}"


def _check_elements(instruction: Instruction, operands: _Arrays) -> None:
    """Raises InputError if a result has another number of elements than its operands and attributes imply."""
    rule = _ELEMENTS.get(instruction.opcode)
    if rule is not None and operands:
        for number, (_, result) in enumerate(instruction.shape.leaves[: 1 if instruction.opcode == "copy-start" else None]):
            try:
                expected = rule(instruction, result, operands[number:])
            except (IndexError, ValueError):
                raise instruction.error("found operands or attributes that do not fit, by number or by rank") from None
            if expected != result.elements:
                raise instruction.error(f"found a result of {result.elements} elements, expected {expected} of its operands")


def _elementwise(at: Instruction, out: ArrayShape, arrays: _Arrays) -> int:
    """The number of elements of the operands. Each operand must have as many as the result; only bounds of a clamp and
    predicates of a select may be scalars."""
    counts = {one.elements for one in arrays if one.dims or at.opcode not in ("clamp", "select")} - {out.elements}
    return min(counts, default=out.elements)


def _bitcast(at: Instruction, out: ArrayShape, arrays: _Arrays) -> int:
    """The number of bits of the operand, divided by the bits of an element of the result.

    If both have the same number of stored bytes, any number of elements is right, because a bitcast may turn the padding of
    tiles into elements.
    """
    bits = arrays[0].elements * BITS[arrays[0].dtype]
    return out.elements if arrays[0].bytes == out.bytes else bits // max(1, BITS[out.dtype])


def _broadcast(at: Instruction, out: ArrayShape, arrays: _Arrays) -> int:
    """The number of elements of the result if the attribute ``dimensions`` maps the operand's dimensions to equal ones of the
    result, because a broadcast may add any others. Otherwise that of the operand, which then differs."""
    into = tuple(out.dims[dim] for dim in numbers(at, "dimensions", below=len(out.dims)))
    return out.elements if into == arrays[0].dims else arrays[0].elements


def _without(one: ArrayShape, removed: Sequence[int]) -> int:
    """The number of elements of an array without the dimensions ``removed``."""
    return prod(size for dim, size in enumerate(one.dims) if dim not in removed)


def _dot(at: Instruction, out: ArrayShape, arrays: _Arrays) -> int:
    """The number of elements of a product: all dimensions of both operands without contracted ones, and batches once."""
    names = ("lhs_contracting_dims", "rhs_contracting_dims", "rhs_batch_dims")
    left, right, batch = (numbers(at, name, needed=False) for name in names)
    return _without(arrays[0], left) * _without(arrays[1], right + batch)


def _convolution(at: Instruction, out: ArrayShape, arrays: _Arrays) -> int:
    """The number of elements that the result has if its features are the output features of the kernel. Batch and window are
    not checked."""
    _, kernel, labels = convolution_labels(at, len(arrays[0].dims), len(arrays[1].dims), len(out.dims))
    return _without(out, [labels.index("f")]) * arrays[1].dims[kernel.index("o")]


def _slice(at: Instruction, out: ArrayShape, arrays: _Arrays) -> int:
    """The number of elements in the ranges of a slice."""
    parts = zip(arrays[0].dims, ranges(at, len(arrays[0].dims)), strict=True)
    return prod(-(-(min(end, size) - start) // step) for size, (start, end, step) in parts)


def _pad(at: Instruction, out: ArrayShape, arrays: _Arrays) -> int:
    """The number of elements of the operand and of its padding."""
    sides = zip(arrays[0].dims, padding(at, len(arrays[0].dims)), strict=True)
    return prod(low + size + max(size - 1, 0) * interior + high for size, (low, high, interior) in sides)


#: Functions that compute the number of elements of a result, from the instruction, the declared shape of the result, and the
#: operands.
_ELEMENTS: dict[str, Callable[[Instruction, ArrayShape, _Arrays], int]] = {
    **dict.fromkeys(SAME_NUMBER, lambda at, out, arrays: arrays[0].elements),
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("bitcast", "bitcast-convert"), _bitcast),
    "broadcast": _broadcast,
    "concatenate": lambda at, out, arrays: sum(one.elements for one in arrays),
    "dynamic-slice": lambda at, out, arrays: prod(map(min, zip(arrays[0].dims, out.dims, strict=True))),
    "reduce": lambda at, out, arrays: _without(arrays[0], numbers(at, "dimensions", below=len(arrays[0].dims))),
    "gather": lambda at, out, arrays: _without(arrays[1], numbers(at, "index_vector_dim")) * prod(numbers(at, "slice_sizes")),
    "slice": _slice,
    "pad": _pad,
    "dot": _dot,
    "convolution": _convolution,
}
