"""MMapGame as a Gymnasium environment; ``docs/reference/mmap-game.md`` describes observations, actions and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsFloat, SupportsInt, TypeAlias, cast, get_args

import gymnasium
import numpy as np
import numpy.typing as npt

from stowplan.learned_guidance.environments import Given, ProblemSource, check_choice
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.learned_guidance.memory_mapping.game.programs import demo_problem
from stowplan.learned_guidance.memory_mapping.observation.layout import ObservationConfig
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer, empty_observations
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def as_text(
    problem: Problem,
    residencies: Sequence[Residency],
    copies: Sequence[Copy],
    now: int | None = None,
    *,
    rows: int = 16,
    columns: int = 72,
) -> str:
    """Text that shows the memory map, which says what each byte of fast memory holds at each step, and the copies of the
    channel. Time runs to the right, and offsets upwards.

    Each tensor has a letter, which repeats after 52 tensors; ``>`` marks copies in, ``<`` copies out, and ``^`` step ``now``
    (None marks no step). The map has ``rows`` lines of at most ``columns`` characters.
    """
    if 0 < problem.horizon < columns:
        # Every step gets the same whole number of characters.
        columns -= columns % problem.horizon
    memory = [["."] * columns for _ in range(rows)]
    channel, cursor = ["."] * columns, [" "] * columns
    for item in residencies:
        top = item.offset + problem.tensors[item.tensor].size
        letter = _LETTERS[item.tensor % len(_LETTERS)]
        for row in memory[_span(problem.capacity - top, problem.capacity - item.offset, problem.capacity, rows)]:
            span = _span(item.start, item.end, problem.horizon, columns)
            row[span] = letter * (span.stop - span.start)
    for copy in copies:
        span = _span(copy.start, copy.end, problem.horizon, columns)
        channel[span] = (">" if copy.direction == "in" else "<") * (span.stop - span.start)
    if now is not None and now < problem.horizon:
        cursor[_span(now, now, problem.horizon, columns)] = "^"
    lines = [*("memory  " + "".join(row) for row in memory), "channel " + "".join(channel), "        " + "".join(cursor)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _span(start: int, end: int, length: int, cells: int) -> slice:
    """The cells that ``[start, end)`` touches, if ``[0, length)`` is divided into ``cells`` equal cells; at least one."""
    first = min(start * cells // length, cells - 1)
    return slice(first, max(first + 1, -(-end * cells // length)))


RewardUnit = Literal["normalised", "ps"]
OnIllegal = Literal["replace", "raise"]

Observation: TypeAlias = dict[str, npt.NDArray[Any]]

#: Bound on the absolute values in an observation; nearly all are between -1 and 1.
BOUND = 1e6

#: Keys of the environment's observation whose names differ from the fields of the package's ``Observations``: Stable-Baselines3
#: makes a torch module of every key, and ``buffers`` is a method of torch modules.
KEYS = {"buffers": "buffer_features"}

#: The order in which the actions of the game (:class:`MMapGameEnv` explains them) are tried in place of an illegal one, until
#: one is legal. The action that restricts later moves least comes first.
_MOST_CAUTIOUS = (Action.DROP, Action.NOCOPY, Action.COPY)


class MMapGameEnv(gymnasium.Env[Observation, np.int64]):
    """An environment that builds a memory mapping move by move; an episode is a game on one problem.

    A move decides how one access of a tensor is served. Actions are those of
    :class:`~stowplan.learned_guidance.memory_mapping.game.game.Action`. 0 is *Copy*: from fast memory, with a copy from or to
    slow memory. 1 is *NoCopy*: from fast memory, without a copy. 2 is *Drop*: from slow memory. Until the game is over, at
    least one of them is legal; ``action_mask``, which is part of the observation and of ``info``, says which. Numbers of
    equations and sections are those of Wang et al. 2023 (arXiv:2305.07440).

    Parameters
    ----------
    problem
        A problem, the path of a problem file, or several of them, of which each episode draws one; or a function that draws a
        problem for each episode. By default, a small demo problem.
    strict_copy_windows
        Whether a copy-in must end, and a copy-out begin, directly at the access that it is for (equation 6, taken literally).
    drop_backup
        Whether the game returns to an earlier state, from which it can be finished, when no action is legal (section 4.3.2).
        Otherwise the game is lost.
    reward_unit
        ``"normalised"``: rewards add up to the fraction of the possible time saving that the plan achieves: 0 if everything is
        in slow memory, and 1 if every step has its least latency. ``"ps"``: rewards add up to the picoseconds saved.
    on_illegal
        The effect of an illegal action. ``"replace"``: Drop is played instead; if that is illegal as well, NoCopy, or else
        Copy. ``"raise"``: InvalidAction is raised, and nothing changes.
    observation
        The size of the observation: numbers of buffers, cells of the memory map and so on.
    render_mode
        ``"ansi"`` for a text of the memory map and the copy channel.

    Raises
    ------
    InputError
        A problem cannot be read or is of another kind, or ``reward_unit``, ``on_illegal`` or ``render_mode`` has no such
        choice.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 8}  # noqa: RUF012 (Gymnasium's own way)

    def __init__(
        self,
        problem: Given[Problem] = None,
        *,
        strict_copy_windows: bool = False,
        drop_backup: bool = True,
        reward_unit: RewardUnit = "normalised",
        on_illegal: OnIllegal = "replace",
        observation: ObservationConfig | None = None,
        render_mode: str | None = None,
    ):
        check_choice("reward_unit", reward_unit, get_args(RewardUnit))
        check_choice("on_illegal", on_illegal, get_args(OnIllegal))
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self._source = ProblemSource(problem, Problem, "memory-mapping", demo_problem)
        self.strict_copy_windows, self.drop_backup = strict_copy_windows, drop_backup
        self.reward_unit, self.on_illegal, self.render_mode = reward_unit, on_illegal, render_mode
        self.action_space = gymnasium.spaces.Discrete(len(Action))
        self._config = ObservationConfig() if observation is None else observation
        self.observation_space = _observation_space(self._config)
        self._observer: Observer | None = None
        self._state: CompiledState | None = None
        self._mask = np.zeros(len(Action), np.bool_)
        self._is_over = True

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that episodes are drawn from; empty if a function draws them."""
        return self._source.problems

    @property
    def problem(self) -> Problem:
        """The problem of the current episode; raises ResetNeeded before the first."""
        return self._current_state().game.problem

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin a game.

        Parameters
        ----------
        seed
            Seed of the draws among several problems; the game itself is deterministic.
        options
            ``{"problem": ...}`` plays this episode on that problem: a number in the environment's list, a problem or a path.

        Raises
        ------
        InputError
            There is another option, or its value is not a problem that can be read.
        """
        super().reset(seed=seed)
        # A game is prepared when it is first played and then kept, because preparing it takes longer than playing it.
        self._observer = self._source.made(options or {}, self.np_random, self._new_game)
        self._state = self._observer.game.reset()
        self._is_over = False
        # A program without accesses has no moves. As an episode needs a step, it gets a Drop without effect.
        self._mask = np.array([False, False, True]) if self._state.is_over else self._state.legal
        return self._observation(), self._info(is_illegal=False)

    def step(self, action: SupportsInt) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Make a move.

        Returns
        -------
        tuple
            Observation, reward, whether the game is over, False (nothing cuts an episode short), and ``info``, whose keys
            ``docs/reference/mmap-game.md`` lists.

        Raises
        ------
        InvalidAction
            The value is no action; or the action is illegal, and ``on_illegal`` is ``"raise"``.
        ResetNeeded
            No game has begun, or the game is over.
        """
        state = self._current_state()
        if self._is_over:
            raise gymnasium.error.ResetNeeded("the game is over: call reset() before step()")
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(f"found action {action!r}, expected 0, 1 or 2")
        chosen, reward_ps = int(action), 0
        is_illegal = not self._mask[chosen]
        if is_illegal and self.on_illegal == "raise":
            raise gymnasium.error.InvalidAction(f"{Action(chosen).name} is not legal in move {state.position}")
        if not state.is_over:
            cautious = next(action for action in _MOST_CAUTIOUS if self._mask[action])
            reward_ps = state.step(cautious if is_illegal else chosen)
        self._mask, self._is_over = state.legal, state.is_over
        return self._observation(), reward_ps / self._unit_ps(), self._is_over, False, self._info(is_illegal=is_illegal)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal, bool of shape (3,). MaskablePPO of sb3-contrib calls the method by this name.

        Raises ResetNeeded before the first game.
        """
        self._current_state()
        return self._mask.copy()

    def plan(self) -> Plan:
        """The plan of a finished game; if the game was lost, everything is in slow memory.

        Raises ValueError before the end of the game, and ResetNeeded before the first game.
        """
        return self._current_state().plan()

    def render(self) -> str | None:
        """The memory map and the copy channel so far, if ``render_mode`` is ``"ansi"``; otherwise None.

        Raises ResetNeeded before the first game.
        """
        state = self._current_state()
        now = None if state.is_over else state.game.moves[state.position].start
        if self.render_mode != "ansi":
            return None
        return self._heading() + as_text(self.problem, state.residencies, state.copies, now)

    def _heading(self) -> str:
        """A line about the game for :meth:`render`: its progress, its return, and the next move with its legal actions."""
        state, problem = self._current_state(), self.problem
        earned = "lost" if state.is_lost else f"R {problem.normalised_return(problem.all_slow_ps - state.return_ps):.3f}"
        moves = f"{problem.name}: move {state.position} of {len(state.game.moves)}, {earned}"
        if self._is_over or state.is_over:
            return f"{moves}, over\n"
        move = state.game.moves[state.position]
        role = "output" if move.is_output else "input"
        legal = ", ".join(action.name for action in Action if self._mask[action])
        return f"{moves}; next: {role} {problem.tensors[move.tensor].name} of step {move.start}: {legal}\n"

    def _current_state(self) -> CompiledState:
        """The state of the latest game, which may be over; raises ResetNeeded before the first game."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("no game has begun: call reset() first")
        return self._state

    def _new_game(self, problem: Problem) -> Observer:
        """The observer of a new game on a problem."""
        game = CompiledGame(problem, strict_copy_windows=self.strict_copy_windows, drop_backup=self.drop_backup)
        return Observer(game, self._config)

    def _observation(self) -> Observation:
        """The current observation; all zero once the game is over."""
        observer, state = self._observer, self._current_state()
        seen = empty_observations(self._config, 1)
        if observer is not None and not state.is_over:
            observer.observe(state, seen, 0)
        result = {KEYS.get(name, name): array[0] for name, array in seen._asdict().items()}
        for array in result.values():
            if array.dtype == np.float32:
                np.clip(array, -BOUND, BOUND, out=array)
        return {**result, "action_mask": self._mask.astype(np.int8)}

    def _unit_ps(self) -> int:
        """Picoseconds that a reward of 1 stands for."""
        if self.reward_unit == "ps":
            return 1
        # If fast memory can save nothing, a reward of 1 stands for the whole latency.
        span = self.problem.all_slow_ps - self.problem.floor_ps
        return span if span > 0 else max(1, self.problem.all_slow_ps)

    def _info(self, *, is_illegal: bool) -> dict[str, Any]:
        """The ``info`` that Gymnasium's ``step`` and ``reset`` return, with the plan once the game is over."""
        state = self._current_state()
        info = {
            "action_mask": self._mask.astype(np.int8),
            "return_ps": state.return_ps,
            "resets": state.resets,
            "illegal": is_illegal,
        }
        if self._is_over:
            plan = self.plan()
            info["plan"], info["objective_ps"] = plan, plan.objective
            info["normalised_return"] = self.problem.normalised_return(plan.objective)
            info["lost"] = state.is_lost
        return info


def _observation_space(config: ObservationConfig) -> gymnasium.Space[Observation]:
    spaces: dict[str, gymnasium.Space[Any]] = {"action_mask": gymnasium.spaces.MultiBinary(len(Action))}
    for name, array in empty_observations(config, 1)._asdict().items():
        low, high = (0, 255) if array.dtype == np.uint8 else (-BOUND, BOUND)
        spaces[KEYS.get(name, name)] = gymnasium.spaces.Box(low, high, array.shape[1:], array.dtype)
    # Gymnasium annotates a Dict as a space of dictionaries whose values are spaces, although its samples contain arrays.
    return cast("gymnasium.Space[Observation]", gymnasium.spaces.Dict(spaces))
