"""Heuristics that choose an option for every operator, and then the tensors that stay on chip.

A *layout* says how a tensor is spread over the banks of the scratchpad; layouts are numbers, as
:class:`~stowplan.models.bank_mapping.problem.Tensor` explains. An *option* of an operator is a layout for each tensor that it
reads or writes, and is given by its index in ``Operator.options``. A *view* of a tensor is a copy of it in another form, which
some operators need and which counts as a layout. A tensor's *own* layout is the one in which it is written. Two layouts
*conflict* if a tensor is written in one and read in the other; then it has to be copied between banks. An operator is
*restricted* if its compute unit limits the layouts (``Operator.restricted``).

Options are chosen for each operator by itself (*local mapping*), by *propagation* of layouts along the data, or by descent.
Local mapping and propagation are methods of Zheng et al., "Optimizing Memory-Access Patterns for Deep Learning Accelerators"
(2020, arXiv 2002.12798), *the paper*. Operators and tensors are given by their numbers, the positions in the problem. Functions
that return a list of options return one option for each operator. Plans are not checked: they are invalid if two operators
write the same tensor in different layouts. No function raises an error, except as stated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import assemble, copies_of, off_chip_cost, on_chip_cost, own_layouts
from stowplan.parameters import Parameters, parameters


class ChoiceParameters(Parameters, frozen=True):
    """Parameters of the choice of options."""

    sweeps: int = 50
    """Largest number of times that the option of an operator is revised, on average over the operators."""


PARAMS = parameters(ChoiceParameters, __name__)


def written_layout(problem: Problem, number: int, option: int, tensor: int) -> int:
    """The layout in which operator ``number`` writes a tensor under one of its options.

    Raises
    ------
    ValueError
        The operator does not write the tensor.
    """
    operator = problem.operators[number]
    return operator.options[option][operator.write_place(tensor)]


class Choice:
    """A partial choice of options, which the caller extends by setting entries of ``options``; None is an open entry.

    Its methods propose options. If several operators write parts of the same tensor, they have to write it in the same layout,
    and the proposed options do so where that is possible.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.options: list[int | None] = [None] * len(problem.operators)

    def allowed(self, number: int) -> list[int]:
        """The options of an operator that agree with the other writers of the tensors that it writes.

        An option agrees if it writes each tensor in the layout that the chosen options of other writers have for it, and in a
        layout in which every writer can write it. The conditions are applied one by one, and one that no remaining option
        satisfies is ignored, so that the list is never empty.
        """
        operator = self.problem.operators[number]
        choices = list(range(len(operator.options)))
        for at, tensor in enumerate(operator.writes, len(operator.reads)):
            for other in self.problem.writers[tensor]:
                option = self.options[other]
                if other == number or option is None:
                    continue
                layout = written_layout(self.problem, other, option, tensor)
                agreeing = [choice for choice in choices if operator.options[choice][at] == layout]
                choices = agreeing or choices
            if len(self.problem.writers[tensor]) > 1:
                shared = self._common_layouts(tensor)
                choices = [choice for choice in choices if operator.options[choice][at] in shared] or choices
        return choices

    def _common_layouts(self, tensor: int) -> set[int]:
        """The layouts in which every writer of a tensor can write it."""
        sets = []
        for number in self.problem.writers[tensor]:
            operator = self.problem.operators[number]
            at = operator.write_place(tensor)
            sets.append({option[at] for option in operator.options})
        return set.intersection(*sets)

    def own_layout(self, tensor: int) -> int | None:
        """The layout in which a tensor is written, by the first writer with a chosen option. It is None if there is none yet,
        and always for inputs of the program."""
        for number in self.problem.writers[tensor]:
            option = self.options[number]
            if option is not None:
                return written_layout(self.problem, number, option, tensor)
        return None

    def wanted(self, tensor: int) -> set[int]:
        """Returns the layouts in which a tensor is read under the options chosen so far; empty if no reader has an option
        yet."""
        layouts = set()
        for number, at in self.problem.readers[tensor]:
            option = self.options[number]
            if option is not None:
                layouts.add(self.problem.operators[number].options[option][at])
        return layouts

    def best(self, number: int) -> int:
        """The allowed option with the fewest bytes of tensors in conflicting layouts, given the options chosen so far.

        A tensor counts once for each layout that needs a copy. Of equal options, the first is the result.
        """
        operator = self.problem.operators[number]
        own_layouts_read = [self.own_layout(tensor) for tensor in operator.reads]
        wanted = [self.wanted(tensor) for tensor in operator.reads]
        wanted_of_results = [self.wanted(tensor) for tensor in operator.writes]
        fewest, best_choice = None, 0
        for choice in self.allowed(number):
            option = operator.options[choice]
            bytes_in_conflict = 0
            for at, tensor in enumerate(operator.reads):
                layout = option[at]
                own = own_layouts_read[at]
                agrees = layout == own if own is not None else not wanted[at] or layout in wanted[at]
                if not agrees and layout not in wanted[at]:
                    bytes_in_conflict += self.problem.tensors[tensor].layout_bytes(layout)
            for at, tensor in enumerate(operator.writes):
                others = wanted_of_results[at] - {option[len(operator.reads) + at]}
                bytes_in_conflict += sum(self.problem.tensors[tensor].layout_bytes(layout) for layout in others)
            if fewest is None or bytes_in_conflict < fewest:
                fewest, best_choice = bytes_in_conflict, choice
        return best_choice


