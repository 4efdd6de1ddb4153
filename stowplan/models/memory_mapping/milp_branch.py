"""Branch and bound over a relaxation in which every step of the proof is checked.

Solvers of MILPs leave no certificate, and their presolve errs now and then. Here HiGHS solves linear programs only; what a node
proves is recomputed from its duals (:class:`~stowplan.models.memory_mapping.milp_dual.RoundedBound`), that it is infeasible
from its dual ray. The bound is the least of all open nodes, best first. Branching is by pseudo-costs, with a trial of both
branches where a column has none yet (Achterberg, Koch and Martin, "Branching rules revisited", 2005).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import highspy
import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.milp_search import RelaxationSearch

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: A value this near to an integer is one.
INTEGRAL = 1e-6

#: Columns that are tried in a node at most.
TRIALS = 6


@dataclass(order=True)
class _Node:
    bound: int
    serial: int
    box: dict[int, int] = field(compare=False)
    """Columns that are fixed, and at what."""
    basis: highspy.HighsBasis = field(compare=False)
    open_columns: IntArray = field(compare=False)
    """Integer columns with a fractional value."""
    fractions: FloatArray = field(compare=False)
    values: FloatArray = field(compare=False)


class Branching:
    """Branch and bound on what a :class:`RelaxationSearch` has solved linearly; its ``bound`` and ``values`` are updated.

    Parameters
    ----------
    search
        After :meth:`RelaxationSearch.linear`.
    """

    def __init__(self, search: RelaxationSearch):
        self._search = search
        self._solver = search.solver
        model = search.model
        self._model = model
        self._lower = np.array(model.lower, dtype=np.float64)
        self._upper = np.array(model.upper, dtype=np.float64)
        self._integers = np.flatnonzero(np.array(model.is_integer, dtype=bool))
        self._all = np.arange(len(model.cost))
        self._fixed: dict[int, int] = {}
        self._rounded = self._solver.rounded_bound()
        # Bounds of nodes beyond this are of no use.
        self._worst_ps = model.problem.all_slow_ps - model.offset_ps
        # Sum of gains for each unit of change, and their number; down and up.
        self._gain = np.zeros((2, len(model.cost)))
        self._count = np.zeros((2, len(model.cost)))
        self._serial = 0
        self.nodes = 0

    def run(self) -> None:
        """Branch until the best node is integral, or time is up."""
        search = self._search
        if search.values is None or not self._rounded.is_exact or not len(self._integers):
            return
        search.optimal = False
        root = self._solve({}, None, search.bound - self._model.offset_ps)
        heap = [root] if root is not None else []
        limit = search.effort.node_limit
        while heap and not search.effort.is_over() and (limit is None or self.nodes < limit):
            node = heapq.heappop(heap)
            search.offer(node.bound + self._model.offset_ps)
            search.values = node.values
            if search.add_windows():
                self._rounded = self._solver.rounded_bound()
                heapq.heappush(heap, self._solve(node.box, node.basis, node.bound) or node)
                continue
            if not len(node.open_columns):
                search.optimal = True
                return
            for child in self._branch(node):
                heapq.heappush(heap, child)
        if not heap:
            # Nothing is better than all slow.
            search.offer(self._worst_ps + self._model.offset_ps)
            search.optimal = True

    def _branch(self, node: _Node) -> list[_Node]:
        """The children of a node."""
        distance = np.stack([node.fractions, 1.0 - node.fractions])
        known = self._count[:, node.open_columns]
        mean = self._gain.sum(axis=1) / np.maximum(1.0, self._count.sum(axis=1))
        cost = np.where(known > 0, self._gain[:, node.open_columns] / np.maximum(1.0, known), mean[:, None])
        score = _score(cost * distance)
        order = np.argsort(-score, kind="stable")
        best: tuple[float, list[_Node]] | None = None
        trials = 0
        for place in order.tolist():
            column = int(node.open_columns[place])
            is_known = bool(known[0, place] > 0 and known[1, place] > 0)
            if best is not None and (is_known or trials >= TRIALS or self._search.effort.is_over()):
                if score[place] <= best[0] or trials >= TRIALS:
                    break
                if is_known:
                    continue
            children, gains = self._try(node, column, float(node.fractions[place]))
            trials += 1
            value = float(_score(np.array(gains)))
            if best is None or value > best[0]:
                best = (value, children)
            if is_known or len(children) < 2:
                best = (value, children)
                break
        assert best is not None
        return best[1]

    def _try(self, node: _Node, column: int, fraction: float) -> tuple[list[_Node], list[float]]:
        """Both children by one column, and what each gains."""
        children, gains = [], []
        for way, (value, distance) in enumerate(((0, fraction), (1, 1.0 - fraction))):
            child = self._solve({**node.box, column: value}, node.basis, node.bound)
            gain = float((self._worst_ps if child is None else child.bound) - node.bound)
            if child is not None:
                children.append(child)
                self._gain[way, column] += gain / max(distance, INTEGRAL)
                self._count[way, column] += 1
            gains.append(gain)
        return children, gains

    def _solve(self, box: dict[int, int], basis: highspy.HighsBasis | None, bound: int) -> _Node | None:
        """The node of a box; None where nothing in it is better than all slow."""
        self._enter(box)
        if basis is not None:
            self._solver.set_basis(basis)
        status = self._solver.run(max(0.01, self._search.effort.left))
        self.nodes += 1
        lower, upper = self._lower.copy(), self._upper.copy()
        for column, value in box.items():
            lower[column] = upper[column] = value
        multipliers = self._solver.ray() if status == highspy.HighsModelStatus.kInfeasible else self._solver.duals()
        if multipliers is not None:
            if status == highspy.HighsModelStatus.kInfeasible:
                multipliers = multipliers * self._ray_length(lower, upper, multipliers)
            proven = self._rounded.bound(lower, upper, multipliers)
            if proven is not None:
                bound = max(bound, proven)
        if bound >= self._worst_ps:
            return None
        values = self._solver.values() if status == highspy.HighsModelStatus.kOptimal else None
        if values is None:
            # Not solved: it stays open, with the bound of its parent and a value of one half wherever it is not fixed.
            values = np.where(self._upper > self._lower, 0.5, self._lower)
            values[list(box)] = list(box.values())
        parts = values[self._integers]
        is_open = abs(parts - np.rint(parts)) > INTEGRAL
        self._serial += 1
        return _Node(bound, self._serial, box, self._solver.basis(), self._integers[is_open], parts[is_open] % 1.0, values)

    def _ray_length(self, lower: FloatArray, upper: FloatArray, ray: FloatArray) -> float:
        """How far along a ray the bound exceeds the worst, where it does: the bound rises linearly with the length."""
        trial = float(max(1.0, 1e3 / max(1e-300, float(abs(ray).max()))))
        near, far = (self._rounded.bound(lower, upper, length * ray) for length in (trial, 2.0 * trial))
        if near is None or far is None or far <= near:
            return trial
        missing = 2.0 * self._worst_ps - near
        return trial * (1.0 + max(0.0, math.ceil(missing / (far - near))))

    def _enter(self, box: dict[int, int]) -> None:
        """Fix the columns of a box, and free those of the last one."""
        changed = [column for column in {**self._fixed, **box} if self._fixed.get(column) != box.get(column)]
        if changed:
            columns = np.array(changed, dtype=np.int64)
            lower = np.array([box.get(column, self._lower[column]) for column in changed], dtype=np.float64)
            upper = np.array([box.get(column, self._upper[column]) for column in changed], dtype=np.float64)
            self._solver.set_box(columns, lower, upper)
        self._fixed = dict(box)


def _score(gains: FloatArray) -> FloatArray:
    """What a branching is worth by the gains of its two branches, shape ``[2, ...]``: their product."""
    result: FloatArray = np.prod(np.maximum(gains, 1.0), axis=0)
    return result
