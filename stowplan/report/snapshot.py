"""Shows the findings about a memory snapshot of PyTorch, such as fragmentation, as lines of text and as a section of the
report.

The facts are those of :meth:`stowplan.frontends.snapshot.findings.Findings.details`. A *segment* is a range of bytes that
PyTorch's allocator has reserved, and a *hole* is a range of free bytes in one. A *stream* is a queue of work on the device,
which has segments of its own. A *stack* is the call stack at which memory was allocated. Nothing in this module raises an error
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stowplan.report.page import Section, facts_list, table
from stowplan.report.text import format_bytes, printable

#: Number of holes and of allocations in the text.
LINES = 5

Facts = Mapping[str, Any]

#: Keys of the allocations around a hole, and of the last one that was in it.
_ENDS = ("below", "above", "last")


def rows(facts: Facts) -> list[tuple[str, str]]:
    """The figures, as pairs of name and value; the name is empty if a value continues the line before it."""
    peaks, then, free = facts["peaks"], facts["then"], facts["free"]
    reserved, grown = peaks["reserved"], facts["grown_for"]
    where = "from the begin" if grown is None else f"first for {_exact(grown['bytes'])} of {printable(grown['buffer'])}"
    figures = [
        ("reserved", f"{_exact(reserved)} at most, {where}"),
        ("", f"there {_exact(then['allocated'])} allocated, {format_bytes(free['bytes'])} free in {free['holes']:,} holes"),
        ("allocated", f"{_exact(peaks['allocated'])} at most; {_exact(peaks['requested'])} asked for at most"),
    ]
    if peaks["active"] != peaks["allocated"]:
        figures.append(("pending", f"{_exact(peaks['active'])} at most with frees that wait for a stream"))
    if facts["arena"] is not None:
        is_proven = facts["arena"] == facts["arena_bound"]
        least = "proven" if is_proven else f"none is below {_exact(facts['arena_bound'])}"
        figures.append(("arena", f"{_exact(facts['arena'])} ({least})"))
        lost, most = facts["fragmentation"], facts["fragmentation_at_most"]
        more = "" if lost == most else f", at most {_exact(most)}"
        figures.append(("fragmented", f"{_exact(lost)}{more}: {_percentage(lost, reserved)} of what is reserved"))
    figures.append(("rounding", f"{_exact(facts['rounding'])} of the blocks in use when most is reserved"))
    if facts["streams"] > 1:
        apart = f"{_exact(facts['streams_apart_bound'])} at least if none of the {facts['streams']} streams uses another's"
        figures.append(("streams", apart))
    figures += [
        (
            "no memory",
            f"event {event['event']:,} asked for {_exact(event['asked'])}, with {format_bytes(event['reserved'])} reserved and "
            f"{format_bytes(event['allocated'])} allocated",
        )
        for event in facts["out_of_memory"]
    ]
    return figures


def lines(facts: Facts) -> list[str]:
    """The figures, the largest holes with the allocations around them, and the largest allocations with their stacks."""
    shown = [f"  {name:<10} {value}" for name, value in rows(facts)]
    shown += [
        f"  {'hole':<10} {_exact(hole['bytes'])} of {format_bytes(hole['segment'])}, {_between(hole)}"
        for hole in facts["holes"][:LINES]
    ]
    return shown + [
        f"  {'largest':<10} {_exact(allocation['bytes'])}, {_named(allocation)}" for allocation in facts["largest"][:LINES]
    ]


def section(facts: Facts) -> Section:
    """The facts as a section of the report."""
    holes = [
        (f"{hole['bytes']:,}", f"{hole['segment']:,}", str(hole["stream"]), *(_stack(hole[end]) for end in _ENDS))
        for hole in facts["holes"]
    ]
    largest = [(allocation["buffer"], f"{allocation['bytes']:,}", _stack(allocation)) for allocation in facts["largest"]]
    body = facts_list((name or "then", value) for name, value in rows(facts))
    if holes:
        head = ("Free bytes:r", "Segment:r", "Stream:r", "Below it:o", "Above it:o", "Last in it:o")
        body += table("The largest holes at the peak of reserved memory", head, holes)
    if largest:
        body += table("The largest allocations at that peak", ("Allocation:n", "Bytes:r", "Stack:o"), largest)
    return Section("Memory snapshot", body)


def _exact(size: int) -> str:
    return f"{size:,} bytes" + (f" ({format_bytes(size)})" if abs(size) >= 1 << 20 else "")


def _percentage(part: int, total: int) -> str:
    return f"{part / total:.1%}" if total else "0.0%"


def _between(hole: Facts) -> str:
    """Where a hole is, relative to the allocations around it."""
    below, above = (None if end is None else printable(end["buffer"]) for end in (hole["below"], hole["above"]))
    if below is not None and above is not None:
        return f"between {below} and {above}"
    end = "all of it" if below is above else f"below {above}" if below is None else f"above {below}"
    return end if hole["last"] is None else f"{end}; last there {printable(hole['last']['buffer'])}"


def _named(allocation: Facts) -> str:
    """The allocation's line in the user's program, and the innermost line in a library."""
    inner = "".join(allocation["stack"][:1])
    return printable(allocation["buffer"]) + (f", in {printable(inner)}" if inner not in allocation["buffer"] else "")


def _stack(allocation: Facts | None) -> str:
    """The call stack of an allocation in one line."""
    return "–" if allocation is None else " < ".join(allocation["stack"]) or allocation["buffer"]
