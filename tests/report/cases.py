"""A network's training step in miniature, with a plan that packs it greedily: something to draw."""

from __future__ import annotations

import random

import msgspec

from stowplan.hardware.simulator import simulate
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Loop, Piece, Problem, Step, Tensor, Use

MIB = 1 << 20


def training_step(layers: int = 10, seed: int = 0, capacity_mib: int = 24, bandwidth: int = 600) -> Problem:
    """Forward and backward over ``layers`` layers: weights, activations read twice, gradients. Costs are a roofline.

    ``bandwidth`` is that of slow memory in bytes a nanosecond; fast memory has eight times as much.
    """
    random_source = random.Random(seed)
    tensors: list[Tensor] = []
    steps: list[Step] = []

    def tensor(name: str, mib: float, **kind: bool) -> int:
        size = int(mib * MIB) // 512 * 512
        demand = size * 1000 // bandwidth
        tensors.append(Tensor(name=name, size=size, copy_in_ps=demand, copy_out_ps=demand, **kind))
        return len(tensors) - 1

    def step(name: str, opcode: str, reads: list[int], writes: list[int]) -> None:
        uses = tuple(Use(t, out, tensors[t].size) for part, out in ((reads, False), (writes, True)) for t in part)
        slow = tuple(use.bytes * 1000 // bandwidth for use in uses)
        fast = tuple(use.bytes * 125 // bandwidth for use in uses)
        compute = Piece(int(sum(slow) * random_source.choice([0.2, 0.3, 0.5, 1.2])), (0,) * len(uses), (0,) * len(uses))
        steps.append(Step(name, opcode, 1, uses, (compute, Piece(1000, slow, fast))))

    size = lambda low, high: round(random_source.uniform(low, high), 2)  # noqa: E731
    weights = [tensor(f"weights.{layer}", size(0.5, 4), is_input=True, is_output=True) for layer in range(layers)]
    activations = [tensor("images", size(1, 3), is_input=True)]
    for layer in range(layers):
        activations.append(tensor(f"activation.{layer}", size(1, 5)))
        step(f"convolution.{layer}", "convolution", [activations[-2], weights[layer]], [activations[-1]])
    gradient = activations[-1]
    for layer in reversed(range(layers)):
        update, before = tensor(f"update.{layer}", tensors[weights[layer]].size / MIB), gradient
        step(f"weight_gradient.{layer}", "convolution", [activations[layer], before], [update])
        gradient = tensor(f"gradient.{layer}", size(1, 5))
        step(f"input_gradient.{layer}", "convolution", [before, weights[layer]], [gradient])
        step(f"apply.{layer}", "fusion", [update, weights[layer]], [weights[layer]])
    return Problem(
        name=f"train_{layers}_layers",
        target="two-level-test",
        cost_model="roofline",
        capacity=capacity_mib * MIB,
        alignment=512,
        steps=tuple(steps),
        tensors=tuple(tensors),
        loops=(Loop(0, 1, 1),),
    )


def packed_plan(problem: Problem, lead: int = 2, longest: int = 8) -> Plan:
    """First-fit plan: a residency for every run of uses at most ``longest`` steps apart, copied in ``lead`` steps ahead.

    Written to be looked at: it may wait for copies, and nothing says that it is good.
    """
    uses: dict[int, list[tuple[int, int, bool]]] = {}
    number = 0
    for index, step in enumerate(problem.steps):
        for use in step.uses:
            uses.setdefault(use.tensor, []).append((index, number, use.is_output))
            number += 1
    wanted = []
    for tensor, places in uses.items():
        group = [places[0]]
        for place in [*places[1:], (1 << 40, 0, False)]:
            if place[0] - group[-1][0] > longest:
                wanted.append((tensor, group))
                group = []
            group.append(place)
    residencies: list[Residency] = []
    copies: list[Copy] = []
    fast: list[int] = []
    for tensor, group in sorted(wanted, key=lambda item: (item[1][0][0], item[0])):
        first, last = group[0][0], group[-1][0]
        reads_first = any(not out for at, _, out in group if at == first)
        start, end = (max(0, first - lead) if reads_first else first), last + 1
        written = any(out for _, _, out in group)
        stored = written and (problem.tensors[tensor].is_output or uses[tensor][-1][0] > last)
        end = min(problem.horizon, end + 1) if stored else end
        offset = _lowest_gap(problem, residencies, tensor, start, end)
        if offset is None or (stored and end == last + 1):
            continue
        residencies.append(Residency(tensor, start, end, offset))
        copies += [Copy(tensor, "in", start, first)] * reads_first + [Copy(tensor, "out", last + 1, end)] * stored
        fast += [use for _, use, _ in group]
    draft = Plan(
        problem=problem.digest,
        objective=0,
        residencies=tuple(residencies),
        copies=tuple(sorted(copies, key=lambda copy: copy.start)),
        fast_uses=tuple(sorted(fast)),
        program=problem.name,
        target=problem.target,
    )
    return msgspec.structs.replace(draft, objective=simulate(problem, draft).total_ps)


def _lowest_gap(problem: Problem, placed: list[Residency], tensor: int, start: int, end: int) -> int | None:
    size, at = problem.tensors[tensor].size, 0
    # The last 400 only, for speed: enough where residencies are short, as in the plans drawn here.
    for other in sorted((r for r in placed[-400:] if r.start < end and start < r.end), key=lambda r: r.offset):
        if other.offset - at >= size:
            break
        at = max(at, other.offset + problem.tensors[other.tensor].size)
    return at if at + size <= problem.capacity else None
