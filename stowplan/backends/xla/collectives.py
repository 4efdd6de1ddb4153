"""Estimates cycles of collective operations, for which XLA has no estimate, from the bandwidth of the links between chips.

A collective, such as an all-reduce, combines or exchanges arrays of a *group* of devices.

The devices of a group are assumed to form a ring. Every device sends and receives in both directions at once, except in a
permutation or in a group of two, which use one link in each direction. Instructions that run between the start and the end of
an asynchronous collective hide a part of its time. Latencies, synchronization, and links that several collectives share are not
modelled.
"""

from __future__ import annotations

import math
import re
from itertools import takewhile

from stowplan.frontends.hlo import HloModule, Instruction
from stowplan.frontends.hlo.module import estimated_cycles
from stowplan.frontends.hlo.placed import Placed, placed_instructions
from stowplan.frontends.hlo.shape import TupleShape
from stowplan.frontends.hlo.walk import IN_LINE
from stowplan.hardware.targets import Target, xla_chip
from stowplan.hardware.targets.toml_files import duration_ps

#: From a collective to the number of times that its data travels around the ring; its data is the larger of operand and result.
_RING_ROUNDS = {"all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "collective-permute": 1, "all-reduce": 2}

#: Sizes of groups as HLO writes them: ``{{0,1},{2,3}}``, ``[2,2]<=[4]``, or axes of a mesh, ``mesh['a'=2,'b'=2] {'a'}``.
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{(?P<ids>[\d,]*)\}|\[\d+,(?P<size>\d+)\]|mesh\[(?P<mesh>[^\]]*)\]\s*\{(?P<axes>[^}]*)\})"
)


def collective_cycles(module: HloModule, target: Target) -> dict[str, int]:
    """Returns the cycles for which a device waits in one run of an instruction with a collective, by the instruction's name.

    The instruction is a collective, or contains one, as a fusion or an asynchronous call may do. The cycles of an asynchronous
    collective belong to its start instruction. The result is empty if the bandwidth of the target's links is not known, or if
    the module is for one device. Raises UsageError if XLA does not compile for the target.
    """
    bandwidth, cycles = xla_chip(target).link_bandwidth, dict[str, int]()
    if bandwidth is None or module.attributes.get("num_partitions", "1") == "1":
        return cycles
    for name, placed in placed_instructions(module).items():
        collective = _collective(placed.instruction, module)
        if collective is not None:
            transfer_ps = duration_ps(_bytes_moved(placed, collective, module), bandwidth)
            cycles[name] = max(0, round(transfer_ps / target.cycles_ps(1_000_000) * 1_000_000) - _hidden_cycles(placed))
    return cycles


def _collective(instruction: Instruction, module: HloModule) -> Instruction | None:
    """Returns the collective that an instruction is or contains; None if there is none."""
    if instruction.opcode.removesuffix("-start") in _RING_ROUNDS:
        return instruction
    if instruction.opcode in IN_LINE:
        return None
    inner = (part for name in instruction.called for part in module.computations[name].instructions)
    return next((collective for part in inner if (collective := _collective(part, module)) is not None), None)


def _bytes_moved(placed: Placed, collective: Instruction, module: HloModule) -> int:
    """Returns the bytes that one link of a device carries in one direction."""
    kind, shape = collective.opcode.removesuffix("-start"), placed.instruction.shape
    if placed.instruction.opcode.endswith("-start") and isinstance(shape, TupleShape) and len(shape.parts) > 1:
        shape = shape.parts[1]
    operand_bytes = sum(leaf.bytes for leaf in placed.operand_shapes())
    result_bytes = sum(leaf.bytes for _, leaf in shape.leaves)
    if kind == "collective-permute":
        return operand_bytes
    # An all-reduce whose result is at most half as large is fused with a slice, and works like a reduce-scatter.
    rounds = 1 if 2 * result_bytes <= operand_bytes else _RING_ROUNDS[kind]
    size = _group_size(collective, module)
    return rounds * max(operand_bytes, result_bytes) * (size - 1) // (size * min(2, size - 1)) if size > 1 else 0


def _group_size(collective: Instruction, module: HloModule) -> int:
    """Returns how many devices take part in a collective."""
    match = _GROUPS.search(collective.attributes_text)
    if match is None:
        return int(module.attributes["num_partitions"])
    if match["axes"] is not None:
        sizes = dict(re.findall(r"'([^']*)'=(\d+)", match["mesh"]))
        return math.prod(int(sizes.get(name, 1)) for name in re.findall(r"'([^']*)'", match["axes"]))
    return int(match["size"] or match["ids"].count(",") + 1)


def _hidden_cycles(placed: Placed) -> int:
    """Returns the cycles of the instructions between the start and the end of an asynchronous collective."""
    start, following = placed.instruction, placed.computation.instructions
    if not start.opcode.endswith("-start"):
        return 0
    overlapping = takewhile(
        lambda later: not (later.opcode.endswith("-done") and start.name in later.operands),
        following[following.index(start) + 1 :],
    )
    return sum(estimated_cycles(later) or 0 for later in overlapping)
