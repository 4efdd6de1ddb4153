"""Comparisons and tables of MMapGame's benchmarks, on programs of a few moves."""

from __future__ import annotations

from typing import Any

import numpy as np

import benchmarks.lib.memory_mapping.players
import benchmarks.muzero.attribution
import benchmarks.muzero.compare
from benchmarks.lib.memory_mapping.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.programs import as_played


def small(seed: int = 0) -> Any:
    return as_played(synthetic(np.random.default_rng(seed), moves=40))


def test_the_best_games_are_kept_each_once() -> None:
    module = benchmarks.muzero.attribution
    game = CompiledGame(small())
    elite = module.Elite(game, np.random.default_rng(0))
    for _ in range(40):
        elite.offer(elite.biased())
    returns = [found for found, _ in elite.games]
    assert returns == sorted(set(returns), reverse=True)
    assert len(returns) <= module.KEPT
    state = game.reset()
    state.play(elite.games[0][1])
    assert state.is_over
    assert state.return_ps == returns[0]


def test_a_module_is_judged_by_the_stronger_greedy() -> None:
    module = benchmarks.muzero.compare
    rows = [
        module.Compared(
            "a", 5, False, {"greedy": 0.5, "greedy, no stalls": 0.7, "insertion": 0.8, "policy": 0.7}, {"relaxation": 1.0}
        ),
        module.Compared("b", 6, True, {"greedy": 0.5, "insertion": 0.5, "policy": 0.4}, {"relaxation": 3.0}),
    ]
    for row in rows:
        row.seconds.update(dict.fromkeys(row.rewards, 0.5))
    assert [row.greedy for row in rows] == [0.7, 0.5]
    found = module.markdown(rows)
    assert "| policy | 0.7000 | 1/1 | 0/1 | 0.5 |" in found
    assert "| policy | 0.4000 | 0/1 | 0/1 | 0.5 |" in found


def test_attribution_compares_at_equal_time(tmp_path: Any, capsys: Any) -> None:
    import argparse

    import msgspec

    module = benchmarks.muzero.attribution
    record = module.Record(8.0)
    record.points = [(1.0, 5), (3.0, 7), (9.0, 9)]
    assert [record.at(moment) for moment in (0.5, 2.0, 8.0)] == [0, 5, 7]
    for method, reward in (("both", 0.5), ("agent", 0.4)):
        for seed in range(2):
            run = module.Run("dlrm_inf_b256", method, seed, 406, 8.0, 8.0, 0.3, reward, 10)
            (tmp_path / f"{method}.{seed}.json").write_bytes(msgspec.json.encode(run))
    module.show(argparse.Namespace(folder=tmp_path, most_moves=1000))
    printed = capsys.readouterr().out
    assert "| dlrm_inf_b256 | 406 | 0.5000 | 0.4000 |" in printed
    assert "| agent | -0.1000 | -0.1000 to -0.1000 | 0 | 1 | 0.3000 |" in printed


def test_the_paper_has_its_own_preset(monkeypatch: Any) -> None:
    module = benchmarks.lib.memory_mapping.players
    seen: list[Any] = []
    monkeypatch.setattr(module, "_train", lambda *_, preset=None, **__: seen.append(preset))
    module.METHODS["paper"](CompiledGame(small()), 0, 1.0, [])
    assert seen[0]().search.simulations == 400
    assert "agent-alone" not in module.METHODS
