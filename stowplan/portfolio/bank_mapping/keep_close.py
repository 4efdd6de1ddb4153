"""Bank mappings that differ as little as possible from an earlier plan.

The option ``--keep-close`` names the earlier plan, which may be for an earlier version of the problem. Operators and tensors
are matched by their names. A plan chooses an *option* for each operator, that is, a layout over the banks for each tensor that
the operator reads or writes. It also says for each tensor whether it stays on chip.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from stowplan.kernel.keep_close.earlier_plan import ByValues, needs_program
from stowplan.kernel.plan_changes import KeepClose
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import assemble


class Changes(ByValues):
    """Implements :class:`~stowplan.kernel.plan_changes.PlanChanges` for bank mapping.

    There is one decision for each operator, its option, followed by one for each tensor, whether it stays on chip. Decisions
    are numbered in this order. The constructor raises UsageError as :meth:`match_values` does.
    """

    def match_values(self, given: KeepClose) -> Sequence[Hashable | None]:
        """The decisions of a plan of an earlier version of the problem. An option is recognized by its layouts.

        The entry is None for an operator or a tensor that the earlier version does not have. It is also None if an operator
        has no option with the earlier layouts. Of several earlier operators with one name, the last is taken.

        Raises
        ------
        UsageError
            The earlier version of the problem is not given.
        """
        plan: Plan = given.plan
        earlier: Problem | None = given.problem
        if earlier is None:
            raise needs_program("bank mapping")
        operators = {operator.name: at for at, operator in enumerate(earlier.operators)}
        tensors = {tensor.name: at for at, tensor in enumerate(earlier.tensors)}
        values: list[Hashable | None] = []
        for operator in self.problem.operators:
            at = operators.get(operator.name)
            layouts = None if at is None else earlier.operators[at].options[plan.options[at]]
            values.append(operator.options.index(layouts) if layouts in operator.options else None)
        for tensor in self.problem.tensors:
            at = tensors.get(tensor.name)
            values.append(None if at is None else plan.on_chip[at])
        return values

    def values(self, plan: Any) -> Sequence[Hashable]:
        """The index of the option of each operator, then whether each tensor stays on chip."""
        return [*plan.options, *plan.on_chip]

    def plan(self, values: Sequence[Any], near: Any) -> Plan:
        """The plan with the decisions ``values``, and with the layouts and copies that follow from them; ``near`` is not used.

        The plan is not checked: it may exceed the capacity.
        """
        count = len(self.problem.operators)
        return assemble(self.problem, values[:count], values[count:])

    def groups(self, plan: Any, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
        """Sets of changed decisions that may be reverted together, small sets first.

        Each changed decision alone is a set. Another set is formed of changed operators that are connected by tensors, together
        with the changed decisions about these tensors. The result is empty if no decision changed. ``should_stop`` is not used.
        """
        changed = self.differing(plan)
        count = len(self.problem.operators)
        users: dict[int, list[int]] = {}
        for number in changed:
            if number < count:
                operator = self.problem.operators[number]
                for tensor in (*operator.reads, *operator.writes):
                    users.setdefault(tensor, []).append(number)
        left = dict.fromkeys(changed)
        together: list[frozenset[int]] = []
        while left:
            group, front = set[int](), [next(iter(left))]
            while front:
                change = front.pop()
                if change not in left:
                    continue
                del left[change]
                group.add(change)
                if change < count:
                    operator = self.problem.operators[change]
                    for tensor in (*operator.reads, *operator.writes):
                        front += [*users.get(tensor, ()), count + tensor]
                else:
                    front += users.get(change - count, ())
            together.append(frozenset(group))
        single = [frozenset([change]) for change in changed]
        return sorted({*together, *single}, key=lambda group: (len(group), min(group)))
