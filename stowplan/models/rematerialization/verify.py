"""The verifier of rematerialization: checks all rules of a plan and recomputes its added cost and its peak.

It is written from docs/reference/rematerialization.md alone, uses no solver, and shares no code with structure, bounds, models
or heuristics.

The *host* is a second memory. A *send* copies a value to it, a *wait* waits until that copy has ended, and a *fetch* copies the
value back (:class:`~.plan.Move`). A *step* of a plan is a run of an operator or one of these moves. A *reservation* is memory
that something outside the graph occupies (:class:`~.problem.Reservation`). To *replay* a plan is to go through its steps one
after the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from stowplan import verification
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem

#: The rules that a plan can break; docs/reference/rematerialization.md explains each of them.
Code = Literal[
    "wrong_problem",
    "unknown_operator",
    "never_runs",
    "runs_again",
    "too_early",
    "wrong_objective",
    "wrong_peak",
    "over_limit",
    "wrong_move",
    "not_on_host",
    "never_read",
    "over_host_limit",
]

Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


@dataclass
class _Instance:
    """An instance of a tensor: the bytes that one run of an operator, or one fetch, wrote; or the bytes of an input."""

    tensor: int
    """Number of the tensor."""
    begin: int
    """Step that wrote the instance; -1 for inputs."""
    last: int
    """Last step that needs the instance, as far as the replay has come; the number of steps if it stays to the end."""
    is_needed: bool
    """Whether any step needs the instance. Instances that an operator writes always count as needed."""
    arrives: int = 0
    """Time at which its fetch ends; 0 if it was not fetched."""
    copied: _Stay | None = None
    """The bytes on the host that it was fetched from, until the first step that needs the instance; then None."""


@dataclass
class _Stay:
    """The bytes of a tensor on the host after one send."""

    tensor: int
    """Number of the tensor."""
    begin: int
    """Step of the send."""
    arrives: int
    """Time at which the copy to the host ends."""
    sent: _Instance
    """The instance on the device that is copied."""
    end: int = -1
    """First step at which the bytes on the host are not needed any more, as far as the replay has come; -1 before the ``wait``
    for the copy."""


@dataclass(frozen=True)
class _Replay:
    """The result of stepping through a plan."""

    live: list[int]
    """[steps] live bytes on the device."""
    host: list[int]
    """[steps] bytes on the host."""
    end: int
    """Time at which the plan ends, in units of cost."""
    load: list[int]
    """[steps] live bytes plus the largest of the reservations in force."""


def verify(problem: Problem, plan: Plan) -> Verification:
    """Check a plan against all rules of rematerialization.

    The added cost and the peak that the plan states must equal the recomputed ones.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        For each rule the first place where it is broken, and the added cost as ``objective``, which is None if an operator is
        unknown. If the plan can be replayed, ``figures`` has the ``peak`` in bytes and, with a host, ``host_peak`` in bytes and
        ``stalls``, the cost of waiting for copies. The peak is also the ``tie_break``: of two plans with the same added cost,
        the one with the smaller peak is preferred.
    """
    violations = verification.of_problem(problem, plan)
    unknown = [(at, op) for at, op in enumerate(plan.sequence) if not 0 <= op < len(problem.ops)]
    if unknown:
        at, op = unknown[0]
        text = f"run {at} is of operator {op}, expected 0 to {len(problem.ops) - 1}"
        violations.append(Violation("unknown_operator", text))
        return Verification(tuple(violations), None)
    _check_counts(problem, plan, violations)
    once = sum(op.cost for op in problem.ops)
    running = sum(problem.ops[op].cost for op in plan.sequence)
    place = len(violations)
    _check_precedences(problem, plan, violations)
    replay = _replay(problem, plan, violations) if _moves_are_known(problem, plan, violations) else None
    cost = (running if replay is None else replay.end) - once
    if plan.objective != cost:
        text = f"the plan says an added cost of {plan.objective}, it is {cost}"
        violations.insert(place, Violation("wrong_objective", text))
    if replay is None:
        return Verification(tuple(violations), cost)
    peak = max(replay.load, default=0)
    if plan.peak != peak:
        violations.append(Violation("wrong_peak", f"the plan says a peak of {plan.peak} bytes, it is {peak}"))
    if problem.limit is not None:
        _check_limit(problem, plan, replay.load, problem.limit, "over_limit", violations)
    if problem.channel is None:
        return Verification(tuple(violations), cost, {"peak": peak}, tie_break=peak)
    _check_limit(problem, plan, replay.host, problem.channel.limit, "over_host_limit", violations)
    figures = {"peak": peak, "host_peak": max(replay.host, default=0), "stalls": replay.end - running}
    return Verification(tuple(violations), cost, figures, tie_break=peak)


def live_bytes(problem: Problem, plan: Plan) -> tuple[int, ...]:
    """[steps] bytes that are live at each run and move of a plan; empty if the plan cannot be replayed.

    A plan cannot be replayed if it has a wrong move, or if a step reads a value that does not exist. If the plan has a number
    of an operator that is too large, IndexError is raised.
    """
    replay = _replay(problem, plan, []) if _moves_are_known(problem, plan, []) else None
    return () if replay is None else tuple(replay.live)


def load_bytes(problem: Problem, plan: Plan) -> tuple[int, ...]:
    """[steps] live bytes plus the largest of the reservations in force; empty if the plan cannot be replayed.

    The limit of the problem applies to these numbers. If the plan has a number of an operator that is too large, IndexError is
    raised.
    """
    replay = _replay(problem, plan, []) if _moves_are_known(problem, plan, []) else None
    return () if replay is None else tuple(replay.load)


def _check_limit(
    problem: Problem, plan: Plan, occupied: list[int], limit: int, code: Code, violations: list[Violation]
) -> None:
    """Report the first step at which more bytes are occupied than the limit; ``occupied`` has the bytes of each step."""
    above = next((at for at, number in enumerate(occupied) if number > limit), None)
    if above is None:
        return
    actions = list(plan.steps())[: above + 1]
    what, number = actions[-1]
    run = sum(action == "run" for action, _ in actions) - 1
    place = f"run {run} ({problem.ops[number].id})" if what == "run" else f"the {what} of {problem.tensors[number].id}"
    state = "live or reserved" if problem.reservations else "live"
    where = state if code == "over_limit" else "on the host"
    violations.append(Violation(code, f"{occupied[above]} bytes are {where} at {place}, the limit is {limit}"))


def _moves_are_known(problem: Problem, plan: Plan, violations: list[Violation]) -> bool:
    """Whether all moves are well-formed; otherwise the first wrong one is reported.

    Moves need a host, tensors that have bytes of their own, and existing positions in ascending order.
    """
    least = 0
    for number, move in enumerate(plan.moves or ()):
        text = ""
        if problem.channel is None:
            text = f"move {number} has no channel to a host"
        elif not 0 <= move.tensor < len(problem.tensors):
            text = f"move {number} is of tensor {move.tensor}, expected 0 to {len(problem.tensors) - 1}"
        elif problem.tensors[move.tensor].alias_of is not None:
            text = f"move {number} is of {problem.tensors[move.tensor].id}, a view, expected a tensor with bytes of its own"
        elif not least <= move.before <= len(plan.sequence):
            text = f"move {number} is before run {move.before}, expected {least} to {len(plan.sequence)}"
        if text:
            violations.append(Violation("wrong_move", text))
            return False
        least = move.before
    return True


def _check_counts(problem: Problem, plan: Plan, violations: list[Violation]) -> None:
    """Check that every operator runs, and that operators marked ``once`` run once."""
    counts = Counter(plan.sequence)
    missing = [op.id for number, op in enumerate(problem.ops) if not counts[number]]
    if missing:
        violations.append(Violation("never_runs", f"operator {missing[0]} never runs"))
    seen: set[int] = set()
    for at, op in enumerate(plan.sequence):
        if op in seen and problem.ops[op].once:
            violations.append(Violation("runs_again", f"operator {problem.ops[op].id} runs again at run {at}, it may run once"))
            return
        seen.add(op)


def _check_precedences(problem: Problem, plan: Plan, violations: list[Violation]) -> None:
    """Check that all runs of the first operator of each precedence come before those of the second."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, op in enumerate(plan.sequence):
        first.setdefault(op, at)
        last[op] = at
    for one, other in problem.precedences:
        if one in last and other in first and last[one] > first[other]:
            text = f"operator {problem.ops[one].id} runs at run {last[one]}, after {problem.ops[other].id} at {first[other]}"
            violations.append(Violation("too_early", text))
            return


