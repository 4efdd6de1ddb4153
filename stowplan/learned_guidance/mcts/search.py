"""Monte-Carlo tree search with a model, for many games of A actions at once, and its settings.

A *simulation* descends each tree to a leaf, evaluates the leaf, and updates the values on the path to it. It descends all trees
in one compiled call, evaluates all leaves by one call of the model, and backs their values up in one compiled call
(:mod:`~stowplan.learned_guidance.mcts.tree`). Everything specific to a game is in the model. A learned model predicts the
consequences of actions; a model may also apply the true rules of the game.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv

from stowplan.learned_guidance.mcts import tree as trees
from stowplan.learned_guidance.mcts.tree import Floats, Ints, Rules, Tree
from stowplan.learned_guidance.training.settings import Fraction, Hyperparameters, Range

Method = Literal["puct", "gumbel"]


class SearchConfig(Hyperparameters, frozen=True, kw_only=True):
    """Settings of the search for a move. The defaults are those of each method's paper and of Wang et al. 2023 (table 6).

    A setting that only one method uses begins with the name of this method. A setting marked as *exploring* has an effect only
    if :func:`search` is called with ``explore``.
    """

    method: Method = "puct"
    """``puct``: MuZero's search (Schrittwieser et al. 2020, appendix B). ``gumbel``: "Policy improvement by planning with
    Gumbel" (Danihelka et al. 2022), which improves the policy even with two or three simulations."""
    simulations: Annotated[int, Range(1)] = 400
    """Evaluations of the model for each move, without that of the root."""
    forced_simulations: Annotated[int, Range(0)] = 1
    """Simulations if only one action is legal: there is nothing to choose, but they improve the value of the root."""
    discount: Fraction = 0.9999
    """Factor by which a reward counts less for each move until it is earned."""

    min_span: Annotated[float, Range(1e-12)] = 1e-3
    """Differences of values are divided by the range of all values in the tree (both papers), but at least by this number, so
    that noise does not decide between equal actions."""

    noise_alpha: Annotated[float, Range(1e-6)] = 0.03
    """PUCT, exploring: parameter of the Dirichlet noise over the root's legal actions."""
    noise_fraction: Fraction = 0.25
    """PUCT, exploring: share of the noise in the root's prior."""
    temperature: Annotated[float, Range(0.0)] = 1.0
    """PUCT, exploring: the action is drawn with probability proportional to visits^(1 / temperature). If it is 0, the most
    visited action is chosen."""
    c_init: Annotated[float, Range(0.0)] = 1.25
    """PUCT: see ``c_base``."""
    c_base: Annotated[float, Range(1e-6)] = 19652.0
    """PUCT: the prior's weight is c_init + log((visits + c_base + 1) / c_base)."""

    max_considered: Annotated[int, Range(1)] = 16
    """Gumbel: largest number of actions at the root that are simulated."""
    gumbel_scale: Annotated[float, Range(0.0)] = 1.0
    """Gumbel, exploring: factor of the Gumbel noise that is added to the logits of the root."""
    c_visit: Annotated[float, Range(0.0)] = 50.0
    """Gumbel: see ``c_scale``."""
    c_scale: Annotated[float, Range(0.0)] = 0.1
    """Gumbel: the weight of values, sigma(q) = (c_visit + most visits of an action) * c_scale * q. Here q is a value divided by
    the range of all values in the tree (see ``min_span``)."""


Bools = npt.NDArray[np.bool_]
Real = npt.NDArray[np.floating[Any]]


