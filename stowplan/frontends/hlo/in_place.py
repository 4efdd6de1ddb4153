"""Finds results of an instruction that may be written over one of its operands, if the operand is not needed afterwards.

Such a result is possible if the instruction reads the operand only at the position that it writes: in whatever order the
elements are computed, each is read before it is overwritten. The rules are those of XLA's buffer assignment
(``HloDataflowAnalysis::CanShareOperandBufferWithUser``) for loop and input fusions, output fusions that add to a product,
element-wise instructions, sorts and updates. Bitcasts inside of fusions are allowed, as on GPUs. A *leaf* is an array in the
value of an instruction, which may be a tuple.
"""

from __future__ import annotations

from typing import NamedTuple

from stowplan.deadline import check_reading
from stowplan.frontends.hlo.access import fused_access, instruction_access
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.opcodes import ELEMENTWISE
from stowplan.frontends.hlo.shape import BITS, ArrayShape, Shape

#: Opcodes whose result at an index depends on their operands only at the same index.
_POINTWISE = ELEMENTWISE | {"copy", "map"}
#: Opcodes of products, to which an output fusion may add an operand.
_PRODUCTS = {"dot", "convolution"}


class Group(NamedTuple):
    """Leaves of operands and of the result; any leaf of the result may be written over any one leaf of an operand."""

    operands: list[tuple[int, int]]
    """Pairs of an operand's number and the number of its leaf."""
    results: list[int]
    """Numbers of leaves of the result."""


class InPlaceRules:
    """The rules for one module.

    For each computation, by its name, :attr:`pointwise` has the numbers of those parameters that it reads only at the position
    that it writes: all paths from them to the root are element-wise instructions, bitcasts, and updated operands of
    ``dynamic-update-slice``.

    Raises
    ------
    InputError
        The operands of a fusion do not fit its computation, or an alias names a leaf that does not exist.
    TimeLimitError
        The time limit for reading inputs is over.
    """

    def __init__(self, module: HloModule):
        self._module, self._access = module, fused_access(module)
        self.pointwise: dict[str, frozenset[int]] = {}
        for computation in module.computations.values():
            check_reading()
            # Whether the computation reads the value of an instruction only at the position that it writes.
            keeps = {instruction.name: True for instruction in computation.instructions}
            has_several = computation.root.opcode == "tuple"
            # Users come after their operands, so the walk in reverse visits all users of an instruction before it.
            for user in reversed(computation.instructions):
                if user is computation.root and has_several:
                    continue
                # Several results are computed index by index, so a bitcast, which may change an element's index, is not
                # allowed.
                keeps[user.name] &= not (user.opcode == "bitcast" and has_several)
                for position, name in enumerate(user.operands):
                    keeps[name] &= keeps[user.name] and self._keeps_position(user, position, computation.by_name[name].shape)
            parameters = enumerate(computation.parameters)
            self.pointwise[computation.name] = frozenset(number for number, each in parameters if keeps[each.name])

    def groups(self, instruction: Instruction, computation: Computation) -> list[Group]:
        """The groups of an instruction, which is in ``computation``; none if no result may be written over an operand.

        Raises
        ------
        InputError
            The operands of a fusion do not fit its computation, or an alias names a leaf that does not exist.
        """
        pairs = instruction_access(instruction, computation, self._access).in_place
        groups = [Group([pair[1:3]], [pair.output_leaf]) for pair in pairs if not pair.reads_elsewhere]
        alike: dict[object, Group] = {}
        by_index = len(instruction.shape.leaves) > 1
        for leaf, (_, result) in enumerate(instruction.shape.leaves):
            alike.setdefault(_layout(result, by_index=by_index), Group([], [])).results.append(leaf)
        for position, name in enumerate(instruction.operands):
            source = computation.by_name[name].shape
            if not isinstance(source, ArrayShape) or _layout(source, by_index=by_index) not in alike:
                continue
            group = alike[_layout(source, by_index=by_index)]
            if instruction.opcode == "sort" and position in group.results:
                groups.append(Group([(position, 0)], [position]))
            elif self._may_be_overwritten(instruction, position, source):
                group.operands.append((position, 0))
        return groups + [group for group in alike.values() if group.operands]

    def _may_be_overwritten(self, instruction: Instruction, position: int, source: ArrayShape) -> bool:
        """Whether a result with the layout of an operand may be written over it."""
        if instruction.opcode != "fusion":
            return self._keeps_position(instruction, position, source)
        fused, kind = self._module.computations[instruction.called[0]], instruction.attribute("kind")
        is_sum = fused.root.opcode == "add" and {fused.by_name[name].opcode for name in fused.root.operands} & _PRODUCTS
        return position in self.pointwise[fused.name] and (kind in ("kLoop", "kInput") or (kind == "kOutput" and bool(is_sum)))

    def _keeps_position(self, user: Instruction, position: int, source: Shape) -> bool:
        """Whether an instruction's result at a position depends only on the same position of an operand."""
        result = user.shape
        if not (isinstance(source, ArrayShape) and isinstance(result, ArrayShape)):
            return False
        if user.opcode == "fusion":
            return position in self.pointwise[user.called[0]] and _layout(source) == _layout(result)
        if user.opcode == "bitcast":
            return not (source.tiles or result.tiles) and BITS[source.dtype] == BITS[result.dtype]
        is_pointwise = user.opcode in _POINTWISE or (user.opcode == "dynamic-update-slice" and position == 0)
        return is_pointwise and (source.dims, source.minor_to_major) == (result.dims, result.minor_to_major)


def _layout(shape: ArrayShape, *, by_index: bool = False) -> object:
    """A key that is equal for two arrays if the elements of one can be written over those of the other.

    Both then have the same size, bits of an element and memory. With ``by_index``, elements with the same index are also at the
    same address. Otherwise, the n-th elements in memory are at the same address, but may have different indices.
    """
    order = (shape.dims, shape.minor_to_major, shape.tiles) if shape.tiles or by_index else None
    return shape.bytes, BITS[shape.dtype], shape.memory_space, order