def _replay(problem: Problem, plan: Plan, violations: list[Violation]) -> _Replay | None:
    """Step through a plan and compute live bytes and times.

    If a step reads or moves a value that does not exist, or if sends, waits and fetches do not match, the result is None, and
    a violation is added.
    """
    tensors = problem.tensors
    written = {tensor for op in problem.ops for tensor in op.writes}

    def source(tensor: int) -> int:
        """The tensor whose instances are used for this one: for a view that no operator writes, its base."""
        while tensor not in written and (base := tensors[tensor].alias_of) is not None:
            tensor = base
        return tensor

    available = {tensor: _Instance(tensor, -1, -1, False) for tensor in problem.inputs if source(tensor) == tensor}
    instances = dict(available)
    all_instances = list(instances.values())
    stays: dict[int, _Stay] = {}
    on_host: list[_Stay] = []
    in_place_operands: list[list[tuple[_Instance, int]]] = []
    run = now = sends_free = fetches_free = 0

    def need(instance: _Instance, at: int) -> None:
        """Record that a step needs an instance; the step waits until the instance has arrived."""
        nonlocal now
        now = max(now, instance.arrives)
        if instance.copied is not None:
            instance.copied.end = max(instance.copied.end, at)
        instance.last, instance.is_needed, instance.copied = at, True, None

    def refuse(code: Code, text: str) -> None:
        """Add a violation."""
        violations.append(Violation(code, text))

    at = -1
    for at, (action, number) in enumerate(plan.steps()):
        in_place_operands.append([])
        if action == "send":
            if number not in instances:
                refuse("too_early", f"{tensors[number].id} is sent before run {run}, which no run before it writes")
                return None
            if number in stays and stays[number].end < 0:
                refuse(
                    "not_on_host", f"{tensors[number].id} is sent again before run {run}, before its first copy is waited for"
                )
                return None
            need(instances[number], at)
            sends_free = max(now, sends_free) + problem.copy_cost(number)
            stays[number] = _Stay(number, at, sends_free, instances[number])
            on_host.append(stays[number])
            continue
        if action == "wait":
            stay = stays.get(number)
            if stay is None or stay.end >= 0:
                refuse("not_on_host", f"{tensors[number].id} is waited for before run {run}, without a send")
                return None
            now = max(now, stay.arrives)
            stay.end = at
            stay.sent.last = max(stay.sent.last, at)
            continue
        if action == "fetch":
            stay = stays.get(number)
            if stay is None or stay.end < 0:
                refuse("not_on_host", f"{tensors[number].id} is fetched before run {run}, before a copy to the host has ended")
                return None
            stay.end = max(stay.end, at + 1)
            fetches_free = max(now, fetches_free) + problem.copy_cost(number)
            instances[number] = _Instance(number, at, at, False, fetches_free, stay)
            all_instances.append(instances[number])
            continue
        op = problem.ops[number]
        bases = {write: base for write in op.writes if (base := tensors[write].alias_of) is not None}
        for tensor in (*op.reads, *(base for base in bases.values() if source(base) not in op.writes)):
            instance = instances.get(source(tensor))
            if instance is None:
                refuse("too_early", f"run {run} ({op.id}) needs tensor {tensors[tensor].id}, which no run before it writes")
                return None
            need(instance, at)
        in_place_operands[at] = [(instances[source(operand)], tensors[result].size) for operand, result in op.in_place]
        for tensor in op.writes:
            if tensor not in bases:
                instances[tensor] = _Instance(tensor, at, at, True)
                all_instances.append(instances[tensor])
        waiting = list(bases)
        while waiting:
            # A view of a tensor that this same run writes is handled after that tensor.
            tensor = next(tensor for tensor in waiting if source(bases[tensor]) not in waiting)
            waiting.remove(tensor)
            instances[tensor] = instances[source(bases[tensor])]
            instances[tensor].last = max(instances[tensor].last, at)
        now += op.cost
        run += 1
    end = at + 1
    for tensor in problem.outputs:
        if source(tensor) in instances:
            need(instances[source(tensor)], end)
    for tensor in () if problem.free_inputs else problem.inputs:
        if source(tensor) in available:
            available[source(tensor)].last, available[source(tensor)].is_needed = end, True
    unread = next((instance for instance in all_instances if not instance.is_needed and instance.copied is not None), None)
    if unread is not None:
        refuse("never_read", f"a copy of {tensors[unread.tensor].id} is fetched that nothing reads")
        return None
    if unawaited := [stay for stay in on_host if stay.end < 0]:
        refuse("not_on_host", f"{tensors[unawaited[0].tensor].id} is sent and never waited for")
        return None
    lives = [(instance.tensor, max(0, instance.begin), instance.last + 1) for instance in all_instances if instance.is_needed]
    live = _totals(problem, lives, end)
    for step, operands in enumerate(in_place_operands):
        live[step] -= sum(size for operand, size in operands if operand.last == step)
    on_host_bytes = _totals(problem, [(stay.tensor, stay.begin, stay.end) for stay in on_host], end)
    return _Replay(live, on_host_bytes, now, _with_reservations(problem, plan, live))


def _with_reservations(problem: Problem, plan: Plan, live: list[int]) -> list[int]:
    """[steps] live bytes plus the largest of the reservations in force.

    A reservation whose operator ``since`` never runs is never in force; one whose operator ``until`` never runs does not end.
    """
    step_of = {number: at for at, (action, number) in enumerate(plan.steps()) if action == "run"}
    load = [*live]
    for row in problem.reservations:
        begin = 0 if row.since is None else step_of.get(row.since, len(live))
        end = len(live) if row.until is None else step_of.get(row.until, len(live))
        if row.is_of_one_run:
            end = begin + 1
        waiting = row.times * live[step_of[row.of]] if row.of in step_of else 0
        for at in range(begin, min(end, len(live))):
            load[at] = max(load[at], live[at] + row.size + waiting)
    return load


def _totals(problem: Problem, lives: list[tuple[int, int, int]], end: int) -> list[int]:
    """[steps] total bytes at each of ``end`` steps, from live ranges ``(tensor, first step, step after the last)``."""
    change = [0] * (end + 1)
    for tensor, first, after in lives:
        change[first] += problem.tensors[tensor].size
        change[min(end, after)] -= problem.tensors[tensor].size
    return list(accumulate(change[:end]))