def local(problem: Problem) -> list[int]:
    """The options of local mapping: every operator takes its first allowed option."""
    choice = Choice(problem)
    for number in range(len(problem.operators)):
        choice.options[number] = choice.allowed(number)[0]
    return [option or 0 for option in choice.options]


def propagate(problem: Problem) -> list[int]:
    """The options of the paper's propagation to a fixed point.

    Operators whose layouts the compute unit restricts take their first allowed option. Layouts are propagated from there along
    the data, in both directions, until every operator has an option (:func:`propagate_once`). Then the options of the other
    operators are revised until none changes. A revision reduces the bytes of copies between conflicting layouts, or replaces an
    option that is not allowed (:meth:`Choice.allowed`). The number of revisions is limited (:attr:`ChoiceParameters.sweeps`).
    """
    choice = Choice(problem)
    free = [number for number, operator in enumerate(problem.operators) if not operator.restricted]
    return _revise(choice, propagate_once(problem), free, lambda tensor: _conflicting_bytes(choice, tensor), lambda: False)


def propagate_once(problem: Problem) -> list[int]:
    """The options of one breadth-first pass of propagation from the restricted operators, without revisions."""
    choice = Choice(problem)
    for number, operator in enumerate(problem.operators):
        if operator.restricted:
            choice.options[number] = choice.allowed(number)[0]
    neighbours = _neighbours(problem)
    front = deque(number for number, option in enumerate(choice.options) if option is not None)
    for seed in range(len(problem.operators)):
        # In a connected part of the program without a restricted operator, propagation starts from the part's first operator.
        if not front and choice.options[seed] is None:
            choice.options[seed] = choice.best(seed)
            front.append(seed)
        while front:
            for other in neighbours[front.popleft()]:
                if choice.options[other] is None:
                    choice.options[other] = choice.best(other)
                    front.append(other)
    return [option or 0 for option in choice.options]


def _conflicting_bytes(choice: Choice, tensor: int) -> int:
    """Bytes of the copies to other layouts that the readers of a tensor would need if it stayed on chip."""
    return _copied_bytes(choice.problem, tensor, choice.own_layout(tensor), choice.wanted(tensor))


