"""A banked packing for people to read."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.report.banked_packing.scene import bank_scenes
from stowplan.report.units import format_bytes, printable, shorten

#: Letters of a name.
_NAME = 32


def bank_rows(problem: Problem, plan: Plan) -> list[tuple[str, str, str, str, str, str]]:
    """Name, cost, bytes used, capacity, number of buffers and share of the traffic of each bank."""
    traffic = [0] * len(problem.banks)
    for number, bank in enumerate(plan.banks):
        traffic[bank] += problem.traffic(number)
    total = sum(traffic)
    return [
        (
            printable(memory.name),
            f"{memory.cost:,}",
            f"{scene.height:,}",
            f"{memory.capacity:,}",
            f"{plan.banks.count(bank):,}",
            f"{traffic[bank] / total:.1%}" if total else "0.0%",
        )
        for bank, (memory, scene) in enumerate(zip(problem.banks, bank_scenes(problem, plan), strict=True))
    ]


def cost_of(problem: Problem, plan: Plan) -> int:
    """Bytes read and written, each times the cost of its bank."""
    return sum(problem.traffic(number) * problem.banks[bank].cost for number, bank in enumerate(plan.banks))


def summarize(problem: Problem, plan: Plan, others: Sequence[tuple[str, Plan]] = (), top: int | None = 40) -> str:
    """Cost and banks; costs of other plans; then the buffers, by bank and offset, ``top`` of them at most."""
    lines = [f"{printable(problem.name or 'buffers')}: {len(problem.buffers):,} buffers, cost {cost_of(problem, plan):,}"]
    lines += [f"  {shorten(printable(name), 12):<12}  cost {cost_of(problem, other):,}" for name, other in others]
    rows = [("bank", "cost", "used", "capacity", "buffers", "traffic"), *bank_rows(problem, plan)]
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    lines += ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    order = sorted(range(len(problem.buffers)), key=lambda number: (plan.banks[number], plan.offsets[number], number))
    listed = [("bank", "offset", "size", "uses", "time", "buffer")]
    for number in order[:top]:
        buffer = problem.buffers[number]
        bank = shorten(printable(problem.banks[plan.banks[number]].name), _NAME)
        life = f"[{buffer.lower}, {buffer.upper})"
        name = shorten(printable(buffer.id), _NAME)
        listed.append((bank, f"{plan.offsets[number]:,}", format_bytes(buffer.size), f"{buffer.uses:,}", life, name))
    widths = [max(len(row[at]) for row in listed) for at in range(5)]
    lines += ["  " + "  ".join([*(row[at].rjust(widths[at]) for at in range(5)), row[5]]) for row in listed]
    rest = len(order) - len(listed) + 1
    return "\n".join([*lines, f"  … and {rest:,} more"] if rest else lines)
