"""Learning from games that were played elsewhere, whole data sets at once: what a policy that is shipped begins with.

All positions are observed once, and lie on the training device from then on, so that a step is one gather and one update
there: no processor is asked for anything. Losses are those of :mod:`.learner`, but for the policy's, which is of legal actions
alone at the positions themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from benchmarks.lib.memory_mapping.deviations import ILLEGAL
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork, ObservationTensors
from stowplan.learned_guidance.memory_mapping.observation.layout import Observations, empty_observations
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer
from stowplan.learned_guidance.nn import Support

#: Nats by which a game's own action is preferred to one that is as good; and weight of a move where all are.
CHOSEN, LEAST_WEIGHT = 1.5, 0.1

#: Positions that are judged in one batch.
JUDGED_AT_ONCE = 4096

#: Steps before one is recorded, on a device that can.
EAGER_STEPS = 10


class Positions(NamedTuple):
    """Positions of games, N in all: game after game, each in the order in which it was played."""

    observations: Observations
    """N rows; floats in half precision, which is enough for what they are."""
    legal: NDArray[np.bool_]
    """(N, 3)"""
    played: NDArray[np.int8]
    """(N,) actions."""
    policy: NDArray[np.float16]
    """(N, 3) what to imitate; a row sums to its weight, 0 where nothing is to be imitated."""
    rewards: NDArray[np.float32]
    """(N,) in units."""
    returns: NDArray[np.float32]
    """(N,) the rewards from here to the end of the game, discounted, in units."""
    left: NDArray[np.int32]
    """(N,) moves of the game from here on, this one included."""


def positions_of(
    game: CompiledGame,
    observer: Observer,
    actions: Sequence[int] | NDArray[np.integer[Any]],
    policy: NDArray[np.floating[Any]] | None = None,
    *,
    discount: float = 1.0,
) -> Positions:
    """All positions of a game.

    Parameters
    ----------
    actions
        Of a whole game, legal.
    policy
        (N, 3) what is to be imitated at each position, rows of zeros for nothing; None for the actions themselves.
    """
    count = len(actions)
    observations = empty_observations(observer.config, count)
    legal = np.zeros((count, 3), np.bool_)
    rewards = np.zeros(count, np.float32)
    state = game.reset()
    for number, action in enumerate(np.asarray(actions).tolist()):
        observer.observe(state, observations, number)
        legal[number] = state.legal
        rewards[number] = state.step(action) / game.unit_ps
    returns = np.zeros(count, np.float64)
    following = 0.0
    for number in range(count - 1, -1, -1):
        following = returns[number] = rewards[number] + discount * following
    played = np.asarray(actions, np.int8)
    halved = Observations._make(each if each.dtype == np.uint8 else each.astype(np.float16) for each in observations)
    return Positions(
        halved,
        legal,
        played,
        np.eye(3, dtype=np.float16)[played] if policy is None else policy.astype(np.float16),
        rewards,
        returns.astype(np.float32),
        np.arange(count, 0, -1, dtype=np.int32),
    )


def preferred(
    returns: NDArray[np.integer[Any]], chosen: NDArray[np.integer[Any]], unit_ps: float, *, scale: float = 0.5
) -> NDArray[np.float32]:
    """What to imitate at the moves of a game whose one-step deviations have these returns.

    Parameters
    ----------
    returns
        (M, 3) in ps, as :func:`~lib.memory_mapping.deviations.deviations` has them.
    chosen
        (M,) actions that are preferred where there is nothing in it; not all need be legal.
    scale
        Temperature, in mean rewards of a move. What matters less than four times as much weighs less, what matters more weighs
        more, by the logarithm.

    Returns
    -------
    array
        (M, 3), rows that sum to their weights.
    """
    is_legal = returns > ILLEGAL
    values = np.where(is_legal, returns, 0) / unit_ps
    best = np.where(is_legal, values, -np.inf).max(axis=1, keepdims=True)
    worst = np.where(is_legal, values, np.inf).min(axis=1, keepdims=True)
    heat = scale * max(float(np.abs(best).max(initial=0.0)), 1e-9) / max(len(returns), 1)
    scores = np.where(is_legal, (values - best) / heat, -np.inf)
    scores[np.arange(len(chosen)), chosen] += CHOSEN
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    stake = (best - worst) / (4.0 * heat)
    # One wrong move may cost what a thousand others earn: a large tensor that is given up does not come back.
    share = LEAST_WEIGHT + (1.0 - LEAST_WEIGHT) * np.minimum(stake, 1.0) + 0.5 * np.log2(np.maximum(stake, 1.0))
    return np.asarray(share * weights / weights.sum(axis=1, keepdims=True), np.float32)


def joined(parts: Sequence[Positions]) -> Positions:
    """Positions of several games, one after the other."""
    observations = Observations._make(np.concatenate(each) for each in zip(*(part.observations for part in parts), strict=True))
    rest = (np.concatenate(each) for each in zip(*(part[1:] for part in parts), strict=True))
    return Positions(observations, *rest)


class DataSet:
    """Positions on a device.

    Parameters
    ----------
    parts
        Taken one after the other, so that no more than one need be in the processor's memory at a time.
    """

    def __init__(self, parts: Iterable[Positions], device: str = "cpu"):
        kept: list[list[Tensor]] = []
        for part in parts:
            arrays = (*part.observations, *part[1:])
            kept.append([torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in arrays])
        columns: list[Tensor] = []
        for column in range(len(kept[0])):
            columns.append(torch.cat([part[column] for part in kept]))
            for moved in kept:
                moved[column] = columns[-1][:0]
        width = len(Observations._fields)
        self._observations = columns[:width]
        self.legal, self.played, self.policy, self.rewards, self.returns, self.left = columns[width:]
        self.device = torch.device(device)

    def __len__(self) -> int:
        return len(self.played)

    def observations(self, rows: Tensor) -> ObservationTensors:
        """Observations of these rows, in single precision."""
        picked = (each.index_select(0, rows) for each in self._observations)
        return ObservationTensors(*(each if each.dtype == torch.uint8 else each.float() for each in picked))


class Step(NamedTuple):
    """Means over a batch, on the device."""

    policy: Tensor
    value: Tensor
    reward: Tensor
    agreement: Tensor
    """Part of the moves with a choice, by weight, where the likeliest action is the one that is wanted most."""
    value_error: Tensor


def losses(network: MMapNetwork, data: DataSet, rows: Tensor, unroll: int) -> Step:
    """Losses at these rows, unrolled so many steps."""
    hidden, logits, value_logits = network.initial(data.observations(rows))
    legal = data.legal.index_select(0, rows)
    wanted = data.policy.index_select(0, rows).float()
    returns = data.returns.index_select(0, rows)
    left = data.left.index_select(0, rows)
    masked = logits.masked_fill(~legal, -1e4)
    weight = wanted.sum(1) * (legal.sum(1) > 1)
    policy = -(wanted * functional.log_softmax(masked, dim=1)).sum(1) * (weight > 0)
    agreement = ((masked.argmax(1) == wanted.argmax(1)) * weight).sum() / weight.sum().clamp(min=1e-6)
    value = _categorical(network.value_support, value_logits, returns)
    error = (network.value_support.mean(value_logits.detach()) - returns).abs().mean()
    reward = torch.zeros_like(value)
    for step in range(unroll):
        hidden = 0.5 * hidden + 0.5 * hidden.detach()
        # Beyond the end of a game its last row stands in, and counts nothing but a value of 0.
        here = rows + torch.minimum(torch.full_like(left, step), left - 1)
        there = rows + torch.minimum(torch.full_like(left, step + 1), left - 1)
        acts, goes_on = left > step, left > step + 1
        hidden, reward_logits, logits, value_logits = network.recurrent(hidden, data.played.index_select(0, here).long())
        earned = data.rewards.index_select(0, here) * acts
        reward = reward + _categorical(network.reward_support, reward_logits, earned) / unroll
        expected = data.returns.index_select(0, there) * goes_on
        value = value + _categorical(network.value_support, value_logits, expected) / unroll
        wanted = data.policy.index_select(0, there).float()
        policy = policy - (wanted * functional.log_softmax(logits, dim=1)).sum(1) * goes_on / unroll
    return Step(policy.mean(), value.mean(), reward.mean(), agreement, error)


def _categorical(support: Support, logits: Tensor, targets: Tensor) -> Tensor:
    return -(support.two_hot(targets) * functional.log_softmax(logits, dim=1)).sum(dim=1)


@torch.no_grad()
def judged(network: MMapNetwork, data: DataSet, unroll: int, most: int = 50_000) -> dict[str, float]:
    """Means over (at most so many, evenly spread) positions, by name."""
    network.eval()
    rows = torch.linspace(0, len(data) - 1, min(len(data), most), device=data.device).long()
    parts = [(len(part), losses(network, data, part, unroll)) for part in torch.split(rows, JUDGED_AT_ONCE)]
    return {name: float(sum(count * getattr(step, name) for count, step in parts)) / len(rows) for name in Step._fields}


def _recorded(optimizer: torch.optim.Optimizer, update: Callable[[], Step]) -> Callable[[], Step]:
    """A step as one CUDA graph: it is hundreds of small kernels, which take longer to start than to run."""
    # Libraries set themselves up outside of the recording, on a stream that is not the default one.
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        for _ in range(EAGER_STEPS):
            optimizer.zero_grad(set_to_none=True)
            update()
    here.wait_stream(aside)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = update()

    def replay() -> Step:
        graph.replay()
        return found

    return replay


def imitate(
    network: MMapNetwork,
    data: DataSet,
    *,
    steps: int,
    batch: int = 2048,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-2,
    unroll: int = 3,
    policy_weight: float = 3.0,
    value_weight: float = 0.25,
    smoothing: float = 0.99,
    seed: int = 0,
    time_limit: float = math.inf,
    record: bool = True,
    held: DataSet | None = None,
    judge_every: int = 500,
    on_report: Callable[[int, float, dict[str, float]], None] | None = None,
    report_every: int = 500,
) -> int:
    """Train a network on positions; its weights become a running mean of those on the way.

    Parameters
    ----------
    network
        On the device of ``data``.
    steps, time_limit
        What ends it: training steps, seconds. The learning rate falls to 0 towards whichever comes first.
    record
        Whether a step is recorded once and replayed from then on, on a device that can.
    smoothing
        Share of the running mean that stays at each step.
    held, judge_every
        Positions that are not learned from: of the weights after every so many steps those of least loss there are kept.
    on_report
        Called every ``report_every`` steps with the step, seconds, and the batch's losses by name.

    Returns
    -------
    int
        Training steps done.
    """
    began = time.monotonic()
    warm_up = min(200, 1 + steps // 10)
    rate = torch.tensor(learning_rate, device=data.device)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=rate, weight_decay=weight_decay, capturable=data.device.type == "cuda"
    )
    draw = torch.Generator(device=data.device).manual_seed(seed)
    rows = torch.zeros(batch, dtype=torch.int64, device=data.device)

    def update() -> Step:
        found = losses(network, data, rows, unroll)
        torch.autograd.backward(policy_weight * found.policy + value_weight * found.value + found.reward)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        return Step(*(each.detach() for each in found))

    def plain() -> Step:
        optimizer.zero_grad(set_to_none=True)
        return update()

    network.train()
    rate.fill_(learning_rate / 200)
    step = _recorded(optimizer, update) if record and data.device.type == "cuda" else plain
    means = [weight.detach().clone() for weight in network.parameters()]
    kept: list[Tensor] = []
    least = math.inf
    done = 0
    while done < steps and time.monotonic() - began < time_limit:
        part = max(done / steps, (time.monotonic() - began) / time_limit)
        rate.fill_(learning_rate * min(1.0, (done + 1) / warm_up) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, part))))
        rows.copy_(torch.randint(len(data), (batch,), device=data.device, generator=draw))
        found = step()
        done += 1
        with torch.no_grad():
            torch._foreach_lerp_(means, [*network.parameters()], max(1.0 - smoothing, 1.0 / done))
        if on_report is not None and (done % report_every == 0 or done == steps):
            on_report(done, time.monotonic() - began, {name: float(value) for name, value in found._asdict().items()})
            network.train()
        if held is not None and done % judge_every == 0:
            seen = judged(network, held, unroll)
            network.train()
            total = policy_weight * seen["policy"] + value_weight * seen["value"] + seen["reward"]
            if total < least:
                least, kept = total, [mean.clone() for mean in means]
    if kept:
        means = kept
    with torch.no_grad():
        for weight, mean in zip(network.parameters(), means, strict=True):
            weight.copy_(mean)
    return done