def _copied_bytes(problem: Problem, tensor: int, own: int | None, wanted: set[int]) -> int:
    """Bytes of the copies of a tensor from its own layout to every other layout in ``wanted``.

    ``own`` is None for an input, which is loaded in the wanted layout with the smallest number that is not a view.
    """
    array = problem.tensors[tensor]
    if own is None:
        # An input of the program may come in one of the wanted layouts.
        own = min((layout for layout in wanted if layout < array.rank), default=None)
    return sum(array.layout_bytes(layout) for layout in wanted if layout != own)


def _neighbours(problem: Problem) -> list[list[int]]:
    """For each operator, the operators that read a tensor that it writes, or write a tensor that it reads."""
    neighbours: list[dict[int, None]] = [{} for _ in problem.operators]
    for tensor, writers in enumerate(problem.writers):
        for writer in writers:
            for reader, _ in problem.readers[tensor]:
                neighbours[writer][reader] = None
                neighbours[reader][writer] = None
    return [list(near) for near in neighbours]


def cost_of(problem: Problem, tensor: int, own: int | None, wanted: set[int], may_stay: bool) -> int:
    """Cost of a tensor in weighted bytes at its cheaper place: on chip with a copy for every other layout, or in main memory.

    *Weighted bytes* are bytes times the weight that the problem gives to copies or to moves off chip.

    Parameters
    ----------
    problem, tensor
        The problem, and the number of the tensor.
    own
        The layout in which the tensor is written; None for an input.
    wanted
        The layouts in which it is read.
    may_stay
        Whether it may be on chip. If not, the result is its cost in main memory.
    """
    outside = off_chip_cost(problem, tensor)
    if not may_stay:
        return outside
    return min(outside, on_chip_cost(problem, tensor) + problem.copy_weight * _copied_bytes(problem, tensor, own, wanted))


def descend(problem: Problem, start: Sequence[int], on_chip: Sequence[bool], should_stop: Callable[[], bool]) -> list[int]:
    """Descent from the options ``start``: change the option of one operator at a time as long as that reduces the cost.

    The cost is the sum of :func:`cost_of` over all tensors; it ignores the capacity. ``on_chip`` says for each tensor whether
    it may stay on chip. ``should_stop`` is asked now and then; if it returns True, the options so far are returned.
    """
    choice = Choice(problem)

    def cost(tensor: int) -> int:
        return cost_of(problem, tensor, choice.own_layout(tensor), choice.wanted(tensor), on_chip[tensor])

    return _revise(choice, start, range(len(problem.operators)), cost, should_stop)


def _revise(
    choice: Choice,
    start: Sequence[int],
    free: Iterable[int],
    cost: Callable[[int], int],
    should_stop: Callable[[], bool],
) -> list[int]:
    """Starting from the options ``start``, give each of the ``free`` operators its cheapest option, until none changes.

    The options of ``choice`` are overwritten, and ``cost`` returns the cost of a tensor under its present options. An option
    changes only if the total cost falls, or if the operator's present option is not allowed. An operator is revised at most
    :attr:`ChoiceParameters.sweeps` times on average. ``should_stop`` is asked at every 64th revision.
    """
    problem = choice.problem
    choice.options = list(start)
    pending = deque(number for number in free if len(problem.operators[number].options) > 1)
    movable, waiting = set(pending), set(pending)
    neighbours = _neighbours(problem)
    left = PARAMS.sweeps * max(1, len(pending))
    while pending and left:
        left -= 1
        number = pending.popleft()
        waiting.discard(number)
        if left % 64 == 0 and should_stop():
            break
        operator = problem.operators[number]
        touched = {*operator.reads, *operator.writes}
        before = choice.options[number]
        costs = {}
        for option in choice.allowed(number):
            choice.options[number] = option
            costs[option] = sum(map(cost, touched))
        best = min(costs, key=lambda option: (costs[option], option != before))
        choice.options[number] = best
        if best != before:
            for other in neighbours[number]:
                if other not in waiting and other in movable:
                    waiting.add(other)
                    pending.append(other)
    return [option or 0 for option in choice.options]


