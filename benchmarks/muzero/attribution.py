"""What each part of MMap-MuZero brings, at equal processor time: exploration bias, local search, search, network, learning.

    python -m benchmarks.muzero.attribution run --seconds 8 --processes 8
    python -m benchmarks.muzero.attribution show

Each run leaves a file, and a command that is started again makes only those that are missing.

Time is the processor's of each process, so that several may run side by side. A run begins with everything compiled and loaded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import stowplan
from benchmarks.lib.memory_mapping.synthetic import synthetic
from benchmarks.lib.places import SHARED
from benchmarks.lib.tables import table
from benchmarks.muzero.runs import in_processes, take
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState, play_greedy
from stowplan.learned_guidance.memory_mapping.game.local_search import improve
from stowplan.learned_guidance.memory_mapping.game.programs import as_played
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.exploration import draw_bias, play_biased
from stowplan.learned_guidance.memory_mapping.observation.layout import ObservationConfig
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer
from stowplan.portfolio.memory_mapping.learned import POLICY

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer

#: The four of table 2, then ten that the shipped policy has not learned from.
TABLE_2 = ("alexnet_train_b32", "wavenet_inf_b32", "transformer_encdec_train_bf16_b16", "alphatensor_train_b4")
UNSEEN = (
    "dlrm_inf_b256",
    "gnn_train_n1024",
    "gpt2s_train_b2_s512",
    "lstm_scan_inf_b32",
    "lstm_unroll_inf_b32",
    "mnasnet_b1_inf_b128",
    "resnet50_inf_b1",
    "rnn_train_b64",
    "unet_train_b4",
    "vit_b16_inf_b8",
)

#: Moves of a piece of local search, and part of the time before another turn.
PIECE_MOVES, TURN = 200_000, 0.1

NO_END = 1_000_000_000

#: How the agent plays with the shipped policy, where that is not as from scratch: few games side by side, which end soon, no
#: more noise than it takes to differ from what the policy knows, and a warm start of a second or two.
TUNING = {"games": 16, "initial_temperature": 0.5, "warm_start_moves": 500_000}

#: Best games of a program that are kept, and places at which the noise of a game may begin.
KEPT, NOISES = 8, 4096

clock = time.process_time


class Run(msgspec.Struct):
    """One method on one program."""

    program: str
    method: str
    seed: int
    moves: int
    seconds: float
    """Processor seconds that it was given."""
    took: float
    third: float
    """R of the best game after a third of the time; 0 before any game."""
    reward: float
    """R of the best game within the time."""
    games: int


class Record:
    """The best return so far, by the processor's clock."""

    def __init__(self, seconds: float):
        self.began, self.seconds = clock(), seconds
        self.points: list[tuple[float, int]] = []
        self.games = 0

    @property
    def left(self) -> float:
        """Seconds."""
        return self.began + self.seconds - clock()

    def offer(self, return_ps: int | None, games: int = 0) -> None:
        """A game's return, and how many games have been played in all."""
        self.games = max(self.games, games)
        if return_ps is not None and (not self.points or return_ps > self.points[-1][1]):
            self.points.append((clock() - self.began, int(return_ps)))

    def at(self, seconds: float) -> int:
        """Best return by a moment."""
        return max((found for moment, found in self.points if moment <= seconds), default=0)


class Elite:
    """The best games of a program, by random exploration biases, half of them from the beginning of one of these."""

    def __init__(self, game: CompiledGame, rng: np.random.Generator):
        self.game, self._rng = game, rng
        self.games: list[tuple[int, Any]] = []
        """(return in ps, one action for each move), the best first."""
        self.played = 0
        self._scales = scales(game)
        self._noise = rng.gumbel(size=(len(game.moves) + NOISES, 3)).astype(np.float32)

    def offer(self, actions: Any) -> None:
        """A whole game."""
        state = self.game.reset()
        state.play(actions)
        self._keep(state)

    def _keep(self, state: CompiledState) -> None:
        return_ps = int(state.return_ps)
        if any(return_ps == known for known, _ in self.games) or (len(self.games) == KEPT and return_ps < self.games[-1][0]):
            return
        self.games.append((return_ps, np.array(state.actions, np.int8)))
        self.games.sort(key=lambda game: -game[0])
        del self.games[KEPT:]

    def play(self, seconds: float) -> None:
        """Games for so many processor seconds."""
        end, rng = time.process_time() + seconds, self._rng
        while time.process_time() < end:
            state = self.game.reset()
            if self.games and rng.random() < 0.5:
                begun = self.games[rng.integers(len(self.games))][1]
                state.play(begun[: rng.integers(len(begun))])
            self._finish(state)
            self._keep(state)
            self.played += 1

    def biased(self) -> Any:
        """One such game from the start; it is not kept."""
        state = self.game.reset()
        self._finish(state)
        return np.array(state.actions, np.int8)

    def _finish(self, state: CompiledState) -> None:
        first = int(self._rng.integers(NOISES))
        noise = self._noise[first : first + len(self.game.moves)]
        play_biased(self.game.tables, state.data, draw_bias(self._rng), noise, *self._scales)


