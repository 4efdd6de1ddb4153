"""MMapGame as a Gymnasium environment; ``docs/mmap-game.md``, section Gymnasium, says what is seen, done and earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, SupportsFloat, SupportsInt, TypeAlias, cast, get_args

import gymnasium
import numpy as np
import numpy.typing as npt

from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.demo import demo_problem
from stowplan.learned_guidance.memory_mapping.game import Action
from stowplan.learned_guidance.memory_mapping.kernel import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.picture import Picture, as_pixels, as_text
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem, load

RewardUnit = Literal["normalised", "ps"]
OnIllegal = Literal["replace", "lose", "raise"]

ProblemSource: TypeAlias = Problem | str | Path
"""A problem, or the path of a problem file (``stowplan convert`` writes them)."""

Observation: TypeAlias = dict[str, npt.NDArray[Any]]
Mask: TypeAlias = npt.NDArray[np.int8]

#: What is played instead of an illegal action: the first of these that is legal. It commits to least.
_MOST_CAUTIOUS = (Action.DROP, Action.NOCOPY, Action.COPY)


class MMapGameEnv(gymnasium.Env[Observation, np.int64]):
    """A memory mapping, built move by move; an episode is one game on one problem.

    Actions are those of :class:`~stowplan.learned_guidance.memory_mapping.game.Action`: 0 Copy, 1 NoCopy, 2 Drop. At least
    one of them is legal until the game is over: see ``action_mask``, which is part of the observation and of ``info``.

    Parameters
    ----------
    problem
        A problem, the path of a problem file, or several of them: each episode draws one. Without any, a small demo.
    strict_copy_windows
        Copies end, and begin, right at their use (equation 6 to the letter).
    drop_backup
        Where no action is left, go back instead of losing the game (section 4.3.2).
    reward_unit
        ``"normalised"``: rewards sum to the normalised return, 1 where all is fast. ``"ps"``: picoseconds saved.
    on_illegal
        What an action outside the mask does. ``"replace"``: Drop is played instead, or where that is not legal either, NoCopy,
        or else Copy. ``"lose"``: the episode ends, and its last reward takes back all before. ``"raise"``: InvalidAction, and
        nothing changes.
    render_mode
        ``"rgb_array"`` or ``"ansi"``: the memory map and the copy channel.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}  # noqa: RUF012 (Gymnasium's own way)

    def __init__(
        self,
        problem: ProblemSource | Sequence[ProblemSource] | None = None,
        *,
        strict_copy_windows: bool = False,
        drop_backup: bool = True,
        reward_unit: RewardUnit = "normalised",
        on_illegal: OnIllegal = "replace",
        render_mode: str | None = None,
    ):
        _check_choice("reward_unit", reward_unit, get_args(RewardUnit))
        _check_choice("on_illegal", on_illegal, get_args(OnIllegal))
        _check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.problems = _problems(problem)
        """What episodes are drawn from."""
        self.strict_copy_windows, self.drop_backup = strict_copy_windows, drop_backup
        self.reward_unit, self.on_illegal, self.render_mode = reward_unit, on_illegal, render_mode
        self.action_space = gymnasium.spaces.Discrete(len(Action))
        self.observation_space = _observation_space()
        # Games are made when first played: making one takes longer than playing it.
        self._games: list[CompiledGame | None] = [None] * len(self.problems)
        self._state: CompiledState | None = None
        self._is_over = True
        self._is_forfeited = False

    @property
    def problem(self) -> Problem:
        """What the present episode is played on; ResetNeeded before the first."""
        return self._playing().game.problem

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin a game.

        Parameters
        ----------
        seed
            Of the draws among several problems; the game itself has no chance in it.
        options
            ``{"problem": ...}`` plays this episode on that problem: a number in the environment's list, a problem or a path.
        """
        super().reset(seed=seed)
        self._state = self._choose(options or {}).reset()
        self._is_over = self._is_forfeited = False
        return self._observation(), self._info(is_illegal=False)

    def step(self, action: SupportsInt) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Make the move; InvalidAction for what is no action, ResetNeeded where no game is under way."""
        state = self._playing()
        if self._is_over:
            raise gymnasium.error.ResetNeeded("the game is over: call reset() before step()")
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(f"found action {action!r}, expected 0, 1 or 2")
        chosen = Action(int(action))
        is_illegal = not self.action_masks()[chosen]
        reward_ps = 0
        if is_illegal and self.on_illegal == "raise":
            raise gymnasium.error.InvalidAction(f"{chosen.name} is not legal in move {state.position}")
        if is_illegal and self.on_illegal == "lose":
            self._is_forfeited, reward_ps = True, -state.return_ps
        elif not state.is_over:
            reward_ps = state.step(self._most_cautious() if is_illegal else chosen)
        self._is_over = self._is_forfeited or state.is_over
        reward = reward_ps / _unit_ps(self.problem) if self.reward_unit == "normalised" else float(reward_ps)
        return self._observation(), reward, self._is_over, False, self._info(is_illegal=is_illegal)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal, bool of shape (3,); the name by which sb3-contrib's MaskablePPO asks for it."""
        state = self._playing()
        if self._is_forfeited:
            return np.zeros(len(Action), np.bool_)
        if state.is_over and not self._is_over:
            # A program without uses has no moves, but an episode has a step: one that does nothing.
            return np.array([False, False, True])
        return state.legal

    def plan(self) -> Plan:
        """The plan of a game that is over; ValueError before. A lost game's plan keeps everything in slow memory."""
        if self._is_forfeited:
            problem = self.problem
            return Plan(problem=problem.digest, objective_ps=problem.all_slow_ps, program=problem.name, target=problem.target)
        return self._playing().plan()

    def render(self) -> Picture | str | None:
        """The memory map and the copy channel so far, as ``render_mode`` asks; None without one."""
        state = self._playing()
        now = None if state.is_over else state.game.moves[state.position].start
        if self.render_mode == "rgb_array":
            return as_pixels(self.problem, state.residencies, state.copies, now)
        if self.render_mode == "ansi":
            return self._heading() + as_text(self.problem, state.residencies, state.copies, now)
        return None

    def _heading(self) -> str:
        state, problem = self._playing(), self.problem
        earned = (
            "lost"
            if self._is_forfeited or state.is_lost
            else f"R {problem.normalised_return(problem.all_slow_ps - state.return_ps):.3f}"
        )
        moves = f"{problem.name}: move {state.position} of {len(state.game.moves)}, {earned}"
        if self._is_over or state.is_over:
            return f"{moves}, over\n"
        move, mask = state.game.moves[state.position], self.action_masks()
        role = "output" if move.is_output else "input"
        legal = ", ".join(action.name for action in Action if mask[action])
        return f"{moves}; next: {role} {problem.tensors[move.tensor].name} of step {move.start}: {legal}\n"

    def _playing(self) -> CompiledState:
        if self._state is None:
            raise gymnasium.error.ResetNeeded("no game has begun: call reset() first")
        return self._state

    def _choose(self, options: Mapping[str, Any]) -> CompiledGame:
        """The game of the next episode."""
        unknown = sorted(set(options) - {"problem"})
        if unknown:
            raise InputError(f"found reset option {unknown[0]!r}, expected 'problem'")
        wanted = options.get("problem")
        if wanted is None:
            wanted = int(self.np_random.integers(len(self.problems))) if len(self.problems) > 1 else 0
        if not isinstance(wanted, int):
            return self._new_game(_read(wanted))
        if not 0 <= wanted < len(self.problems):
            raise InputError(f"found problem {wanted}, expected 0 to {len(self.problems) - 1}")
        game = self._games[wanted]
        if game is None:
            game = self._games[wanted] = self._new_game(self.problems[wanted])
        return game

    def _new_game(self, problem: Problem) -> CompiledGame:
        return CompiledGame(problem, strict_copy_windows=self.strict_copy_windows, drop_backup=self.drop_backup)

    def _most_cautious(self) -> Action:
        mask = self.action_masks()
        return next(action for action in _MOST_CAUTIOUS if mask[action])

    def _observation(self) -> Observation:
        state = self._playing()
        done = state.position / max(1, len(state.game.moves))
        return {"globals": np.array([done], np.float32), "action_mask": self.action_masks().astype(np.int8)}

    def _info(self, *, is_illegal: bool) -> dict[str, Any]:
        state = self._playing()
        info = {
            "action_mask": self.action_masks().astype(np.int8),
            "return_ps": 0 if self._is_forfeited else state.return_ps,
            "resets": state.resets,
            "illegal": is_illegal,
        }
        if self._is_over:
            plan = self.plan()
            info["plan"], info["objective_ps"] = plan, plan.objective_ps
            info["normalised_return"] = self.problem.normalised_return(plan.objective_ps)
            info["lost"] = self._is_forfeited or state.is_lost
        return info