class _Load:
    """The number of bytes on chip while each operator runs."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._bytes = np.zeros(len(problem.operators), np.int64)

    def take(self, life: tuple[int, int], size: int) -> bool:
        """Reserve ``size`` bytes during a life, a half-open range of operators, if they fit; returns whether they do."""
        part = self._bytes[life[0] : life[1]]
        if size and int(part.max(initial=0)) + size > self._problem.capacity:
            return False
        part += size
        return True


def _sizes(problem: Problem, options: Sequence[int]) -> list[tuple[int, int]]:
    """For each tensor, a pair: its bytes on chip including its copies, and the weighted bytes that it saves by staying
    there."""
    layouts = own_layouts(problem, options)
    sizes = []
    for tensor, array in enumerate(problem.tensors):
        copied = sum(array.layout_bytes(layout) for layout in copies_of(problem, tensor, layouts[tensor], options))
        saved = off_chip_cost(problem, tensor) - on_chip_cost(problem, tensor) - problem.copy_weight * copied
        sizes.append((array.bytes + copied, saved))
    return sizes


def by_density(problem: Problem, options: Sequence[int], preferred: Sequence[float] | None = None) -> list[bool]:
    """Returns for each tensor whether it stays on chip. Tensors are taken in descending order of what they save, and one that
    does not fit is skipped.

    The order is by the weighted bytes (:func:`cost_of`) that a tensor saves, divided by its bytes and by the length of its
    life. Tensors that are never used, or that would save nothing, stay in main memory. ``preferred``, if it is given, has a
    number from 0 to 1 for each tensor, which is rounded to hundredths. Tensors with larger numbers then come first, and the
    order above decides only between equal numbers.
    """
    sizes = _sizes(problem, options)
    stays = [False] * len(problem.tensors)
    load = _Load(problem)
    lives = [problem.life(tensor) for tensor in range(len(problem.tensors))]

    def density(tensor: int) -> float:
        life = lives[tensor]
        assert life is not None
        return sizes[tensor][1] / (max(1, sizes[tensor][0]) * (life[1] - life[0]))

    candidates = [tensor for tensor, life in enumerate(lives) if life is not None and sizes[tensor][1] > 0]
    preference = preferred or [0.0] * len(problem.tensors)
    for tensor in sorted(candidates, key=lambda candidate: (-round(preference[candidate], 2), -density(candidate), candidate)):
        life = lives[tensor]
        stays[tensor] = life is not None and load.take(life, sizes[tensor][0])
    return stays


def keep_for_next_reader(problem: Problem, options: Sequence[int]) -> list[bool]:
    """Returns for each tensor whether it stays on chip in local mapping: if the operator right after its last writer reads it,
    and it fits.

    Inputs of the program never stay on chip, since no operator writes them.
    """
    sizes = _sizes(problem, options)
    stays = [False] * len(problem.tensors)
    load = _Load(problem)
    for number, operator in enumerate(problem.operators):
        for tensor in operator.writes:
            life = problem.life(tensor)
            if problem.writers[tensor][-1] != number or life is None:
                continue
            if any(reader == number + 1 for reader, _ in problem.readers[tensor]):
                stays[tensor] = load.take(life, sizes[tensor][0])
    return stays


def local_plan(problem: Problem) -> Plan:
    """The plan of local mapping: operators choose their options by themselves (:func:`local`), and
    :func:`keep_for_next_reader` chooses the tensors that stay on chip."""
    options = local(problem)
    return assemble(problem, options, keep_for_next_reader(problem, options))


def propagated_plan(problem: Problem) -> Plan:
    """The plan of the paper's global mapping: options by :func:`propagate`, and tensors on chip by :func:`by_density`."""
    options = propagate(problem)
    return assemble(problem, options, by_density(problem, options))
