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

#: What a placement earns that is illegal, or after which nothing is legal; a mapping at the bounds earns -1.
FAILURE = -3.0

#: Intervals above the least of the bounds that the action space has room for, unless limits are given.
SLACK = 8

#: Problems that are drawn for an episode at most, until there is one that can be begun.
MOST_DRAWS = 20


class ModuloSchedulingEnv(gymnasium.Env[Observation, np.int64]):
    """A loop body on a machine of tiles; an episode is one mapping, a step the place of one instruction.

    Actions are ``tile * slots + slot``, of ``limits.tiles`` tiles and ``limits.slots`` slots; :meth:`action_masks` has the
    legal ones. Any other ends the episode like a mapping that gets stuck.

    Parameters
    ----------
    problem
        A problem, the path of a problem file, or several of them, of which each episode draws one; or a function that draws a
        problem for each episode. Without any, the distance kernel.
    ii
        Initiation interval (II) of the episodes. Without it, it begins at the least that the bounds leave, is one more after an
        episode of the problem that failed, one less after one that did not.
    first
        What counts first: cycles between iterations (``"ii"``), or those of one (``"latency"``).
    iterations
        Iterations N that count: a complete mapping earns ``-((N - 1) * II + makespan)`` over the same with the critical path
        for a makespan, so that -1 is the most. Where the latency is first, II and makespan change places.
    shaping
        ``"placed"``: a failure (:data:`FAILURE`) earns more, by the part of the instructions that are placed.
    look_ahead
        Whether masks leave out what leaves another instruction without a tile
        (:class:`~stowplan.learned_guidance.modulo_scheduling.state.Mapping`).
    limits
        Sizes of the spaces. Without them, those of the largest problem, with ``SLACK`` more slots than the bounds ask for; a
        function needs them.
    render_mode
        ``"ansi"``: which instruction stands where.

    Raises
    ------
    InputError
        A problem without instructions, that cannot be mapped, or larger than the spaces; an option that there is not.
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
        # Gymnasium declares a Dict as a space of dictionaries of spaces.
        self.observation_space = cast("gymnasium.Space[Observation]", observation_space(limits))
        self._goals: dict[str, _Goal] = {}
        #: II of the next episode of each problem, by digest.
        self._next_ii: dict[str, int] = defaultdict(int)
        for given in problems:
            self._goal(given)
        self._mapping: Mapping | None = None
        self._ended = False

    def _most_ii(self, problem: Problem) -> int:
        depth = problem.machine.spoke_depth
        return min(depth, least_ii(problem) + SLACK if self.ii is None else self.ii)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What episodes are drawn from; none where a function draws them."""
        return self._source.problems

    @property
    def mapping(self) -> Mapping:
        """What is placed; ResetNeeded before the first episode."""
        if self._mapping is None:
            raise gymnasium.error.ResetNeeded("no episode has begun: call reset() first")
        return self._mapping

    @property
    def problem(self) -> Problem:
        """What the present episode maps; ResetNeeded before the first."""
        return self.mapping.problem

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """[tiles * slots] Which actions are legal, under the name that sb3-contrib asks for."""
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
            Of the draws among several problems; intervals that rise begin at the least again.
        options
            ``problem``: map this one, a number in the environment's list, a problem or a path. ``ii``: at this interval.
            ``fixed``: begin with these instructions placed, ``{id: (tile, slot)}``.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._next_ii.clear()
        given = dict(options or {})
        unknown = sorted(set(given) - {"problem", "ii", "fixed"})
        if unknown:
            raise InputError(f"found reset option {unknown[0]!r}, expected 'problem', 'ii' or 'fixed'")
        ii, fixed = given.pop("ii", None), given.pop("fixed", None)
        # Of graphs drawn at random a few cannot be begun at any interval: the next one can.
        is_drawn = self._source.draw is not None and given.get("problem") is None
        for _ in range(MOST_DRAWS if is_drawn else 1):
            chosen = self._source.choose(given, self.np_random)
            problem = chosen if isinstance(chosen, Problem) else self.problems[chosen]
            stuck = self._begin(problem, ii, fixed)
            if stuck is None:
                break
        else:
            raise InputError(f"{problem.name or 'the problem'}: nothing can be placed at II {stuck}")
        self._ended = self.mapping.current < 0
        return self._observation(), self._info()

    def _begin(self, problem: Problem, ii: Any, fixed: Any) -> int | None:
        """Begin to map a problem; the last interval tried, where nothing can be placed at it."""
        goal = self._goal(problem)
        wanted = self._interval(goal) if ii is None else whole("ii {}", ii, 1)
        if wanted > self.limits.slots:
            raise InputError(
                f"found an initiation interval of {wanted}, expected {self.limits.slots} at most, as the spaces have"
            )
        self._mapping = Mapping(goal.body, wanted, fixed=fixed, look_ahead=self.look_ahead)
        while self._mapping.stuck:
            # Nothing that is placed is to blame: this II is none for this problem.
            wanted += 1
            if ii is not None or fixed or self.ii is not None or wanted > min(self.limits.slots, problem.machine.spoke_depth):
                return wanted - 1
            goal.least = wanted
            self._mapping = Mapping(goal.body, wanted, look_ahead=self.look_ahead)
        return None

    def step(self, action: npt.ArrayLike) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Place an instruction; InvalidAction for what is no action, ResetNeeded where no episode is under way."""
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
            except ValueError:  # values from the asynchronous fabric that do not fit: a failure as any other
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
        """The plan of the complete mapping; ValueError before it is."""
        return self.mapping.plan()

    def render(self) -> str | None:
        """Tiles and what stands in their slots, as ``render_mode`` asks. None without a mode."""
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
        """What a problem is measured by; InputError where it is not of these spaces."""
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
        if self.ii is not None:
            return self.ii
        most = min(self.limits.slots, goal.body.problem.machine.spoke_depth)
        return min(max(goal.least, self._next_ii[goal.key]), most)

    def _cost(self, goal: _Goal, ii: int, makespan: int) -> float:
        """Cycles of all iterations, over those with an iteration as short as its critical path."""
        rounds = self.iterations - 1
        if self.first == "latency":
            return (rounds * makespan + ii) / (rounds * goal.path + ii)
        return (rounds * ii + makespan) / (rounds * ii + goal.path)

    def _observation(self) -> Observation:
        # Observations share what is static; Gymnasium's users may keep and change theirs.
        return {name: values.copy() for name, values in observe(self.mapping, self.limits).items()}

    def _info(self) -> dict[str, Any]:
        mapping = self.mapping
        return {"ii": mapping.ii, "placed": mapping.placed, "makespan": mapping.makespan}


#: Problems whose measures are kept, where a function draws them.
_MOST_KEPT = 1024


class _Goal:
    """What a problem is measured by."""

    def __init__(self, problem: Problem):
        obstacle = "found no instructions, expected some" if not problem.instructions else find_obstacle(problem)
        if obstacle is not None:
            raise InputError(f"{problem.name or 'the problem'}: {obstacle}")
        self.key = problem.digest
        self.body = Body(problem)
        self.least = least_ii(problem, self.body.structure)
        self.path = critical_path(problem, self.body.structure)


def demo_problem() -> Problem:
    """Three points' squared distances to a centre, on the Streaming Engine."""
    return Problem.load(str(resources.files("stowplan.learned_guidance.modulo_scheduling") / "demo.json"))
