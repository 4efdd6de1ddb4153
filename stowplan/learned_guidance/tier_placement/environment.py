"""Tier placement as a Gymnasium environment; see ``docs/reference/tier-placement.md``, section Gymnasium."""

from __future__ import annotations

from importlib import resources
from typing import Any, NamedTuple, SupportsFloat, TypeAlias, cast, get_args

import gymnasium
import numpy as np
import numpy.typing as npt

from stowplan.arguments import whole
from stowplan.errors import InputError
from stowplan.hardware.nnp_i.chip import Chip, Evaluation
from stowplan.learned_guidance.environments import Given, ProblemSource, check_choice
from stowplan.learned_guidance.tier_placement.graph import BOUND, FeatureSet, Graph, columns, graph_of
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

Observation: TypeAlias = dict[str, npt.NDArray[Any]]

#: Default sizes of the spaces if a function draws the problems: edges (in both directions) for each layer, and tiers.
EDGES_A_LAYER, TIERS = 8, 3


class _Placed(NamedTuple):
    """A problem with its chip, its graph, and the mask of existing tensors, int8 [N, 2]."""

    problem: Problem
    chip: Chip
    graph: Graph
    mask: npt.NDArray[np.int8]


class TierPlacementEnv(gymnasium.Env[Observation, npt.NDArray[np.int64]]):
    """Places a network on a simulated chip. An episode has one step, the proposal of a complete memory map.

    The reward is 5 times that of algorithm 1 of Khadka et al. If the compiler moved no tensor of the proposal to another tier,
    it is the speedup over the compiler's own map. Otherwise it is minus the fraction of the bytes that the compiler moved.

    An action has 2N tiers: entry ``2 i`` for the weights of layer i and entry ``2 i + 1`` for its output.

    Parameters
    ----------
    problem
        A problem, the path of a problem file, several of these, from which each episode draws one, or a function that returns a
        problem for each episode. The default is a small generated network.
    features
        Node features: ``"paper"``, or ``"chip"``, which also describe the chip.
    noise
        Standard deviation of measurements, relative to the latency: 0 to less than 1.
    layers, edges, tiers
        Sizes of the spaces: layers, edges in both directions, tiers. The defaults fit the largest problem. A function as
        ``problem`` requires ``layers``.
    render_mode
        ``"ansi"``: a table of the map that the chip executes.

    Raises
    ------
    InputError
        If a problem has no node features, has no map, or is larger than the spaces. If an option is unknown. If a function
        draws the problems and ``layers`` is None.
    UsageError
        If ``layers``, ``edges`` or ``tiers`` is not a whole number of at least 1.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's own way)

    def __init__(
        self,
        problem: Given[Problem] = None,
        *,
        features: FeatureSet = "paper",
        noise: float = 0.0,
        layers: int | None = None,
        edges: int | None = None,
        tiers: int | None = None,
        render_mode: str | None = None,
    ):
        check_choice("features", features, get_args(FeatureSet))
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self._source = ProblemSource(problem, Problem, "tier-placement", demo_problem)
        self.features, self.noise, self.render_mode = features, noise, render_mode
        if self._source.draw is not None and layers is None:
            raise InputError("found a function that draws problems, expected layers=, the most that one has, beside it")
        problems = self._source.problems
        self.layers = _size("layers", layers, [len(given.layers) for given in problems])
        self.edges = _size("edges", edges, [_edges(given) for given in problems], EDGES_A_LAYER * self.layers)
        self.tiers = _size("tiers", tiers, [len(given.tiers) for given in problems], TIERS)
        for given in problems:
            self._check(given)
        self.action_space = gymnasium.spaces.MultiDiscrete(np.full(2 * self.layers, self.tiers))
        self.observation_space = self._observation_space()
        self._current: _Placed | None = None
        self._evaluation: Evaluation | None = None
        self._proposal = np.zeros((self.layers, 2), np.int64)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that episodes are drawn from; empty if a function draws them."""
        return self._source.problems

    @property
    def problem(self) -> Problem:
        """The problem of the current episode; raises ResetNeeded before the first episode."""
        return self._current_problem().problem

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, with all tensors in the slowest tier.

        Parameters
        ----------
        seed
            Seed of the draws among several problems, and of the noise.
        options
            ``{"problem": ...}``: the problem to place, as an index in the environment's list, a problem or a path.

        Raises
        ------
        InputError
            If there is another option, or its value is not a problem that can be read and fits the spaces.
        UsageError
            If ``noise`` is out of range.
        """
        super().reset(seed=seed)
        # A chip is made when it is first used, because the compiler's map takes time.
        self._current = self._source.made(options or {}, self.np_random, self._place)
        if self.noise:
            self._current.chip.reseed(int(self.np_random.integers(2**63)))
        self._evaluation = None
        self._proposal = np.zeros((self.layers, 2), np.int64)
        return self._observation(), {}

    def step(self, action: npt.ArrayLike) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Propose a map, which ends the episode; raise InvalidAction if the action is outside the space, ResetNeeded without an
        episode. ``info`` has the fraction of bytes that the compiler moved (``epsilon``), the latency without and with noise
        (``latency_ps``; ``measured_ps``), the speedup, and the plan."""
        current = self._current_problem()
        if self._evaluation is not None:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        chosen = np.asarray(action)
        if not self.action_space.contains(chosen):
            expected = f"{2 * self.layers} whole numbers from 0 to {self.tiers - 1}"
            raise gymnasium.error.InvalidAction(
                f"found an action of type {chosen.dtype}, shape {chosen.shape}, expected {expected}"
            )
        count = len(current.problem.layers)
        self._proposal = np.zeros((self.layers, 2), np.int64)
        self._proposal[:count] = chosen.reshape(self.layers, 2)[:count] * current.mask[:count]
        self._evaluation = evaluation = current.chip.evaluate(*self._proposal[:count].T.tolist())
        info = {
            "epsilon": evaluation.epsilon,
            "latency_ps": evaluation.latency_ps,
            "measured_ps": evaluation.measured_ps,
            "speedup": evaluation.speedup,
            "plan": self.plan(),
        }
        return self._observation(), evaluation.reward, True, False, info

    def plan(self) -> Plan:
        """Return the proposal, as rectified by the compiler, as a plan; raise ValueError if there is no proposal in this
        episode."""
        if self._evaluation is None:
            raise ValueError("nothing has been proposed: call step() first")
        return self._current_problem().chip.plan(self._evaluation.map)

    def render(self) -> str | None:
        """Return a table of the executed map or, before a proposal, of the compiler's map; None without ``render_mode``. Raise
        ResetNeeded before the first episode."""
        current = self._current_problem()
        if self.render_mode != "ansi":
            return None
        problem, evaluation = current.problem, self._evaluation
        placed = current.chip.compiler if evaluation is None else evaluation.map
        latency = current.chip.compiler_ps if evaluation is None else evaluation.latency_ps
        lines = [f"{problem.name}: {len(problem.layers)} layers, {latency / 1e6:.1f} us"]
        if evaluation is None:
            lines[0] += ", the compiler's map"
        else:
            lines[0] += f", {current.chip.compiler_ps / latency if latency else 1.0:.3f} times as fast as the compiler's"
            lines[0] += f", {evaluation.epsilon:.1%} of the bytes re-assigned" if evaluation.epsilon else ""
        for number, tier in enumerate(problem.tiers):
            sizes = (
                sum(layer.weight_bytes for layer, at in zip(problem.layers, placed.weight_tiers, strict=True) if at == number),
                sum(layer.output_bytes for layer, at in zip(problem.layers, placed.output_tiers, strict=True) if at == number),
            )
            lines.append(f"  {tier.name}: weights {sizes[0] / 2**20:.2f} MiB, activations {sizes[1] / 2**20:.2f} MiB")
        return "\n".join(lines) + "\n"

    def _current_problem(self) -> _Placed:
        """The problem of the current episode with its data; raises ResetNeeded before the first episode."""
        if self._current is None:
            raise gymnasium.error.ResetNeeded("no episode has begun: call reset() first")
        return self._current

    def _check(self, problem: Problem) -> None:
        """Raise InputError if a problem does not fit the spaces."""
        for what, count, room in (
            ("layers", len(problem.layers), self.layers),
            ("edges in both directions", _edges(problem), self.edges),
        ):
            if count > room:
                raise InputError(f"found {count} {what} in {problem.name or 'a problem'}, expected at most {room}")
        if len(problem.tiers) != self.tiers:
            raise InputError(f"found {len(problem.tiers)} tiers in {problem.name or 'a problem'}, expected {self.tiers}")

    def _place(self, problem: Problem) -> _Placed:
        """Prepare a problem for episodes; raise InputError if it does not fit the spaces."""
        self._check(problem)
        graph = graph_of(problem, self.features)
        mask = np.zeros((self.layers, 2), np.int8)
        mask[: len(problem.layers), 0] = graph.has_weights
        mask[: len(problem.layers), 1] = 1
        return _Placed(problem, Chip(problem, noise=self.noise), graph, mask)

    def _observation(self) -> Observation:
        _, _, graph, mask = self._current_problem()
        count, width = graph.features.shape
        features = np.zeros((self.layers, width), np.float32)
        features[:count] = graph.features
        edges = np.full((2, self.edges), -1, np.int64)
        edges[:, : graph.edges.shape[1]] = graph.edges
        return {"features": features, "edges": edges, "tiers": self._proposal.copy(), "mask": mask.copy()}

    def _observation_space(self) -> gymnasium.Space[Observation]:
        box, width = gymnasium.spaces.Box, len(columns(self.features, self.tiers))
        spaces: dict[str, gymnasium.Space[Any]] = {
            "features": box(-BOUND, BOUND, (self.layers, width), np.float32),
            "edges": box(-1, self.layers - 1, (2, self.edges), np.int64),
            "tiers": box(0, self.tiers - 1, (self.layers, 2), np.int64),
            "mask": box(0, 1, (self.layers, 2), np.int8),
        }
        # Gymnasium's annotation makes a Dict a space of dictionaries of spaces.
        return cast("gymnasium.Space[Observation]", gymnasium.spaces.Dict(spaces))


def demo_problem() -> Problem:
    """Return a demo problem: a residual network of 47 layers on the NNP-I, with weights of about twice the size of its LLC."""
    return Problem.load(str(resources.files("stowplan.learned_guidance.tier_placement") / "demo.json"))


def _size(name: str, given: int | None, counts: list[int], otherwise: int = 1) -> int:
    """The size of a space: the given one, or that of the largest problem, or ``otherwise`` if there are no problems."""
    if given is not None:
        return whole(f"{name} {{}}", given, 1)
    return max(counts) if counts else otherwise


def _edges(problem: Problem) -> int:
    """An upper bound on the number of edges of a problem's graph, in both directions."""
    return max(1, 2 * sum(len(layer.inputs) for layer in problem.layers))
