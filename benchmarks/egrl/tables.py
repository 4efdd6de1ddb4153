"""Summaries of runs of EGRL and what it is measured beside: means over seeds, and tables of them."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.egrl.methods import METHODS, OPTIMUM, VARIANTS, Method
from benchmarks.egrl.runs import Record
from benchmarks.lib.tables import mean_and_deviation, table

Place = tuple[str, str]
"""Network and precision."""


class Records:
    """Records by place, method and noise."""

    def __init__(self, records: Iterable[Record]):
        self._groups: dict[tuple[str, str, str, float], list[Record]] = {}
        for record in records:
            key = (record.network, record.precision, record.method, record.noise)
            self._groups.setdefault(key, []).append(record)

    @property
    def places(self) -> list[Place]:
        """Networks and precisions that there are runs of, in their order."""
        return list(dict.fromkeys(key[:2] for key in self._groups))

    def of(self, place: Place, method: str, noise: float = 0.0) -> list[Record]:
        """Runs of all seeds."""
        return self._groups.get((*place, method, noise), [])

    def speedups(self, place: Place, method: str, noise: float = 0.0) -> list[float]:
        """Final speedups of all seeds."""
        return [record.speedup for record in self.of(place, method, noise)]

    def mean(self, place: Place, method: str, noise: float = 0.0) -> float | None:
        """Mean of the final speedups; None without runs."""
        found = self.speedups(place, method, noise)
        return statistics.fmean(found) if found else None

    def optimum(self, place: Place) -> Record | None:
        """The proven optimum, or the best plan of the whole portfolio where the proof was not found in time."""
        found = self.of(place, OPTIMUM)
        return found[0] if found else None


def best_at(record: Record, evaluations: float) -> float:
    """Speedup of the best map after so many evaluations; 0 before there is one."""
    number = bisect_right(record.points, evaluations, key=lambda point: point[0])
    return record.points[number - 1][1] if number else 0.0


def _name(place: Place) -> list[str]:
    return [" ".join(place)]


def titles(methods: Sequence[str], known: Mapping[str, Method] = METHODS) -> list[str]:
    """As tables and pictures call them."""
    return [known[method].title for method in methods]


def final(records: Records, methods: Sequence[str]) -> str:
    """Final speedups, and the optimum's."""
    rows = []
    for place in records.places:
        best = records.optimum(place)
        row = [*_name(place), *(mean_and_deviation(records.speedups(place, method)) for method in methods)]
        unproven = "" if best is None or best.bound_ps == best.latency_ps else " (not proven)"
        row.append("" if best is None else f"{best.speedup:.3f}{unproven}")
        rows.append(row)
    return table(rows, ["network", *titles(methods), "optimum"])


def attribution(records: Records, methods: Sequence[str]) -> str:
    """Mean difference of the variants to EGRL, over networks and seeds."""
    found = [method for method in methods if any(records.speedups(place, method) for place in records.places)]
    rows = [[*titles([method], VARIANTS), _difference(records, method)] for method in found]
    return table(rows, ["EGRL", "difference to EGRL"])


def at_equal(records: Records, shortest: str, methods: Sequence[str]) -> str:
    """Speedups after as many evaluations as the shortest run of one method has made on the network."""
    rows = []
    for place in records.places:
        found = records.of(place, shortest)
        if not found:
            continue
        used = min(record.evaluations for record in found)
        cells = [mean_and_deviation([best_at(record, used) for record in records.of(place, method)]) for method in methods]
        rows.append([*_name(place), f"{used:,}", *cells])
    return table(rows, ["network", "evaluations", *titles(methods, METHODS | VARIANTS)])


def differences(records: Records, method: str) -> list[float]:
    """Of a variant's speedup to EGRL's of the same network and seed, as parts of the latter."""
    found = []
    for place in records.places:
        ours = {record.seed: record.speedup for record in records.of(place, "egrl")}
        found += [record.speedup / ours[record.seed] - 1 for record in records.of(place, method) if ours.get(record.seed)]
    return found


def _difference(records: Records, method: str) -> str:
    found = differences(records, method)
    if method == "egrl" or not found:
        return ""
    error = f" ± {standard_error(found):.1%}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):+.1%}{error}"


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; 0 of a single value."""
    return float(statistics.stdev(values) / len(values) ** 0.5) if len(values) > 1 else 0.0


def noisy(records: Records, methods: Sequence[str], noise: float) -> str:
    """Speedups without noise of the maps that measured best."""
    rows = [
        [*_name(place), *(mean_and_deviation(records.speedups(place, method, noise)) for method in methods)]
        for place in records.places
    ]
    return table(rows, ["network", *titles(methods)])