def _observation_space() -> gymnasium.Space[Observation]:
    spaces = {
        "globals": gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),
        "action_mask": gymnasium.spaces.MultiBinary(len(Action)),
    }
    # Gymnasium declares a Dict as a space of dictionaries of spaces.
    return cast("gymnasium.Space[Observation]", gymnasium.spaces.Dict(spaces))


def _problems(given: ProblemSource | Sequence[ProblemSource] | None) -> tuple[Problem, ...]:
    if given is None:
        return (demo_problem(),)
    if isinstance(given, str) or not isinstance(given, Sequence):
        return (_read(given),)
    problems = tuple(_read(each) for each in given)
    if not problems:
        raise InputError("found no problems, expected at least one")
    return problems


def _read(source: ProblemSource) -> Problem:
    if isinstance(source, Problem):
        return source
    if isinstance(source, (str, Path)):
        return load(source)
    raise InputError(
        f"found a problem of type {type(source).__name__}, expected a memory-mapping Problem or the path of its file"
    )


def _unit_ps(problem: Problem) -> int:
    """Picoseconds that a normalised reward of 1 stands for; where fast memory saves nothing, the whole latency."""
    span = problem.all_slow_ps - problem.all_fast_ps
    return span if span > 0 else max(1, problem.all_slow_ps)


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise InputError(f"found {name}={value!r}, expected one of {', '.join(map(repr, choices))}")
