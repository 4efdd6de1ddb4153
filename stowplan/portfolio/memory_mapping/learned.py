"""Candidates that play MMapGame with a trained policy: likeliest games, games with search, and a policy trained on first.

The policy is the package's own (``learned_guidance/checkpoints``), or the file that ``STOWPLAN_POLICY`` names. Starting torch
takes some seconds of a place that others could use, so a run has a policy of itself only where that is little of its time or
where a place is free; by name it can be had always.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.context import Context, Options
from stowplan.portfolio.registry import Candidate

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame
    from stowplan.learned_guidance.memory_mapping.muzero.play import Played, Policy

_HERE = "stowplan.portfolio.memory_mapping.learned"

#: Names another policy than the package's own.
VARIABLE = "STOWPLAN_POLICY"

#: What torch and a policy take to start, and a move of a likeliest game: seconds, on one core at leisure.
START_SECONDS, MOVE_SECONDS = 3.0, 2e-3

#: Part of the time that a likeliest game may take from the others, and what it gets by name at most.
POLICY_SHARE, MOST_SHARE = 0.05, 0.5

#: Games side by side, and temperatures at which they are drawn in turn.
GAMES, TEMPERATURES = 16, (0.3, 0.6, 1.0)

#: What a move costs with search or drawn with others beside it, in moves of a likeliest game; to size deterministic work.
SEARCH_COST = 4

#: How a policy is trained on for one program, where that is not as from scratch: few games side by side, which end soon, no
#: more noise than it takes to differ from what the policy knows, and openings that take a second or two.
TUNING = {"games": 16, "initial_temperature": 0.5, "opening_moves": 500_000}

#: Part of the time, and rounds in a deterministic run, in which the plan to learn from is mended as a game.
MENDING_SHARE, MENDING_ROUNDS = 0.1, 2000

#: Training steps of a deterministic run for each second of its limit.
DETERMINISTIC_STEPS = 2


def policy_file() -> Path:
    """The policy to play with; there need be no such file."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path(str(resources.files("stowplan.learned_guidance") / "checkpoints" / "mmap_muzero.pt"))


def candidates(problem: Problem, options: Options, others: int) -> list[Candidate]:
    """The learned candidates, the quick one first; where they cannot run they say why.

    ``others`` is how many candidates of other families run.
    """
    path = policy_file()
    unavailable, checkpoint = "", None
    if find_spec("torch") is None:
        unavailable = "needs torch: pip install 'stowplan[learned]'"
    elif not path.is_file():
        unavailable = f"found no policy {path}: name one in {VARIABLE}, or train one (stowplan train muzero --help)"
    else:
        checkpoint = hashlib.sha256(path.read_bytes()).hexdigest()
    share = (START_SECONDS + MOVE_SECONDS * problem.use_count) / options.time_limit
    make = partial(Candidate, family="learned", unavailable=unavailable, checkpoint=checkpoint)
    return [
        make(
            name="policy",
            function=f"{_HERE}:policy",
            share=min(share, MOST_SHARE),
            by_name_only=others >= options.workers and share > POLICY_SHARE,
        ),
        make(name="policy_search", function=f"{_HERE}:policy_search", share=MOST_SHARE, by_name_only=True),
        make(name="policy_tuned", function=f"{_HERE}:policy_tuned", share=MOST_SHARE, by_name_only=True),
    ]


def policy(problem: Problem, context: Context) -> None:
    """One game of the policy's likeliest actions."""
    if problem.use_count:
        _report(context, "policy", [_load().rollout(problem, should_stop=context.stop)])


def policy_search(problem: Problem, context: Context) -> None:
    """Likeliest actions, then the best after a search, then games drawn and searched in turn; until time is up."""
    if not problem.use_count:
        return
    from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame

    player, game = _load(), CompiledGame(problem)
    for play in _games(player, game, context):
        _report(context, "policy_search", play())
        if context.stop():
            return


def policy_tuned(problem: Problem, context: Context) -> None:
    """The policy trained on for this program alone, with the best plan known to learn from; the best game on the way."""
    if not problem.use_count:
        return
    from stowplan.learned_guidance.memory_mapping.baselines.local_search import improve
    from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
    from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer

    options = context.options
    is_deterministic = options.deterministic
    player, game = _load(), CompiledGame(problem)
    first = player.rollout(game, should_stop=context.stop)
    _report(context, "policy_tuned", [first])
    shown = [] if first is None else [first.actions]
    known: Plan | None = context.incumbent()[0]
    if known is not None and known.residencies:
        mended = improve(
            game,
            actions_of(problem, known, game).actions,
            seed=options.seed,
            rounds=MENDING_ROUNDS if is_deterministic else None,
            time_limit=None if is_deterministic else MENDING_SHARE * context.remaining(),
            should_stop=context.stop,
        )
        # Under a name of its own: that it is better than the plan it began with is not the policy's doing.
        if mended.actions is not None:
            context.plan(_played(game, mended.actions), "mended")
            shown.append(mended.actions)
    changes = dict(TUNING)
    if is_deterministic:
        changes["training_steps"] = max(1, int(DETERMINISTIC_STEPS * options.time_limit))
    trainer = Trainer([problem], player.config.changed(**changes), seed=options.seed, weights=player.file.weights)
    for actions in shown:
        trainer.demonstrate(0, actions)
    best = trainer.best[0]
    reported = best.return_ps

    def report_best(_: object = None) -> None:
        nonlocal reported
        if best.actions is not None and best.return_ps != reported:
            reported = best.return_ps
            context.plan(_played(game, best.actions), "policy_tuned")

    trainer.run(should_stop=context.stop, on_progress=report_best)
    report_best()


def _games(player: Policy, game: CompiledGame, context: Context) -> Iterator[Callable[[], list[Played | None]]]:
    """What to play, one after the other: for ever, or as much as a deterministic run has time for at leisure."""
    seed, stop = context.options.seed, context.stop
    yield lambda: [player.rollout(game, should_stop=stop)]
    yield lambda: [*player.searched(game, seed=seed, should_stop=stop)]
    rounds, number = None, 0
    if context.options.deterministic:
        seconds = 2 * SEARCH_COST * MOVE_SECONDS * len(game.moves)
        rounds = max(1, int(context.options.time_limit / 3 / max(seconds, 1e-3)))
    while rounds is None or number < rounds:
        # No two games from the same random numbers.
        drawn, searched = ([seed, number, part] for part in range(2))
        heat = TEMPERATURES[number % len(TEMPERATURES)]
        yield partial(_list, player.rollouts, game, GAMES, temperature=heat, seed=_mixed(drawn), should_stop=stop)
        yield partial(_list, player.searched, game, count=GAMES, explore=True, seed=_mixed(searched), should_stop=stop)
        number += 1


def _list(play: Callable[..., list[Played]], *arguments: object, **options: object) -> list[Played | None]:
    return [*play(*arguments, **options)]


def _mixed(numbers: list[int]) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _load() -> Policy:
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    # Other candidates have the other cores; and sums must not depend on how many there are.
    torch.set_num_threads(1)
    return Policy.load(policy_file())


def _played(game: CompiledGame, actions: NDArray[np.int8]) -> Plan:
    state = game.reset()
    state.play(actions)
    return state.plan()


def _report(context: Context, source: str, played: list[Played | None]) -> None:
    """Report the best of some games, where any was finished."""
    finished = [each for each in played if each is not None]
    if finished:
        context.plan(max(finished, key=lambda each: each.return_ps).plan, source)