def scales(game: CompiledGame) -> tuple[float, float]:
    """What rewards are compared with."""
    return Observer(game, ObservationConfig(map_rows=1, map_columns=1, profile_bins=1, supply_slots=1)).scales


Method = Callable[[CompiledGame, int, Record], None]


def bias(game: CompiledGame, seed: int, record: Record) -> None:
    """Games by random exploration biases, half of them from prefixes of the best."""
    elite = Elite(game, np.random.default_rng(seed))
    while record.left > 0:
        elite.play(min(record.left, 0.02 * record.seconds))
        record.offer(elite.games[0][0], elite.played)


def local_search(game: CompiledGame, seed: int, record: Record) -> None:
    """Local search from the greedy game."""
    state = game.reset()
    play_greedy(game.tables, state.data)
    _searched(game, state.actions, seed, record, record.seconds)


def both(game: CompiledGame, seed: int, record: Record) -> None:
    """Biases and local search of their best in turn; no network."""
    elite = Elite(game, np.random.default_rng(seed))
    turn = 0
    while record.left > 0:
        elite.play(min(record.left, TURN * record.seconds))
        record.offer(elite.games[0][0], elite.played)
        found = _searched(game, elite.games[0][1], seed + turn, record, TURN * record.seconds)
        elite.offer(found)
        turn += 1


