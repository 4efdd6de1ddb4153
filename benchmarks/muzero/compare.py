"""A policy of MMapGame beside constructive heuristics under equal rules: no stalls, no preloads, one channel.

    python -m benchmarks.muzero.compare POLICY ../shared/corpus/tpu_v4/*.hlo.txt.gz --drawn 0

Of the modules given, in the order of their names, the policy that ships has learned from every second one. The baseline is the
stronger of two production-style greedies: planning with stalls, where the target allows them, and without.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import stowplan
from benchmarks.lib.memory_mapping.constructions import best_guided
from benchmarks.lib.memory_mapping.greedies import AS_ALLOWED, greedies
from benchmarks.lib.tables import table
from benchmarks.muzero.runs import in_processes, take
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, play_greedy
from stowplan.learned_guidance.memory_mapping.game.programs import as_played
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.heuristics import WITHOUT_STALLS


class Compared(msgspec.Struct):
    """One module: R of each way to plan it, and processor seconds."""

    module: str
    moves: int
    is_learned_from: bool
    rewards: dict[str, float]
    seconds: dict[str, float]

    @property
    def greedy(self) -> float:
        """The stronger one."""
        return max(self.rewards[name] for name in (AS_ALLOWED, WITHOUT_STALLS) if name in self.rewards)


#: Of drawn games.
TEMPERATURE = 0.5

#: Processor seconds that the relaxation may take.
RELAXATION_SECONDS = 20.0


def measure(
    path: Path, policy: Any, *, is_learned_from: bool, untrained: Any = None, drawn: int = 15, seed: int = 0
) -> Compared:
    """All ways on one module; AssertionError where a plan does not verify. ``drawn`` games are played beside the likeliest."""
    problem = stowplan.read(path, target="tpu-v4")
    own = as_played(problem)
    rewards: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def note(name: str, began: float, objective_ps: int) -> None:
        seconds[name] = time.process_time() - began
        rewards[name] = problem.normalised_return(objective_ps)

    began = time.process_time()
    for name, plan in greedies(problem).items():
        assert verify(problem, plan).ok
        note(name, began, plan.objective)
        began = time.process_time()
    game = CompiledGame(own)
    state = game.reset()
    began = time.process_time()
    note("greedy game", began, problem.all_slow_ps - int(play_greedy(game.tables, state.data)))
    began = time.process_time()
    data = arrays.build(own)
    built = [heuristics.run(steps, lambda: False)[0] for _, steps in heuristics.constructive(data)]
    note("insertion", began, min(int(state.totals[0].total) for state in built))
    began = time.process_time()
    hint, _ = relaxation_hint(own, Effort(end=time.monotonic() + RELAXATION_SECONDS))
    seconds["relaxation"] = time.process_time() - began
    if hint is not None:
        began = time.process_time()
        note("guided insertion", began, int(best_guided(data, hint, lambda: False).totals[0].total))
    for name, player in (("policy", policy), ("untrained", untrained)):
        if player is None:
            continue
        began = time.process_time()
        games = [player.rollout(game)]
        note(name, began, problem.all_slow_ps - games[0].return_ps)
        if drawn:
            began = time.process_time()
            games += player.rollouts(game, drawn, temperature=TEMPERATURE, seed=seed)
            note(f"{name} x {drawn + 1}", began, problem.all_slow_ps - max(played.return_ps for played in games))
        assert all(verify(own, played.plan).ok for played in games)
    name = path.name.removesuffix(".gz").removesuffix(".hlo.txt")
    return Compared(name, len(game.moves), is_learned_from, rewards, seconds)


def markdown(rows: Sequence[Compared]) -> str:
    """Every module, then the means of those not learned from."""
    names = list(dict.fromkeys(name for row in rows for name in row.rewards))
    lines: list[list[object]] = []
    for row in sorted(rows, key=lambda row: (row.is_learned_from, row.module)):
        cells = [f"{row.rewards[name]:.4f}" if name in row.rewards else "" for name in names]
        lines.append([row.module, "yes" if row.is_learned_from else "no", f"{row.moves:,}", *cells])
    parts = [table(lines, ["module", "learned from", "moves", *names])]
    fresh = [row for row in rows if not row.is_learned_from]
    for title, group in (("not learned from", fresh), ("learned from", [row for row in rows if row.is_learned_from])):
        if not group:
            continue
        summary: list[list[object]] = []
        for name in names:
            with_it = [row for row in group if name in row.rewards]
            if not with_it:
                continue
            rewards = [row.rewards[name] for row in with_it]
            reached = sum(row.rewards[name] >= row.greedy - 1e-9 for row in with_it)
            inserted = sum(row.rewards[name] >= row.rewards["insertion"] - 1e-9 for row in with_it)
            total = f"{sum(row.seconds[name] for row in with_it):.1f}"
            count = len(with_it)
            summary.append([name, f"{np.mean(rewards):.4f}", f"{reached}/{count}", f"{inserted}/{count}", total])
        parts.append(table(summary, [title, "mean R", "at least the greedy", "at least insertion", "processor s"]))
    solved = [row.seconds["relaxation"] for row in rows]
    parts.append(f"The relaxation takes {np.median(solved):.2f} processor seconds in the median, {max(solved):.1f} at most.")
    return "\n\n".join(parts)


def without_training(policy: Any, seed: int) -> Any:
    """A policy of the same sizes with the weights that training begins with."""
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    torch.manual_seed(seed)
    return Policy(policy.file, MMapNetwork(policy.config.network))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", type=Path)
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--unseen", action="store_true", help="only modules that were not learned from")
    parser.add_argument("--untrained", action="store_true", help="an untrained network of the same sizes, too")
    parser.add_argument("--drawn", type=int, default=15, help="games drawn beside the likeliest")
    parser.add_argument("--folder", type=Path, default=Path("results/mmap_compare"), help="where rows are kept")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no module after so long")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    learned = {path.name for path in sorted(arguments.modules)[1::2]}
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
            row = measure(
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
    rows = [msgspec.json.decode(path.read_bytes(), type=Compared) for path in arguments.folder.glob("*.json")]
    print(markdown([row for row in rows if row.module in names]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
