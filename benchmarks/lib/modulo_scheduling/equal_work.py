"""What heuristics of modulo scheduling find in a number of evaluations, for comparisons of equal work."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.lib.modulo_scheduling.baselines import Evolution, random_play
from stowplan.errors import UsageError
from stowplan.learned_guidance.modulo_scheduling.state import Player
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts
from stowplan.portfolio.modulo_scheduling.search import MappingSearch, Tally, begin, list_scheduling


def spend(
    problem: Problem,
    name: str,
    evaluations: int,
    *,
    seed: int = 0,
    player: Player | None = None,
    tempering: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> Tally:
    """What a heuristic finds in a number of evaluations, for comparisons of equal work.

    Parameters
    ----------
    problem
        One that shows no obstacle (:func:`~stowplan.models.modulo_scheduling.bounds.find_obstacle`).
    name
        ``list`` (again and again, with other ties), ``search``, ``random``, ``evolution``; or ``rollouts``, of ``player``.
    evaluations
        Work at least, as every heuristic counts it: the last schedule or generation may end a little after.
        :meth:`~stowplan.portfolio.modulo_scheduling.search.Tally.within` says what was found before.
    tempering
        Whether ``search`` uses parallel tempering.
    should_stop
        Ends it sooner, as by a time limit.

    Raises
    ------
    UsageError
        Another name.
    """
    tally = Tally(Body(problem), tempering=tempering)

    def stop() -> bool:
        return tally.evaluations >= evaluations or should_stop()

    if name == "rollouts" and player is not None:
        run = RollOuts(tally, player, seed)
        while not stop():
            run.step(tally.body.least_ii, should_stop, evaluations - tally.evaluations)
    elif name in HEURISTICS:
        HEURISTICS[name](tally, seed, evaluations, stop)
    else:
        raise UsageError(f"found the heuristic {name!r}, expected one of {', '.join(HEURISTICS)}, or rollouts with a player")
    return tally


def _lists(tally: Tally, seed: int, evaluations: int, stop: Callable[[], bool]) -> None:
    while not stop():
        list_scheduling(tally, seed, stop)
        seed += 1


def _searches(tally: Tally, seed: int, evaluations: int, stop: Callable[[], bool]) -> None:
    begin(tally, seed, stop)
    run = MappingSearch(tally, seed + 1)
    while not stop():
        run.step(tally.body.least_ii, stop)


def _randoms(tally: Tally, seed: int, evaluations: int, stop: Callable[[], bool]) -> None:
    random_play(tally, seed, evaluations, stop)


def _generations(tally: Tally, seed: int, evaluations: int, stop: Callable[[], bool]) -> None:
    run = Evolution(tally, seed)
    while not stop():
        run.generation(stop)


#: Heuristics by name: (tally, seed, evaluations at most, stop) goes on until it is told to stop.
HEURISTICS: dict[str, Callable[[Tally, int, int, Callable[[], bool]], None]] = {
    "list": _lists,
    "search": _searches,
    "random": _randoms,
    "evolution": _generations,
}