def _searched(game: CompiledGame, actions: Any, seed: int, record: Record, seconds: float) -> Any:
    """Local search for so many processor seconds; the best game's actions."""
    end = clock() + min(seconds, record.left)
    rounds = max(1, PIECE_MOVES // len(game.moves))
    piece = 0
    best: Any = actions
    while clock() < end:
        # Piece by piece: the search looks at the clock on the wall.
        found = improve(game, best, rounds=rounds, seed=seed * 1000 + piece, should_stop=lambda: clock() >= end)
        best = found.actions
        record.offer(found.return_ps)
        piece += 1
    return best


def search(game: CompiledGame, seed: int, record: Record) -> None:
    """Tree search on the true game, uniform prior, random playouts."""
    from benchmarks.lib.memory_mapping.tree_search import search_games

    found = search_games(game, seed=seed, should_stop=lambda: record.left <= 0)
    _take(record, found.points)
    record.games = found.games


def _take(record: Record, points: Sequence[Any]) -> None:
    # Its moments are of the clock on the wall; with a core of one's own both are the same.
    record.points = [(min(point.seconds, record.seconds), point.return_ps) for point in points]


def _played(record: Record, trainer: Trainer) -> None:
    """The agent for the time that is left."""
    from stowplan.learned_guidance.training.run import run

    run(trainer, time_limit=max(0.0, record.left), clock=clock)
    began = record.seconds - trainer.seconds
    record.points += [(max(0.0, began) + point.seconds, point.return_ps) for point in trainer.best[0].points]
    record.games = trainer.best[0].games


def _new(game: CompiledGame, config: TrainingConfig, seed: int, weights: Any = None) -> Trainer:
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer

    torch.set_num_threads(1)
    return Trainer([game.problem], config, seed=seed, weights=weights, clock=clock)


def agent(game: CompiledGame, seed: int, record: Record) -> None:
    """The agent from scratch."""
    _played(record, _new(game, TrainingConfig.cpu(training_steps=NO_END), seed))


def random_network(game: CompiledGame, seed: int, record: Record) -> None:
    """The agent with a network's first weights, which learns nothing."""
    config = TrainingConfig.cpu(training_steps=NO_END, updates_per_iteration=0)
    _played(record, _new(game, config, seed))


def trained_network(game: CompiledGame, seed: int, record: Record) -> None:
    """The agent with the shipped weights and the likeliest game by them, which learns nothing."""
    policy = _policy()
    config = policy.config.changed(**TUNING, training_steps=NO_END, updates_per_iteration=0)
    trainer = _new(game, config, seed, policy.model.network.state_dict())
    likeliest = policy.rollout(game, should_stop=lambda: record.left <= 0)
    if likeliest is not None:
        record.offer(likeliest.return_ps, 1)
        trainer.demonstrate(0, likeliest.actions)
    _played(record, trainer)


_POLICY: dict[str, Any] = {}


def _policy() -> Any:
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    path = str(POLICY.path)
    if path not in _POLICY:
        _POLICY[path] = Policy.load(path)
    return _POLICY[path]


METHODS: dict[str, Method] = {
    "bias": bias,
    "local search": local_search,
    "both": both,
    "both, random network": random_network,
    "both, trained network": trained_network,
    "agent": agent,
    "search": search,
}


def perform(program: str, game: CompiledGame, method: str, seed: int, seconds: float) -> Run:
    """One run."""
    record = Record(seconds)
    METHODS[method](game, seed, record)

    def reward(moment: float) -> float:
        return game.problem.normalised_return(game.problem.all_slow_ps - record.at(moment))

    took = clock() - record.began
    # What ends late counts where nothing was there before: a single game of a large program.
    return Run(program, method, seed, len(game.moves), seconds, took, reward(seconds / 3), reward(1.05 * seconds), record.games)


def run(options: argparse.Namespace) -> None:
    """All runs that are missing, shortest programs last."""
    problems = {
        name: as_played(stowplan.read(options.corpus / f"{name}.hlo.txt.gz", target="tpu-v4")) for name in options.programs
    }
    wanted = [
        (name, method, seed)
        for seed in options.seeds
        for name in sorted(options.programs, key=lambda name: -problems[name].use_count)
        for method in options.methods
    ]
    options.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    # Compiled here, so that the processes need not.
    tiny = CompiledGame(as_played(synthetic(np.random.default_rng(0), moves=40)))
    for method in ("bias", "local search", "both", "search"):
        if method in options.methods:
            perform("", tiny, method, 0, 0.2)

    def work(_: int, counter: Any) -> None:
        for method in options.methods:
            perform("", tiny, method, 0, 0.5)
        while (place := take(counter)) < len(wanted) and time.monotonic() - began < options.limit:
            name, method, seed = wanted[place]
            path = options.folder / f"{name}.{method.replace(' ', '_').replace(',', '')}.{seed}.{options.seconds:g}.json"
            if path.exists():
                continue
            found = perform(name, CompiledGame(problems[name]), method, seed, options.seconds)
            path.write_bytes(msgspec.json.encode(found))
            print(f"{time.monotonic() - began:.0f} s: {name} {method} {seed}: {found.reward:.4f}", file=sys.stderr, flush=True)

    in_processes(options.processes, work)
    show(options)


def show(options: argparse.Namespace) -> None:
    """Tables of all runs in the folder."""
    found = [msgspec.json.decode(path.read_bytes(), type=Run) for path in sorted(options.folder.glob("*.json"))]
    found = [each for each in found if each.moves <= options.most_moves]
    methods = [method for method in METHODS if any(each.method == method for each in found)]
    programs = [name for name in (*TABLE_2, *UNSEEN) if any(each.program == name for each in found)]
    rows: list[list[object]] = []
    means: dict[str, dict[str, float]] = {}
    for name in programs:
        cells = []
        for method in methods:
            group = [each.reward for each in found if (each.program, each.method) == (name, method)]
            means.setdefault(method, {})[name] = float(np.mean(group)) if group else np.nan
            cells.append(f"{np.mean(group):.4f}" if group else "")
        moves = next(each.moves for each in found if each.program == name)
        rows.append([name, f"{moves:,}", *cells])
    for title, names in (("mean of table 2's", TABLE_2), ("mean of unseen", UNSEEN)):
        here = [name for name in names if name in programs]
        if here:
            rows.append([title, "", *(f"{np.nanmean([means[method][name] for name in here]):.4f}" for method in methods)])
    print(table(rows, ["program", "moves", *methods]), end="\n\n")
    if "both" not in means:
        return
    rng = np.random.default_rng(0)
    lines: list[list[object]] = []
    for method in methods:
        differences = np.array([means[method][name] - means["both"][name] for name in programs])
        differences = differences[~np.isnan(differences)]
        drawn = rng.choice(differences, (10_000, len(differences))).mean(axis=1)
        low, high = np.quantile(drawn, (0.025, 0.975))
        ahead, behind = int((differences > 1e-4).sum()), int((differences < -1e-4).sum())
        third = [each.third for each in found if each.method == method]
        lines.append(
            [method, f"{differences.mean():+.4f}", f"{low:+.4f} to {high:+.4f}", ahead, behind, f"{np.mean(third):.4f}"]
        )
    print(table(lines, ["method", "R less both's", "95 % (bootstrap over programs)", "ahead", "behind", "mean R at a third"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("run", run), ("show", show)):
        made = commands.add_parser(name)
        made.set_defaults(function=function)
        made.add_argument("--folder", type=Path, default=Path("results/mmap_attribution"))
        made.add_argument("--most-moves", type=int, default=10**9, help="show programs of up to so many moves")
        if function is show:
            continue
        made.add_argument("--corpus", type=Path, default=SHARED / "corpus" / "tpu_v4")
        made.add_argument("--programs", nargs="+", default=[*TABLE_2, *UNSEEN])
        made.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
        made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        made.add_argument("--seconds", type=float, default=8.0, help="processor seconds of a run")
        made.add_argument("--processes", type=int, default=1)
        made.add_argument("--limit", type=float, default=float("inf"), help="begin no run after so many seconds")
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