class Model(Protocol):
    """A model of the game. It takes and returns NumPy arrays, except for hidden states.

    The hidden states of all games form one array, whose first axis numbers the games. It may be of any library, for example a
    tensor that stays on its device, if it has ``shape`` and ``dtype`` and can be indexed by arrays as in NumPy. The search only
    stores hidden states, gathers them and gives them back to the model.
    """

    def initial(self, observations: Any) -> tuple[Any, Real, Real]:
        """Hidden states of B observed states, logits of the policy (B, A), and values (B,)."""

    def recurrent(self, hidden: Any, actions: Ints) -> tuple[Any, Real, Real, Real]:
        """The consequences of B actions: hidden states, rewards (B,), logits of the policy (B, A), and values (B,).

        A model that knows which actions are legal gives all others a logit of -inf; at least one logit must be finite. The end
        of a game is a state that leads only to itself, with value 0 and rewards 0.
        """


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of the search for B states."""

    visits: Ints
    """(B, A): number of simulations that began with the action."""
    policy: Floats
    """(B, A): improved policy, the target of training: shares of visits (PUCT), or softmax(logits + sigma(completed Q))."""
    value: Floats
    """(B,): value of the state after the search: mean over the simulations (PUCT), or expectation under the improved policy."""
    q: Floats
    """(B, A): values of the actions; NaN for actions without visits."""
    action: Ints
    """(B,): the action to play, which is always legal."""


def search(
    model: Model,
    observations: Any,
    legal: Bools,
    config: SearchConfig,
    rng: np.random.Generator,
    *,
    explore: bool,
) -> SearchResult:
    """Search a move for each of B states, none of which is the end of a game.

    Parameters
    ----------
    model, observations
        ``model.initial(observations)`` evaluates the states.
    legal
        (B, A): which actions are legal at the roots. Deeper in the trees, actions with a finite logit are legal.
    rng
        Source of random numbers for exploration. They are drawn state by state, so that the numbers of a state do not depend on
        the states after it.
    explore
        Whether to add noise at the root and to draw the action; otherwise the search is deterministic and chooses the best
        action.

    Returns
    -------
    SearchResult
        Visits, policy, values and chosen action of each state.

    Raises
    ------
    ValueError
        A state has no legal action, ``legal`` is not two-dimensional, the logits of ``model.initial`` have another shape than
        ``legal``, or its values or its logits of legal actions are not finite. The results of ``model.recurrent`` are not
        checked.
    """
    if legal.ndim != 2 or not legal.any(axis=1).all():
        raise ValueError("every state needs a row of flags, at least one of them a legal action")
    batch, count = legal.shape
    hidden, logits, value = model.initial(observations)
    logits, value = _float64(logits), _float64(value)
    if logits.shape != legal.shape:
        raise ValueError(f"the model gives logits of shape {logits.shape}, expected {legal.shape}")
    if not (np.isfinite(logits[legal]).all() and np.isfinite(value).all()):
        raise ValueError("the model gives logits or values that are no finite numbers")

    rules = _rules(config)
    tree = trees.empty_tree(batch, config.simulations + 1, count)
    trees.set_roots(tree, logits, value, legal)
    uniform = _uniform(rng, batch, count) if explore else np.zeros((batch, _draws(count)))
    if explore and not rules.is_gumbel:
        _mix_in_noise(tree, uniform, legal, config)
    if rules.is_gumbel:
        if explore:
            tree.gumbel[:] = -config.gumbel_scale * np.log(-np.log(uniform[:, :count]))
        considered = np.minimum(legal.sum(axis=1), config.max_considered)
        for most in range(1, count + 1):
            tree.level[considered == most, :-1] = visit_levels(most, config.simulations)

    _simulate(model, hidden, tree, rules, legal, config)

    visits = tree.visits[:, 0].copy()
    q = np.where(visits > 0, tree.total[:, 0] / np.maximum(visits, 1), np.nan)
    outcome = _from_improved_policy(tree, rules) if rules.is_gumbel else _from_visits(tree, q, legal, config, uniform, explore)
    policy, values, action = outcome
    return SearchResult(visits, policy, values, q, action)


@cache
def visit_levels(considered: int, simulations: int) -> tuple[int, ...]:
    """For each simulation, how often its action at the root has been visited before, in sequential halving.

    Each round gives the same number of visits to all remaining actions and keeps the better half of them; the last two remain
    until the end. The number of visits identifies the remaining actions: a simulation takes the best of those with this
    number of visits.
    """
    rounds = max(1, (considered - 1).bit_length())
    levels: list[int] = []
    visited, left = 0, considered
    while len(levels) < simulations:
        visits = max(1, simulations // (rounds * left))
        for _ in range(visits):
            levels += [visited] * left
            visited += 1
        left = max(min(2, considered), left // 2)
    return tuple(levels[:simulations])


def _simulate(model: Model, hidden: Any, tree: Tree, rules: Rules, legal: Bools, config: SearchConfig) -> None:
    """Run all simulations; states with one legal action need fewer."""
    # ``states[node, game]`` is the hidden state of a node in the tree of a game.
    states = _empty_like(hidden, config.simulations + 1)
    states[0] = hidden
    games = np.arange(len(legal))
    parents, actions = np.empty_like(games), np.empty_like(games)
    for simulation in range(config.simulations):
        if simulation == config.forced_simulations:
            games = np.flatnonzero(legal.sum(axis=1) > 1)
            parents, actions = np.empty_like(games), np.empty_like(games)
            if not len(games):
                return
        trees.select(tree, rules, simulation, games, parents, actions)
        hidden, reward, logits, value = model.recurrent(states[parents, games], actions)
        if len(games) == len(legal):
            states[simulation + 1] = hidden
        else:
            states[simulation + 1, games] = hidden
        trees.expand_and_back_up(
            tree, config.discount, simulation + 1, games, _float64(reward), _float64(logits), _float64(value)
        )


def _empty_like(hidden: Any, count: int) -> Any:
    """Space for ``count`` arrays like this one, of the same library and on the same device."""
    shape = (count, *hidden.shape)
    return hidden.new_empty(shape) if hasattr(hidden, "new_empty") else np.empty(shape, hidden.dtype)


def _from_improved_policy(tree: Tree, rules: Rules) -> tuple[Floats, Floats, Ints]:
    """Policy (B, A), values (B,) and actions (B,) of a search by the Gumbel method."""
    batch = len(tree.value)
    policy, values, action = np.empty_like(tree.gumbel), np.empty(batch), np.empty(batch, np.int64)
    trees.improve_roots(tree, rules, policy, values, action)
    return policy, values, action


def _from_visits(
    tree: Tree, q: Floats, legal: Bools, config: SearchConfig, uniform: Floats, explore: bool
) -> tuple[Floats, Floats, Ints]:
    """Policy (B, A), values (B,) and actions (B,) of a search by PUCT."""
    visits = tree.visits[:, 0]
    count = visits.sum(axis=1)
    is_searched = count > 0
    # A state without simulations has only one legal action.
    policy = np.where(is_searched[:, None], visits, legal) / np.maximum(count, 1)[:, None]
    value = np.where(is_searched, tree.total[:, 0].sum(axis=1) / np.maximum(count, 1), tree.value[:, 0])
    if explore and config.temperature > 0:
        with np.errstate(divide="ignore"):
            weight = np.log(policy / policy.max(axis=1, keepdims=True)) / config.temperature
        share = np.cumsum(np.exp(weight), axis=1)
        # The first action whose cumulative share exceeds the random number. As that is below 1, the action has a positive
        # share.
        action = (share <= uniform[:, -1:] * share[:, -1:]).sum(axis=1)
    else:
        # The most visited action; ties go to the one of greater value.
        most = policy == policy.max(axis=1, keepdims=True)
        action = np.argmax(np.where(most, np.nan_to_num(q, nan=-np.inf), -np.inf), axis=1)
        action = np.where(is_searched, action, np.argmax(legal, axis=1))
    return policy, value, action


def _draws(actions: int) -> int:
    """How many random numbers a state needs: two for the noise of each action, of which the Gumbel method uses one, and one to
    draw the action to play."""
    return 2 * actions + 1


def _uniform(rng: np.random.Generator, batch: int, actions: int) -> Floats:
    """Random numbers in (0, 1), as many for each state as :func:`_draws` says: (B, draws)."""
    return np.maximum(rng.random((batch, _draws(actions))), np.finfo(float).tiny)


def _mix_in_noise(tree: Tree, uniform: Floats, legal: Bools, config: SearchConfig) -> None:
    """Mix Dirichlet noise over the legal actions into the priors of the roots.

    Normalized gamma variates form a Dirichlet variate. Their logarithms are drawn, because with a parameter of 0.03 many
    variates are too small for floating point: log G(a) is distributed as log G(a + 1) + log(U) / a (Marsaglia and Tsang 2000).
    """
    alpha, count = config.noise_alpha, legal.shape[1]
    log_gamma = np.log(gammaincinv(alpha + 1, uniform[:, :count])) + np.log(uniform[:, count : 2 * count]) / alpha
    log_gamma = np.where(legal, log_gamma, -np.inf)
    noise = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
    noise /= noise.sum(axis=1, keepdims=True)
    tree.prior[:, 0] += config.noise_fraction * (noise - tree.prior[:, 0])


def _rules(config: SearchConfig) -> Rules:
    return Rules(
        is_gumbel=config.method == "gumbel",
        min_span=float(config.min_span),
        c_init=float(config.c_init),
        c_base=float(config.c_base),
        c_visit=float(config.c_visit),
        c_scale=float(config.c_scale),
    )


def _float64(values: Any) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)
