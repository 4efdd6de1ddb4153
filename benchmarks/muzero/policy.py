"""Makes the policy of MMapGame that is shipped: demonstrations on windows of programs, imitation, own games, and again.

    python -m benchmarks.muzero.policy demonstrate ../shared/corpus/tpu_v4/*.hlo.txt.gz -o one/ --positions one/ --seconds 240
    python -m benchmarks.muzero.policy train ../shared/corpus/tpu_v4/*.hlo.txt.gz --positions one/ --seconds 170 -o one.pt
    python -m benchmarks.muzero.policy demonstrate ../shared/corpus/tpu_v4/*.hlo.txt.gz -o two/ --positions two/ --policy one.pt
    python -m benchmarks.muzero.policy train ../shared/corpus/tpu_v4/*.hlo.txt.gz --positions two/ --policy one.pt -o two.pt
    python -m benchmarks.muzero.policy compare POLICY ../shared/corpus/tpu_v4/*.hlo.txt.gz

Of the modules given, in the order of their names, every second one is learned from; the policy is judged by the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.muzero import demonstrations, own_games
from benchmarks.muzero.demonstrations import Demonstrated, Program, Source, again, demonstrated, in_processes, take
from stowplan.learned_guidance.memory_mapping.muzero.config import NetworkConfig
from stowplan.learned_guidance.memory_mapping.observation.layout import ObservationConfig

#: Positions in one file of a process, at most (but for one program's).
CHUNK = 60_000

#: Seconds between two lines of progress.
EVERY = 20.0


def network_config() -> NetworkConfig:
    """Sizes of the network that is shipped."""
    seen = ObservationConfig(
        future_buffers=8,
        same_tensor_buffers=4,
        # Ids of other programs' tensors say nothing, and are what a network remembers programs by.
        id_buckets=2,
        map_rows=64,
        map_columns=64,
        steps_per_column=2,
        profile_bins=256,
        supply_slots=64,
    )
    return NetworkConfig(observation=seen, hidden=160, encoder_layers=(192,), dynamics_width=160, head_layers=(64,))


def is_held_out(found: Demonstrated) -> bool:
    """Whether a program is kept to look at how well others are learned."""
    return found.spec[1] % demonstrations.HELD_OUT == 0


class Chunks:
    """Positions as files of a folder, two sorts: learned from, and held out."""

    def __init__(self, folder: Path | None, number: int):
        self._folder, self._number, self._files = folder, number, 0
        self._parts: dict[str, list[Any]] = {"learn": [], "held": []}

    def add(self, sort: str, parts: Sequence[Any]) -> None:
        """More of a sort."""
        if self._folder is not None:
            self._parts[sort] += parts
            if sum(len(part.played) for part in self._parts[sort]) > CHUNK:
                self.flush(sort)

    def flush(self, *sorts: str) -> None:
        """Write what is left."""
        from benchmarks.lib.memory_mapping.imitation import joined

        for sort in sorts or ("learn", "held"):
            if self._folder is None or not self._parts[sort]:
                continue
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{sort}.{self._number}.{self._files}.npz"
            whole = joined(self._parts[sort])
            arrays = {f"a{place:02d}": each for place, each in enumerate((*whole.observations, *whole[1:]))}
            with path.with_suffix(".part").open("wb") as out:
                np.savez(out, **arrays)  # type: ignore[arg-type]
            path.with_suffix(".part").rename(path)
            self._parts[sort] = []
            self._files += 1


def load_chunks(folder: Path, sort: str) -> Iterator[Any]:
    """What :class:`Chunks` wrote."""
    from benchmarks.lib.memory_mapping.imitation import Positions
    from stowplan.learned_guidance.memory_mapping.observation.layout import Observations

    width = len(Observations._fields)
    for path in sorted(folder.glob(f"{sort}.*.npz")):
        with np.load(path) as arrays:
            columns = [arrays[name] for name in sorted(arrays.files)]
        yield Positions(Observations._make(columns[:width]), *columns[width:])


def warm(modules: Sequence[Path]) -> Source:
    """Load what the processes will run, and read the modules; the processes are forked from this one."""
    source = Source.of(modules)
    made = Program.of(source, ("", 0, 0))
    assert made is not None
    found = demonstrated(made, 0.01)
    own_games.positions(made, found, [], network_config().observation)
    return source


def demonstrate(arguments: argparse.Namespace) -> int:
    """Good games of programs, until time is up; with a policy, what it plays there as well."""
    began = time.monotonic()
    source = warm(arguments.modules)
    print(f"{time.monotonic() - began:.1f} s: loaded, {len(source.modules)} modules read", file=sys.stderr, flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    specs = list(_first(source, arguments.seed, arguments.first, arguments.count))
    known = {found.spec: found for found in demonstrations.read(arguments.known)}
    wanted = [*known, *(spec for spec in specs if spec not in known)]
    groups = [wanted[first : first + arguments.group] for first in range(0, len(wanted), arguments.group)]

    def work(number: int, counter: Any) -> None:
        policy = None
        if arguments.policy is not None:
            import torch

            from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

            torch.set_num_threads(1)
            policy = Policy.load(arguments.policy, arguments.device)
        chunks, done, said = Chunks(arguments.positions, number), 0, time.monotonic()
        with (arguments.output / f"games.{arguments.seed}.{number}.jsonl").open("a") as out:
            while time.monotonic() - began < arguments.seconds and (place := take(counter)) < len(groups):
                shown = [known[spec].hint if spec in known else None for spec in groups[place]]
                made = [Program.of(source, spec, hint) for spec, hint in zip(groups[place], shown, strict=True)]
                programs = [program for program in made if program is not None]
                played = [[] for _ in programs] if policy is None else own_games.play(policy, programs, place)
                for program, games in zip(programs, played, strict=True):
                    if program.spec in known:
                        found = again(program, known[program.spec])
                    else:
                        found = demonstrated(program, arguments.pace, [game.actions for game in games])
                    if games:
                        own_games.note(program, found, games)
                    parts = own_games.positions(program, found, games, network_config().observation)
                    chunks.add("held" if is_held_out(found) else "learn", parts)
                    out.write(found.pack() + "\n")
                    done += 1
                out.flush()
                if time.monotonic() - said > EVERY and number == 0:
                    said = time.monotonic()
                    print(f"{said - began:.0f} s: {done} programs by the first process", file=sys.stderr, flush=True)
        chunks.flush()

    in_processes(arguments.processes, work)
    found = demonstrations.read(sorted(arguments.output.glob("games.*.jsonl")))
    print(summary(found), file=sys.stderr, flush=True)
    return 0


def _first(source: Source, seed: int, first: int, count: int) -> Iterator[tuple[str, int, int]]:
    for _, spec in zip(range(count), source.specs(seed, first), strict=False):
        yield spec


def summary(found: Sequence[Demonstrated]) -> str:
    """How many there are, and how good they are."""
    lines = [f"{len(found)} programs, {sum(each.moves for each in found):,} moves"]
    for name in dict.fromkeys(name for each in found for name in each.rewards):
        rewards = [each.rewards[name] for each in found if name in each.rewards]
        lines.append(f"  mean R of {name}: {np.mean(rewards):.4f} on {len(rewards)}")
    return "\n".join(lines)


def train(arguments: argparse.Namespace) -> int:
    """Imitate."""
    import torch

    from benchmarks.lib.memory_mapping.imitation import DataSet, imitate, judged
    from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    began = time.monotonic()
    data = DataSet(load_chunks(arguments.positions, "learn"), arguments.device)
    held = DataSet(load_chunks(arguments.positions, "held"), arguments.device)
    print(f"{time.monotonic() - began:.1f} s: {len(data):,} positions, {len(held):,} held out", file=sys.stderr, flush=True)
    torch.manual_seed(arguments.seed)
    network = MMapNetwork(network_config())
    if arguments.policy is not None:
        from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

        network.load_state_dict(Policy.load(arguments.policy).file.values["weights"])
    network.to(arguments.device)
    print(f"{sum(each.numel() for each in network.parameters()):,} weights", file=sys.stderr, flush=True)

    def show(step: int, seconds: float, losses: dict[str, float]) -> None:
        said = ", ".join(f"{name} {value:.4f}" for name, value in losses.items())
        line = f"{seconds:6.1f} s, step {step}: {said}"
        if step % (4 * arguments.report) == 0:
            line += " | held out: " + ", ".join(f"{name} {value:.4f}" for name, value in judged(network, held, 3).items())
        print(line, file=sys.stderr, flush=True)

    done = imitate(
        network,
        data,
        steps=arguments.steps,
        batch=arguments.batch,
        learning_rate=arguments.rate,
        seed=arguments.seed,
        record=not arguments.plain,
        time_limit=arguments.seconds - (time.monotonic() - began),
        weight_decay=arguments.decay,
        held=held if len(held) else None,
        on_report=show,
        report_every=arguments.report,
    )
    print("the mean's held out: ", judged(network, held, 3), file=sys.stderr, flush=True)
    save_policy(network, arguments, done, time.monotonic() - began)
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """The policy beside heuristics on every module."""
    import msgspec

    from benchmarks.muzero import compare as comparison

    warm(())
    learned = {path.name for path in demonstrations.learned_from(arguments.modules)}
    paths = [path for path in arguments.modules if not (arguments.unseen and path.name in learned)]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def work(_: int, counter: Any) -> None:
        import torch

        from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

        torch.set_num_threads(1)
        policy = Policy.load(arguments.policy)
        untrained = without_training(policy, arguments.seed) if arguments.untrained else None
        # The largest first, so that no process is left with one at the end.
        ordered = sorted(paths, key=lambda path: -path.stat().st_size)
        while (place := take(counter)) < len(ordered) and time.monotonic() - began < arguments.seconds:
            path = ordered[place]
            row = comparison.measure(
                path,
                policy,
                is_learned_from=path.name in learned,
                untrained=untrained,
                drawn=arguments.drawn,
                seed=arguments.seed,
            )
            (arguments.folder / f"{row.module}.json").write_bytes(msgspec.json.encode(row))

    in_processes(arguments.processes, work)
    names = {path.name.removesuffix(".gz").removesuffix(".hlo.txt") for path in paths}
    found = [msgspec.json.decode(path.read_bytes(), type=comparison.Compared) for path in arguments.folder.glob("*.json")]
    print(comparison.markdown([row for row in found if row.module in names]))
    return 0


def without_training(policy: Any, seed: int) -> Any:
    """A policy of the same sizes with the weights that training begins with."""
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    torch.manual_seed(seed)
    return Policy(policy.file, MMapNetwork(policy.config.network))


def save_policy(network: Any, arguments: argparse.Namespace, steps: int, seconds: float) -> None:
    """Write the policy."""
    from stowplan.learned_guidance.memory_mapping.muzero.checkpoint import POLICY
    from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
    from stowplan.learned_guidance.training.checkpoint import Provenance, plain_weights, save

    source = Source.of(arguments.modules)
    came_from = Provenance(
        programs=tuple(problem.name for problem in source.problems.values()),
        digests=tuple(problem.digest for problem in source.problems.values()),
        seed=arguments.seed,
        training_steps=steps,
        games=0,
        moves=0,
        seconds=seconds,
    )
    config = TrainingConfig.cpu(network=network_config())
    print(save(arguments.output, POLICY, config, came_from, {"weights": plain_weights(network.state_dict())}), file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("demonstrate")
    one.add_argument("modules", nargs="+", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--positions", type=Path, help="write observed positions here, too")
    one.add_argument("--seconds", type=float, default=240.0, help="wall time, of which a program takes its part")
    one.add_argument("--pace", type=float, default=1.0, help="scales the time for each program")
    one.add_argument("--known", type=Path, nargs="*", default=[], help="files of games of an earlier round, used again first")
    one.add_argument("--policy", type=Path, help="play with it, and show it what it should have done")
    one.add_argument("--device", default="cpu", help="of the policy's network in each process")
    one.add_argument("--group", type=int, default=16, help="programs made, and played by the policy, side by side")
    one.add_argument("--processes", type=int, default=1)
    one.add_argument("--first", type=int, default=0, help="number of the first program")
    one.add_argument("--count", type=int, default=100_000, help="programs, at most")
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(run=demonstrate)
    two = commands.add_parser("train")
    two.add_argument("modules", nargs="+", type=Path)
    two.add_argument("--positions", type=Path, required=True)
    two.add_argument("-o", "--output", type=Path, required=True)
    two.add_argument("--policy", type=Path, help="begin with its weights")
    two.add_argument("--seconds", type=float, default=600.0)
    two.add_argument("--steps", type=int, default=1_000_000)
    two.add_argument("--batch", type=int, default=2048)
    two.add_argument("--rate", type=float, default=1e-3)
    two.add_argument("--decay", type=float, default=0.05, help="weight decay")
    two.add_argument("--report", type=int, default=500, help="steps between two lines")
    two.add_argument("--plain", action="store_true", help="make each step anew, on a GPU, too")
    two.add_argument("--device", default="cpu")
    two.add_argument("--seed", type=int, default=0)
    two.set_defaults(run=train)
    three = commands.add_parser("compare")
    three.add_argument("policy", type=Path)
    three.add_argument("modules", nargs="+", type=Path)
    three.add_argument("--unseen", action="store_true", help="only modules that were not learned from")
    three.add_argument("--untrained", action="store_true", help="an untrained network of the same sizes, too")
    three.add_argument("--drawn", type=int, default=15, help="games drawn beside the likeliest")
    three.add_argument("--folder", type=Path, default=Path("results/mmap_compare"), help="where rows are kept")
    three.add_argument("--processes", type=int, default=1)
    three.add_argument("--seconds", type=float, default=3600.0, help="begin no module after so long")
    three.add_argument("--seed", type=int, default=0)
    three.set_defaults(run=compare)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
