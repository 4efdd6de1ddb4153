"""A bank mapping for people to read: bytes moved beside other plans, and every tensor's layout, place and copies."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.report.bank_mapping.mapping import bytes_on_chip, copied_bytes, totals
from stowplan.report.units import format_bytes, shorten


def summarize_mapping(problem: Problem, plan: Plan, others: Sequence[tuple[str, Plan]] = (), top: int | None = 40) -> str:
    """A bank mapping for people to read: totals beside those of other plans, copies, and tensors, the largest first.

    Parameters
    ----------
    top
        Copies and tensors listed at most, of each; None for all.
    """
    space = bytes_on_chip(problem, plan).sum(axis=0).max(initial=0)
    stay = sum(plan.on_chip)
    lines = [
        f"{problem.name} on {problem.target} ({problem.banks} banks): {len(problem.operators)} operators, "
        f"{len(problem.tensors)} tensors, {stay} on chip",
        f"  scratchpad {format_bytes(int(space))} of {format_bytes(problem.capacity)} at the peak",
        f"  {'':<14}{'copied between banks':>22}{'moved off chip':>18}{'together':>14}",
    ]
    for name, copied, outside, together in totals(problem, [("this plan", plan), *others]):
        between = format_bytes(copied)
        lines.append(f"  {shorten(name, 13):<14}{between:>22}{format_bytes(outside):>18}{together:>14}")
    lines += _copy_lines(problem, plan, top)
    return "\n".join(lines + _tensor_lines(problem, plan, top))


def _copy_lines(problem: Problem, plan: Plan, top: int | None) -> list[str]:
    if not plan.copies:
        return ["  no copies between banks"]

    def size(copy: BankCopy) -> int:
        return problem.tensors[copy.tensor].layout_bytes(copy.layout)

    shown = sorted(plan.copies, key=lambda copy: (-size(copy), copy.before, copy.tensor))[:top]
    lines = [f"  {'copy of':<28}  {'from':<13} {'to':<28} {'before':<28} {'size':>10}"]
    for copy in shown:
        tensor = problem.tensors[copy.tensor]
        lines.append(
            f"  {shorten(tensor.name, 28):<28}  {tensor.layout_name(plan.layouts[copy.tensor]):<13} "
            f"{shorten(tensor.layout_name(copy.layout), 28):<28} "
            f"{shorten(problem.operators[copy.before].name, 28):<28} {format_bytes(size(copy)):>10}"
        )
    return lines + _rest(len(plan.copies) - len(shown), "copies")


def _tensor_lines(problem: Problem, plan: Plan, top: int | None) -> list[str]:
    copied = copied_bytes(problem, plan)
    order = sorted(range(len(problem.tensors)), key=lambda tensor: (-problem.tensors[tensor].bytes, tensor))[:top]
    lines = [f"  {'tensor':<28} {'size':>10}  {'spread along':<13} {'place':<9} {'copies':>10}"]
    for number in order:
        tensor = problem.tensors[number]
        lines.append(
            f"  {shorten(tensor.name, 28):<28} {format_bytes(tensor.bytes):>10}  "
            f"{tensor.layout_name(plan.layouts[number]):<13} {'on chip' if plan.on_chip[number] else 'off chip':<9} "
            f"{format_bytes(copied[number]) if copied[number] else '-':>10}"
        )
    return lines + _rest(len(problem.tensors) - len(order), "tensors")


def _rest(count: int, what: str) -> list[str]:
    return [f"  ... and {count} more {what}"] if count else []
