"""Collectives of a compiled module, for which XLA estimates no cycles: bytes over the links between chips.

On one host the devices of a group are taken as a ring. Every device sends and receives both ways at once, but for a permutation
or a group of two, which use one link each way. What other instructions take while an asynchronous collective is under way is
not waited for. Latencies, synchronisation, and links that several collectives share at once are not counted.
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

#: How often the larger of operand and result goes once around the ring.
_ROUNDS = {"all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "collective-permute": 1, "all-reduce": 2}

#: Sizes of groups as HLO writes them: ``{{0,1},{2,3}}``, ``[2,2]<=[4]``, or axes of a mesh, ``mesh['a'=2,'b'=2] {'a'}``.
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{(?P<ids>[\d,]*)\}|\[\d+,(?P<size>\d+)\]|mesh\[(?P<mesh>[^\]]*)\]\s*\{(?P<axes>[^}]*)\})"
)


def collective_cycles(module: HloModule, target: Target) -> dict[str, int]:
    """Cycles that one run of each collective makes its device wait, by the instruction's name; a start has those of its pair.

    Collectives stand alone, in fusions, and in what is called asynchronously.
    """
    bandwidth, cycles = xla_chip(target).link_bandwidth, dict[str, int]()
    if bandwidth is None or module.attributes.get("num_partitions", "1") == "1":
        return cycles
    for name, placed in placed_instructions(module).items():
        collective = _collective(placed.instruction, module)
        if collective is not None:
            moved = duration_ps(_moved(placed, collective, module), bandwidth)
            cycles[name] = max(0, round(moved / target.cycles_ps(1_000_000) * 1_000_000) - _hidden(placed))
    return cycles


def _collective(instruction: Instruction, module: HloModule) -> Instruction | None:
    if instruction.opcode.removesuffix("-start") in _ROUNDS:
        return instruction
    if instruction.opcode in IN_LINE:
        return None
    inner = (part for name in instruction.called for part in module.computations[name].instructions)
    return next((collective for part in inner if (collective := _collective(part, module)) is not None), None)


def _moved(placed: Placed, collective: Instruction, module: HloModule) -> int:
    """Bytes that one link of a device carries one way."""
    kind, shape = collective.opcode.removesuffix("-start"), placed.instruction.shape
    if placed.instruction.opcode.endswith("-start") and isinstance(shape, TupleShape) and len(shape.parts) > 1:
        shape = shape.parts[1]
    given = sum(leaf.bytes for leaf in placed.operand_shapes())
    made = sum(leaf.bytes for _, leaf in shape.leaves)
    if kind == "collective-permute":
        return given
    # A reduction that keeps a part alone is fused with what takes that part.
    rounds = 1 if 2 * made <= given else _ROUNDS[kind]
    size = _group_size(collective, module)
    return rounds * max(given, made) * (size - 1) // (size * min(2, size - 1)) if size > 1 else 0


def _group_size(collective: Instruction, module: HloModule) -> int:
    match = _GROUPS.search(collective.attributes_text)
    if match is None:
        return int(module.attributes["num_partitions"])
    if match["axes"] is not None:
        sizes = dict(re.findall(r"'([^']*)'=(\d+)", match["mesh"]))
        return math.prod(int(sizes.get(name, 1)) for name in re.findall(r"'([^']*)'", match["axes"]))
    return int(match["size"] or match["ids"].count(",") + 1)


def _hidden(placed: Placed) -> int:
    """Cycles of what stands between an asynchronous start and its done."""
    start, following = placed.instruction, placed.computation.instructions
    if not start.opcode.endswith("-start"):
        return 0
    beside = takewhile(
        lambda later: not (later.opcode.endswith("-done") and start.name in later.operands),
        following[following.index(start) + 1 :],
    )
    return sum(estimated_cycles(later) or 0 for later in beside)
