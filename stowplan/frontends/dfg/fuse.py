"""Multiplication and addition in one instruction: (in1 x in2) + in3."""

from __future__ import annotations

from collections import Counter

from stowplan.frontends.dfg.graph import Dfg
from stowplan.models.modulo_scheduling.problem import Instruction, Operand


def fuse_multiply_add(graph: Dfg) -> Dfg:
    """Fuse each addition of two operands with a multiplication of two, of this iteration, that nothing else reads.

    Of two that could be fused, the one that ends the shorter chain is left as it is: it is the addition's third operand, and
    ready sooner.
    """
    readers = Counter(operand.instruction for each in graph.instructions for operand in each.operands)
    by_id = {each.id: each for each in graph.instructions}
    depth: dict[str, int] = {}

    def fusable(operand: Operand) -> bool:
        source = by_id.get(operand.instruction or "")
        if source is None or operand.distance or readers[source.id] != 1:
            return False
        return source.op == "mul" and len(source.operands) == 2 and not source.writes

    def chain(name: str) -> int:
        """Instructions before and with this one, along edges of this iteration."""
        stack = [name]
        while stack:
            top = stack[-1]
            needs = [o.instruction for o in by_id[top].operands if o.instruction is not None and o.distance == 0]
            open_needs = [need for need in needs if need not in depth and need not in stack]
            if open_needs:
                stack.append(open_needs[0])
                continue
            depth[top] = 1 + max((depth.get(need, 0) for need in needs), default=0)
            stack.pop()
        return depth[name]

    gone: set[str] = set()
    fused: dict[str, Instruction] = {}
    for each in graph.instructions:
        if each.op != "add" or len(each.operands) != 2:
            continue
        choices = [place for place, operand in enumerate(each.operands) if fusable(operand)]
        if not choices:
            continue
        place = max(choices, key=lambda at: chain(each.operands[at].instruction or ""))
        product = by_id[each.operands[place].instruction or ""]
        gone.add(product.id)
        fused[each.id] = Instruction(
            id=each.id, op="madd", operands=(*product.operands, each.operands[1 - place]), writes=each.writes
        )
    kept = tuple(fused.get(each.id, each) for each in graph.instructions if each.id not in gone)
    return Dfg(graph.name, kept, graph.variables)
