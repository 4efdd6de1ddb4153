"""Modulo scheduling as a Gymnasium environment; see ``docs/reference/ppo.md``, section Environment."""

from __future__ import annotations

from collections import defaultdict
from importlib import resources
from typing import Any, Literal, SupportsFloat, cast, get_args

import gymnasium
import numpy as np
import numpy.typing as npt

from stowplan.arguments import whole
from stowplan.errors import InputError
from stowplan.learned_guidance.environments import Given, ProblemSource, check_choice
from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.observation import Observation, observation_space, observe
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.learned_guidance.modulo_scheduling.view import Limits
from stowplan.models.modulo_scheduling.bounds import critical_path, find_obstacle, least_ii
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

First = Literal["ii", "latency"]
Shaping = Literal["none", "placed"]

#: Iterations whose cycles the reward counts.
ITERATIONS = 16

#: Reward of an illegal placement, or of one after which no place is legal. It is less than the reward of nearly all complete
#: mappings; the best mapping earns at most -1.
FAILURE = -3.0

#: The action space allows intervals up to this much above the lower bound, unless limits are given.
SLACK = 8

#: Largest number of problems that are drawn for an episode until one is found in which an instruction can be placed.
MOST_DRAWS = 20


class ModuloSchedulingEnv(gymnasium.Env[Observation, np.int64]):
    """Maps a loop body to a machine of tiles. An episode is one mapping; a step places one instruction.

    Actions are ``tile * slots + slot``, with ``limits.tiles`` tiles and ``limits.slots`` slots. :meth:`action_masks` returns
    the legal ones. Any other action ends the episode, like a mapping without a legal place.

    Parameters
    ----------
    problem
        A problem, the path of a problem file, several of these, from which each episode draws one, or a function that returns a
        problem for each episode. The default is :func:`demo_problem`.
    ii
        Initiation interval (II) of the episodes. By default it begins at the lower bound. It rises by 1 after a failed episode
        of the problem and falls by 1 after a successful one.
    first
        The first objective: cycles between iterations (``"ii"``) or cycles of one iteration (``"latency"``).
    iterations
        Number N of iterations in the reward: a complete mapping earns ``-((N - 1) * II + makespan)``, divided by the same
        expression with the critical path as makespan, so that the largest reward is -1. If the latency is the first objective,
        II and makespan are exchanged.
    shaping
        ``"placed"``: a failure (:data:`FAILURE`) earns more the larger the fraction of placed instructions.
    look_ahead
        Whether masks exclude places that leave another instruction without a tile
        (:class:`~stowplan.learned_guidance.modulo_scheduling.state.Mapping`).
    limits
        Sizes of the spaces. The default fits the largest problem, with ``SLACK`` more slots than the lower bound of II. A
        function as ``problem`` requires them.
    render_mode
        ``"ansi"``: a table of the instructions on tiles and slots.

    Raises
    ------
    InputError
        If a problem has no instructions, cannot be mapped, or is larger than the spaces. If an option is unknown. If a function
        draws the problems and there are no ``limits``.
    UsageError
        If ``ii`` or ``iterations`` is not a whole number of at least 1.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's own way)

    def __init__(
        self,
        problem: Given[Problem] = None,
        *,
        ii: int | None = None,
        first: First = "ii",
        iterations: int = ITERATIONS,
        shaping: Shaping = "none",
        look_ahead: bool = True,
        limits: Limits | None = None,
        render_mode: str | None = None,
    ):
        check_choice("first", first, get_args(First))
        check_choice("shaping", shaping, get_args(Shaping))
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self._source = ProblemSource(problem, Problem, "modulo-scheduling", demo_problem)
        self.ii = None if ii is None else whole("ii {}", ii, 1)
        self.first, self.iterations = first, whole("iterations {}", iterations, 1)
        self.shaping, self.look_ahead, self.render_mode = shaping, look_ahead, render_mode
        problems = self._source.problems
        if limits is None:
            if not problems:
                raise InputError("found a function that draws problems, expected limits=, the sizes of the spaces, beside it")
            limits = Limits.of(problems, max(self._most_ii(given) for given in problems))
        self.limits = limits
        self.action_space = gymnasium.spaces.Discrete(limits.tiles * limits.slots)
        # Gymnasium's annotation makes a Dict a space of dictionaries of spaces.
        self.observation_space = cast("gymnasium.Space[Observation]", observation_space(limits))
        self._goals: dict[str, _Goal] = {}
        #: II of the next episode of each problem, by digest.
        self._next_ii: dict[str, int] = defaultdict(int)
        for given in problems:
            self._goal(given)
        self._mapping: Mapping | None = None
        self._ended = False

    def _most_ii(self, problem: Problem) -> int:
        """Largest initiation interval for which the spaces must have slots."""
        depth = problem.machine.spoke_depth
        return min(depth, least_ii(problem) + SLACK if self.ii is None else self.ii)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that episodes are drawn from; empty if a function draws them."""
        return self._source.problems

    @property
    def mapping(self) -> Mapping:
        """The mapping of the current episode; raises ResetNeeded before the first episode."""
        if self._mapping is None:
            raise gymnasium.error.ResetNeeded("no episode has begun: call reset() first")
        return self._mapping

    @property
    def problem(self) -> Problem:
        """The problem of the current episode; raises ResetNeeded before the first episode."""
        return self.mapping.problem

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return the legal actions [tiles * slots]; raise ResetNeeded before the first episode. sb3-contrib calls a method of
        this name."""
        mapping, limits = self.mapping, self.limits
        legal = np.zeros((limits.tiles, limits.slots), bool)
        mask = mapping.mask()
        legal[: mask.shape[0], : mask.shape[1]] = mask
        return legal.reshape(-1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin a mapping.

        Parameters
        ----------
        seed
            Seed of the draws among several problems. It also resets the intervals to their lower bounds.
        options
            ``problem``: the problem to map, as an index in the environment's list, a problem or a path. ``ii``: the interval.
            ``fixed``: instructions that are placed at the beginning, ``{id: (tile, slot)}``.

        Raises
        ------
        InputError
            If an option is unknown or has no valid value, or if no instruction can be placed.
        UsageError
            If the option ``ii`` is not a whole number of at least 1.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._next_ii.clear()
        other_options = dict(options or {})
        unknown = sorted(set(other_options) - {"problem", "ii", "fixed"})
        if unknown:
            raise InputError(f"found reset option {unknown[0]!r}, expected 'problem', 'ii' or 'fixed'")
        ii, fixed = other_options.pop("ii", None), other_options.pop("fixed", None)
        # A few random graphs cannot be begun at any interval; another one is drawn for them.
        is_drawn = self._source.draw is not None and other_options.get("problem") is None
        for _ in range(MOST_DRAWS if is_drawn else 1):
            chosen = self._source.choose(other_options, self.np_random)
            problem = chosen if isinstance(chosen, Problem) else self.problems[chosen]
            stuck = self._begin(problem, ii, fixed)
            if stuck is None:
                break
        else:
            raise InputError(f"{problem.name or 'the problem'}: nothing can be placed at II {stuck}")
        self._ended = self.mapping.current < 0
        return self._observation(), self._info()

    def _begin(self, problem: Problem, ii: Any, fixed: Any) -> int | None:
        """Begin to map a problem. If no interval allows a placement, return the last interval tried."""
        goal = self._goal(problem)
        wanted = self._interval(goal) if ii is None else whole("ii {}", ii, 1)
        if wanted > self.limits.slots:
            raise InputError(
                f"found an initiation interval of {wanted}, expected {self.limits.slots} at most, as the spaces have"
            )
        self._mapping = Mapping(goal.body, wanted, fixed=fixed, look_ahead=self.look_ahead)
        while self._mapping.stuck:
            # No instruction is placed yet, so this II is too small for the problem.
            wanted += 1
            if ii is not None or fixed or self.ii is not None or wanted > min(self.limits.slots, problem.machine.spoke_depth):
                return wanted - 1
            goal.least = wanted
            self._mapping = Mapping(goal.body, wanted, look_ahead=self.look_ahead)
        return None

    def step(self, action: npt.ArrayLike) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Place an instruction; raise InvalidAction if the action is outside the space, ResetNeeded without an episode."""
        mapping = self.mapping
        if self._ended:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        chosen = np.asarray(action)
        if chosen.shape != () or not self.action_space.contains(chosen[()]):
            raise gymnasium.error.InvalidAction(
                f"found the action {action!r}, expected 0 to {self.limits.tiles * self.limits.slots - 1}"
            )
        goal = self._goal(mapping.problem)
        legal = bool(self.action_masks()[int(chosen)])
        if legal:
            mapping.place(*divmod(int(chosen), self.limits.slots))
        plan = None
        if mapping.current < 0:
            try:
                plan = mapping.plan()
            except ValueError:  # Values from the asynchronous fabric do not fit: the mapping has failed.
                legal = False
        failed = not legal or mapping.stuck
        info = self._info()
        if failed:
            reward = FAILURE + (mapping.placed / mapping.body.count if self.shaping == "placed" else 0.0)
        elif plan is not None:
            info |= {"plan": plan, "makespan": plan.makespan}
            reward = -self._cost(goal, plan.ii, plan.makespan)
        else:
            reward = 0.0
        self._ended = failed or mapping.current < 0
        if self._ended:
            info["failed"] = failed
            self._next_ii[goal.key] = mapping.ii + 1 if failed else mapping.ii - 1
        return self._observation(), reward, self._ended, False, info

    def plan(self) -> Plan:
        """Return the plan of the complete mapping; raise ValueError if it is not complete, or if its values from the
        asynchronous fabric do not fit into the memories of tiles, and ResetNeeded before the first episode."""
        return self.mapping.plan()

    def render(self) -> str | None:
        """Return a table of the instructions on tiles and slots; None without ``render_mode``. Raise ResetNeeded before the
        first episode."""
        mapping = self.mapping
        if self.render_mode != "ansi":
            return None
        at = {
            (int(mapping.tile[number]), int(mapping.slot[number])): instruction.id
            for number, instruction in enumerate(mapping.problem.instructions)
            if mapping.tile[number] >= 0
        }
        width = max(len(name) for name in ["-", *at.values()])
        placed = f"{mapping.placed} of {mapping.body.count} instructions, {mapping.makespan} clocks"
        lines = [f"{mapping.problem.name}: II {mapping.ii}, {placed}"]
        lines += [
            f"  tile {tile:2}: {' '.join(at.get((tile, slot), '-').ljust(width) for slot in range(mapping.ii))}"
            for tile in range(mapping.body.tiles)
        ]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _goal(self, problem: Problem) -> _Goal:
        """Return the bounds of a problem; raise InputError if it does not fit the spaces."""
        goal = self._goals.get(problem.digest)
        if goal is None:
            if len(self._goals) >= _MOST_KEPT:
                self._goals.pop(next(iter(self._goals)))
            goal = self._goals[problem.digest] = _Goal(problem)
            if goal.least > self.limits.slots:
                raise InputError(
                    f"found {problem.name or 'a problem'} of II {goal.least} or more, expected {self.limits.slots} at most"
                )
        return goal

    def _interval(self, goal: _Goal) -> int:
        """The initiation interval of the next episode of a problem."""
        if self.ii is not None:
            return self.ii
        most = min(self.limits.slots, goal.body.problem.machine.spoke_depth)
        return min(max(goal.least, self._next_ii[goal.key]), most)

    def _cost(self, goal: _Goal, ii: int, makespan: int) -> float:
        """Return the cycles of all iterations, divided by the same expression with the critical path as makespan."""
        rounds = self.iterations - 1
        if self.first == "latency":
            return (rounds * makespan + ii) / (rounds * goal.path + ii)
        return (rounds * ii + makespan) / (rounds * ii + goal.path)

    def _observation(self) -> Observation:
        """The observation of the current mapping, in arrays of its own."""
        # The observations of a graph share static arrays, but a Gymnasium user may change an observation.
        return {name: values.copy() for name, values in observe(self.mapping, self.limits).items()}

    def _info(self) -> dict[str, Any]:
        """The ``info`` of ``step`` and ``reset`` that does not depend on the end of the episode."""
        mapping = self.mapping
        return {"ii": mapping.ii, "placed": mapping.placed, "makespan": mapping.makespan}


#: Number of problems whose bounds are cached, if a function draws the problems.
_MOST_KEPT = 1024


class _Goal:
    """Bounds of a problem, with which rewards are computed."""

    def __init__(self, problem: Problem):
        obstacle = "found no instructions, expected some" if not problem.instructions else find_obstacle(problem)
        if obstacle is not None:
            raise InputError(f"{problem.name or 'the problem'}: {obstacle}")
        self.key = problem.digest
        self.body = Body(problem)
        self.least = least_ii(problem, self.body.structure)
        """Least initiation interval at which an instruction can be placed, as far as it is known."""
        self.path = critical_path(problem, self.body.structure)
        """Clocks of the critical path, a lower bound on the makespan."""


def demo_problem() -> Problem:
    """Return a demo problem: squared distances of three points to a centre, on the Streaming Engine."""
    return Problem.load(str(resources.files("stowplan.learned_guidance.modulo_scheduling") / "demo.json"))
