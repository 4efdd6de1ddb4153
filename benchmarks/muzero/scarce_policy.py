"""Makes a policy of MMapGame for scarce memory: programs, good games of them, imitation, then rounds of its own games.

    python -m benchmarks.muzero.scarce_policy programs training programs.bin --count 640
    python -m benchmarks.muzero.scarce_policy programs choosing held.bin --count 60
    python -m benchmarks.muzero.scarce_policy run programs.bin --held held.bin -o policy.pt --processes 8 --device cuda

Programs are windows and whole modules of the training part (``scarce.py``), with the insertion heuristic's plan as a game; by
those of the choosing part weights are chosen. ``run`` needs nothing but the files: it improves these games by local search,
learns from them, plays, sees what it should have done where it came to, and learns again.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.memory_mapping import scarce
from benchmarks.muzero.policy import load_chunks
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.programs import as_played, training_variants, with_capacity, with_copy_times
from stowplan.learned_guidance.memory_mapping.game.rollouts import Rollouts
from stowplan.models.memory_mapping.problem import Problem

#: Moves of a window, at least and at most; whole modules up to the third number are learned from as well.
FEWEST, MOST, WHOLE = 100, 1200, 3000

#: Every how many-th program of a module is the whole one, where that is short enough.
WHOLE_EVERY = 8

#: Fast memory over the module's; and of these parts a window gets a capacity of its own live bytes.
CAPACITIES = 0.15, 0.8
BY_LIVE_BYTES = 0.4

#: Of copies that take another time, and how much.
OTHER_COPIES, COPY_TIMES = 0.3, (0.5, 2.0)

#: Parts of the time: labels, first training, own games, second training, measuring.
PARTS = 0.20, 0.24, 0.12, 0.16, 0.28

PLACING = "two_ended"

#: Moves of a case to measure, at most.
MOST_EVALUATED = 4000

#: Of completions in the policy's own searched games.
WEIGHT = 0.3


@dataclass
class Program:
    """A program, and games of it that are known."""

    name: str
    problem: Problem
    games: list[Any]
    """Actions, the best first."""


def make(whole: Problem, number: int, rng: np.random.Generator) -> Problem | None:
    """The ``number``-th program of a module."""
    if number % WHOLE_EVERY == 0:
        if whole.use_count > WHOLE:
            return None
        found = whole
    else:
        moves = int(np.exp(rng.uniform(np.log(FEWEST), np.log(MOST))))
        variant = next(training_variants(whole, rng, moves=moves, count=1), None)
        if variant is None:
            return None
        found = variant
    if number % WHOLE_EVERY == 0 or rng.random() >= BY_LIVE_BYTES:
        wanted = int(rng.uniform(*CAPACITIES) * whole.capacity) // whole.alignment * whole.alignment
        found = with_capacity(found, max(wanted, whole.alignment))
    if number % WHOLE_EVERY == 0 and rng.random() < OTHER_COPIES:
        found = with_copy_times(found, float(np.exp(rng.uniform(*np.log(COPY_TIMES)))))
    return as_played(found)


def programs(arguments: argparse.Namespace) -> int:
    """Programs with insertion's games, as one file."""
    from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
    from stowplan.portfolio.memory_mapping import arrays, heuristics
    from stowplan.portfolio.memory_mapping.convert import export_plan

    began = time.monotonic()
    found: list[Program] = []
    names = scarce.modules(arguments.part)
    each = -(-arguments.count // len(names))
    kept = 0
    for name in names:
        whole = scarce.made(f"{name} 1")
        for number in range(each):
            rng = np.random.default_rng([arguments.seed, zlib.crc32(name.encode()), number])
            problem = make(whole, number, rng)
            if problem is None:
                continue
            game = CompiledGame(problem, placing=PLACING)
            data = arrays.build(problem)
            states = [heuristics.run(steps, lambda: False)[0] for _, steps in heuristics.constructive(data)]
            best = min(states, key=lambda state: state.totals[0].total)
            shown = actions_of(problem, export_plan(problem, data, best), game)
            wanted = problem.all_slow_ps - int(best.totals[0].total)
            kept += shown.return_ps >= 0.99 * wanted
            found.append(Program(f"{name} {number}", problem, [np.array(shown.actions, np.int8)]))
        print(f"{time.monotonic() - began:.0f} s: {name}, {len(found)} programs, {kept} followed", file=sys.stderr, flush=True)
    save(arguments.output, found)
    return 0


def save(path: Path, found: Sequence[Program]) -> None:
    """One file."""
    import msgspec

    rows = [(each.name, zlib.compress(msgspec.json.encode(each.problem), 9), each.games) for each in found]
    path.write_bytes(pickle.dumps(rows))


def load(path: Path) -> list[Program]:
    """What :func:`save` wrote."""
    import msgspec

    rows = pickle.loads(path.read_bytes())
    return [Program(name, msgspec.json.decode(zlib.decompress(text), type=Problem), games) for name, text, games in rows]


# ------------------------------------------------------------------------------------------------------------ positions


def better(game: CompiledGame, known: Sequence[Any], seconds: float, seed: int) -> tuple[Any, dict[str, int]]:
    """A good game: prices that evolve, then local search from the best; actions, and what each came to (ps)."""
    from benchmarks.lib.memory_mapping.priced_play import evolve_prices, priced
    from stowplan.learned_guidance.memory_mapping.game.local_search import improve

    said: dict[str, int] = {}
    base = priced(game)
    evolved = evolve_prices(game, time_limit=0.3 * seconds, seed=seed)
    best, most = evolved.actions, int(evolved.return_ps or 0)
    said["priced"], said["evolved"] = int(base.return_ps or 0), most
    for actions in known:
        state = game.reset()
        state.play(actions)
        said.setdefault("insertion", state.return_ps)
        if state.return_ps > most:
            best, most = np.array(state.actions, np.int8), state.return_ps
    rollouts = Rollouts(game)
    rollouts.play(game.reset(), len(game.moves))
    said["rollouts"] = rollouts.return_ps
    if rollouts.return_ps > most:
        best, most = rollouts.actions.astype(np.int8), rollouts.return_ps
    assert best is not None
    found = improve(game, best, time_limit=0.7 * seconds, seed=seed)
    said["best"] = int(found.return_ps or 0)
    return found.actions, said


def learned(game: CompiledGame, observer: Any, best: Any, own: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
    """Positions of the best game, made plain, and of other games with what should have been done there; values are differences
    to what priced play makes of the position.
    """
    from benchmarks.lib.memory_mapping.deviations import deviations
    from benchmarks.lib.memory_mapping.imitation import positions_of, preferred
    from benchmarks.muzero.own_games import settled

    plain, returns = settled(game, best)
    rollouts = Rollouts(game)
    base = {"completion": rollouts.completion}
    wanted = preferred(returns, plain, game.unit_ps)
    parts = [positions_of(game, observer, plain, wanted, reachable=returns.max(axis=1), **base)]
    for actions in own:
        state = game.reset()
        state.play(actions)
        played = np.array(state.actions, np.int8)
        found = deviations(game, played, following=plain)[1]
        wanted = preferred(found, plain, game.unit_ps)
        parts.append(positions_of(game, observer, played, wanted, reachable=found.max(axis=1), **base))
    return parts, {"plain": int(returns[-1, plain[-1]])}


# ------------------------------------------------------------------------------------------------------------------ run


def network_config() -> Any:
    """Sizes of the network."""
    from benchmarks.muzero.policy import network_config as shipped

    config = shipped()
    return replace(config, observation=replace(config.observation, worths=True), value_limit=2.0, reward_limit=1.0)


class Log:
    """Lines with the time since the beginning, on the screen and in a file."""

    def __init__(self, path: Path):
        self.began, self._path = time.monotonic(), path
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def __call__(self, text: str) -> None:
        line = f"{self.seconds:7.1f} s  {text}"
        print(line, file=sys.stderr, flush=True)
        with self._path.open("a") as out:
            out.write(line + "\n")


def run(arguments: argparse.Namespace) -> int:
    """Everything that needs no solver, within the time."""
    import torch

    from benchmarks.muzero.demonstrations import in_processes

    torch.set_num_threads(1)
    log = Log(arguments.output / "run.log")
    found = load(arguments.programs)[:: arguments.every]
    trained_on = {each.name.split()[0] for each in found}
    found += load(arguments.held)[:: arguments.every]
    held_out = [each.name.split()[0] not in trained_on for each in found]
    folder = Path(arguments.scratch)
    folder.mkdir(parents=True, exist_ok=True)
    warm()
    log(f"{len(found)} programs, compiled")
    left = arguments.seconds - log.seconds
    # In random order: where time ends before all are done, what is done is of all sorts.
    order = np.random.default_rng(arguments.seed).permutation(len(found)).tolist()
    moves = sum(each.problem.use_count for each in found)
    pace = PARTS[0] * left * arguments.processes * 0.55 / moves
    ends = log.began + log.seconds + left * np.cumsum(PARTS)
    log(f"{moves:,} uses, {1000 * pace:.2f} ms of search for each; parts end at {[round(each - log.began) for each in ends]}")

    def label(number: int, counter: Any) -> None:
        work(
            number,
            counter,
            order,
            found,
            held_out,
            folder,
            "label",
            lambda game, place, program: better(game, program.games, pace * program.problem.use_count, place),
            ends[0],
        )

    def own(number: int, counter: Any) -> None:
        play_own(number, counter, order, found, held_out, folder, policies(arguments, "first")[0], ends[2])

    in_processes(arguments.processes, label)
    report(log, folder, "label", found, held_out)
    learners(log, arguments, "first", ends[1])
    in_processes(arguments.processes, own)
    report(log, folder, "own", found, held_out)
    learners(log, arguments, "policy", ends[3])
    if arguments.cases:
        evaluate(log, arguments, ends[4])
    log("done")
    return 0


def policies(arguments: argparse.Namespace, stage: str) -> list[Path]:
    """Policy files of a stage, one for each seed."""
    return [arguments.output / f"{stage}.{seed}.pt" for seed in arguments.seeds]


def learners(log: Log, arguments: argparse.Namespace, stage: str, until: float) -> None:
    """Learn with each seed, all at once, in processes of their own: this one forks, and must not touch a device."""
    begun = policies(arguments, "first") if stage == "policy" else [None] * len(arguments.seeds)
    running = []
    for seed, path, begin in zip(arguments.seeds, policies(arguments, stage), begun, strict=True):
        command = [sys.executable, "-m", "benchmarks.muzero.scarce_policy", "learn", str(path), "--seed", str(seed)]
        command += ["--seconds", f"{until - time.monotonic():.1f}", "--programs", str(arguments.programs)]
        command += ["--device", arguments.device, "--batch", str(arguments.batch), "--report", str(arguments.report)]
        command += ["--scratch", arguments.scratch] + (["--begin", str(begin)] if begin else [])
        running.append(subprocess.Popen(command))
    for each in running:
        if each.wait():
            raise SystemExit(f"a learner ended with code {each.returncode}")
    log(f"{stage}: {len(running)} learned")


def learn(arguments: argparse.Namespace) -> int:
    """Imitate all positions that there are."""
    import torch

    from benchmarks.lib.memory_mapping.imitation import DataSet, imitate, judged
    from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    torch.set_num_threads(1)
    log = Log(arguments.output.with_suffix(".log"))
    torch.manual_seed(arguments.seed)
    if arguments.device == "cuda":
        torch.set_float32_matmul_precision("high")
    network = MMapNetwork(network_config())
    if arguments.begin:
        network.load_state_dict(Policy.load(arguments.begin).file.values["weights"])
    network.to(arguments.device)
    folder = Path(arguments.scratch)
    learned_from = DataSet(load_chunks(folder, "*.learn"), arguments.device)
    held = DataSet(load_chunks(folder, "*.held"), arguments.device)
    log(f"{sum(each.numel() for each in network.parameters()):,} weights")
    log(f"{len(learned_from):,} positions, {len(held):,} held out")
    log(f"before: {rounded(judged(network, held, 3))}")

    def show(step: int, _: float, losses: dict[str, float]) -> None:
        log(f"step {step}: {rounded(losses)} | held out {rounded(judged(network, held, 3))}")

    steps = imitate(
        network,
        learned_from,
        steps=10**9,
        batch=arguments.batch,
        learning_rate=5e-4 if arguments.begin else 1e-3,
        weight_decay=0.05,
        seed=arguments.seed,
        time_limit=max(arguments.seconds - log.seconds, 1.0),
        held=held,
        judge_every=arguments.report,
        on_report=show,
        report_every=arguments.report,
    )
    log(f"after {steps} steps: {rounded(judged(network, held, 3))}")
    write(network, arguments.output, load(arguments.programs), arguments.seed, steps, log.seconds)
    return 0


def cases(arguments: argparse.Namespace) -> int:
    """Cases of a part as a file, to measure elsewhere; what heuristics make of them goes to the results of ``room.py``."""
    from benchmarks.muzero import room

    found = []
    known = {(row["case"], row["way"]) for row in room.rows(arguments.results)}
    for name in scarce.cases(arguments.part):
        if arguments.module not in name:
            continue
        case = room.Case(name)
        for way in ("greedies", "insertion"):
            if (name, way) not in known:
                began = time.process_time()
                room.note(arguments.results, case, way, 0, time.process_time() - began, room.WAYS[way](case, 0))
        found.append(Program(name, case.problem, []))
    save(arguments.output, found)
    return 0


def evaluate(log: Log, arguments: argparse.Namespace, until: float) -> None:
    """Players on cases: the short programs first, all that is done by the time."""
    from benchmarks.muzero.demonstrations import in_processes, take

    found = [each for path in sorted(Path(arguments.cases).glob("*.bin")) for each in load(path)]
    found = [each for each in found if each.problem.use_count <= MOST_EVALUATED]
    found.sort(key=lambda each: each.problem.use_count)
    log(f"{len(found)} cases")

    def measured(number: int, counter: Any) -> None:
        import torch

        from benchmarks.lib.memory_mapping.players_in_room import measure
        from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
        from stowplan.portfolio.memory_mapping.learned import POLICY

        torch.set_num_threads(1)
        learned, shipped = [Policy.load(path) for path in policies(arguments, "policy")], Policy.load(str(POLICY.path))
        with (arguments.output / f"room.{number}.jsonl").open("w") as out:
            # Everything of the first seed, then the other seeds.
            while (place := take(counter)) < 2 * len(found) and time.monotonic() < until:
                again, place = divmod(place, len(found))
                each = found[place]
                for row in measure(each.name, each.problem, learned, shipped, arguments.seeds, bool(again), until):
                    out.write(json.dumps(row) + "\n")
                    out.flush()

    in_processes(arguments.processes, measured)


def rounded(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def warm() -> None:
    """Compile and load what processes will run; they are forked from this one."""
    import torch

    from stowplan.learned_guidance.memory_mapping.game.kernel.state import smallest_problem, warm_up
    from stowplan.learned_guidance.memory_mapping.observation.observer import Observer

    warm_up()
    game = CompiledGame(smallest_problem(), placing=PLACING)
    best, _ = better(game, [], 0.01, 0)
    learned(game, Observer(game, network_config().observation), best, [best])
    # Making an optimiser loads half of torch.
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=torch.tensor(1.0)).step()


def work(
    number: int,
    counter: Any,
    order: list[int],
    found: list[Program],
    held_out: list[bool],
    folder: Path,
    sort: str,
    find: Any,
    until: float,
) -> None:
    """Games and positions of programs in one process, until all are done or the time is."""
    from benchmarks.muzero.demonstrations import take
    from stowplan.learned_guidance.memory_mapping.observation.observer import Observer

    held: dict[bool, list[Any]] = {False: [], True: []}
    with (folder / f"{sort}.{number}.jsonl").open("w") as out:
        while (place := take(counter)) < len(order) and time.monotonic() < until:
            program = found[order[place]]
            game = CompiledGame(program.problem, placing=PLACING)
            observer = Observer(game, network_config().observation)
            best, said = find(game, order[place], program)
            from benchmarks.lib.memory_mapping.priced_play import priced

            parts, more = learned(game, observer, best, [priced(game).actions])
            held[held_out[order[place]]] += parts
            row = {"place": order[place], "moves": len(game.moves), "actions": np.asarray(best).tolist(), **said, **more}
            out.write(json.dumps(row) + "\n")
    keep(held, folder, sort, number)


def play_own(
    number: int,
    counter: Any,
    order: list[int],
    found: list[Program],
    held_out: list[bool],
    folder: Path,
    path: Path,
    until: float,
) -> None:
    """The policy's likeliest games of programs, several side by side, and what it should have done there; and games that it
    searches, which take the place of the best where they are better.
    """
    import torch

    from benchmarks.lib.memory_mapping.guided_rollouts import guided
    from benchmarks.muzero.demonstrations import take
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
    from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame
    from stowplan.learned_guidance.memory_mapping.observation.observer import Observer

    torch.set_num_threads(1)
    policy = Policy.load(path)
    rows = {}
    for each in folder.glob("label.*.jsonl"):
        rows.update({row["place"]: row for row in map(json.loads, each.read_text().splitlines())})
    held: dict[bool, list[Any]] = {False: [], True: []}
    # Programs of about one length side by side.
    order = sorted(order, key=lambda each: found[each].problem.use_count)
    groups = [order[first : first + 16] for first in range(0, len(order), 16)]
    np.random.default_rng(0).shuffle(groups)
    with (folder / f"own.{number}.jsonl").open("w") as out:
        while (place := take(counter)) < len(groups) and time.monotonic() < until:
            places = [each for each in groups[place] if each in rows]
            games = [ProgramGame(found[each].problem, policy.config) for each in places]
            played = policy.play(
                games, temperatures=np.zeros(len(games)), seed=place, should_stop=lambda: time.monotonic() > until
            )
            for each, game, own in zip(places, games, played, strict=False):
                if time.monotonic() > until:
                    break
                row = rows[each]
                best = np.array(row["actions"], np.int8)
                observer = Observer(game.game, network_config().observation)
                searched = guided(policy, game.game, WEIGHT)
                is_better = int(searched.return_ps or 0) > row["best"]
                if is_better:
                    assert searched.actions is not None
                    state = game.game.reset()
                    state.play(searched.actions)
                    best = np.array(state.actions, np.int8)
                parts, _ = learned(game.game, observer, best, [own.actions])
                held[held_out[each]] += parts if is_better else parts[1:]
                more = {
                    "policy": own.return_ps,
                    "searched": searched.return_ps,
                    **{name: row[name] for name in ("priced", "evolved", "rollouts", "best", "moves")},
                }
                if "insertion" in row:
                    more["insertion"] = row["insertion"]
                out.write(json.dumps({"place": each, **more}) + "\n")
    keep(held, folder, "own", number)


def keep(held: dict[bool, list[Any]], folder: Path, sort: str, number: int) -> None:
    """Write positions."""
    from benchmarks.lib.memory_mapping.imitation import joined

    for is_held, parts in held.items():
        if parts:
            whole = joined(parts)
            arrays = {f"a{place:02d}": each for place, each in enumerate((*whole.observations, *whole[1:]))}
            np.savez(folder / f"{sort}.{'held' if is_held else 'learn'}.{number}.npz", **arrays)


def report(log: Log, folder: Path, sort: str, found: list[Program], held_out: list[bool]) -> None:
    """What games came to: mean R by name, and how often which was at least as good as which."""
    rows = [json.loads(line) for path in sorted(folder.glob(f"{sort}.*.jsonl")) for line in path.read_text().splitlines()]
    for part, is_held in (("learned from", False), ("held out", True)):
        means: dict[str, list[float]] = {}
        some = [row for row in rows if held_out[row["place"]] == is_held]
        for row in some:
            problem = found[row["place"]].problem
            for name in ("priced", "evolved", "rollouts", "insertion", "best", "plain", "policy", "searched"):
                if name in row:
                    means.setdefault(name, []).append(float(problem.normalised_return(problem.all_slow_ps - row[name])))
        said = ", ".join(f"{name} {np.mean(each):.4f}" for name, each in means.items())
        log(f"{sort}, {part}: {len(some)} programs, {said}")
        for name in ("priced", "evolved", "rollouts", "insertion"):
            both = [row for row in some if "policy" in row and name in row]
            if both:
                shares = [f"{np.mean([row[way] >= row[name] for row in both]):.2f}" for way in ("policy", "searched")]
                log(f"  policy, searched at least {name}: {', '.join(shares)}")


def write(network: Any, path: Path, found: list[Program], seed: int, steps: int, seconds: float) -> None:
    """A policy file."""
    from stowplan.learned_guidance.memory_mapping.muzero.checkpoint import POLICY
    from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
    from stowplan.learned_guidance.training.checkpoint import Provenance, plain_weights
    from stowplan.learned_guidance.training.checkpoint import save as save_file

    trained_on = sorted({each.name.split()[0] for each in found})
    came_from = Provenance(
        programs=tuple(trained_on), digests=(), seed=seed, training_steps=steps, games=0, moves=0, seconds=seconds
    )
    config = TrainingConfig.cpu(network=network_config(), placing=PLACING)
    save_file(path, POLICY, config, came_from, {"weights": plain_weights(network.state_dict())})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("programs")
    one.add_argument("part", choices=("training", "choosing"))
    one.add_argument("output", type=Path)
    one.add_argument("--count", type=int, default=600)
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(run=programs)
    two = commands.add_parser("run")
    two.add_argument("programs", type=Path)
    two.add_argument("--held", type=Path, required=True, help="programs that are not learned from")
    two.add_argument("--cases", help="folder of files of cases, to measure players on")
    two.add_argument("-o", "--output", type=Path, required=True, help="a folder")
    two.add_argument("--processes", type=int, default=2)
    two.add_argument("--every", type=int, default=1, help="take every so many-th program alone")
    two.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the networks")
    two.set_defaults(run=run)
    three = commands.add_parser("learn")
    three.add_argument("output", type=Path)
    three.add_argument("--programs", type=Path, required=True)
    three.add_argument("--begin", type=Path)
    three.set_defaults(run=learn)
    for each in (two, three):
        each.add_argument("--seconds", type=float, default=500.0)
        each.add_argument("--scratch", default="/dev/shm/positions")
        each.add_argument("--device", default="cpu")
        each.add_argument("--batch", type=int, default=2048)
        each.add_argument("--report", type=int, default=1000, help="steps between two lines")
        each.add_argument("--seed", type=int, default=0)
    four = commands.add_parser("cases")
    four.add_argument("part", choices=scarce.PARTS)
    four.add_argument("module", help="part of its name")
    four.add_argument("output", type=Path)
    four.add_argument("--results", type=Path, default=Path("results/room.jsonl"))
    four.set_defaults(run=cases)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
