"""Plans for TensorFlow Lite Micro: the runtime's planner played, orders, scratch memory, subgraphs; and what the check sees."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import msgspec
import pytest

from stowplan.backends.tflm import greedy, scratch
from stowplan.backends.tflm.check import faults
from stowplan.backends.tflm.greedy import Request
from stowplan.backends.tflm.planning import plan_model
from stowplan.backends.tflm.recheck import recheck
from stowplan.backends.tflm.write import with_offsets, with_orders
from stowplan.errors import InputError, UsageError
from stowplan.frontends.tflite.model import read_tflite, scopes
from stowplan.kernel.context import Options
from tests.backends.tflm.models import ADD, IF, LESS, NEG, Graph, Step, branch, drawn, loop, number, real, save, state, wide
from tests.frontends.tflite.tflite_models import tensor
from tests.paths import EXAMPLES

SHARED = Path(__file__).resolve().parents[4] / "shared" / "tflm"

#: Head by the runtime's own planner, as tflite-micro 0.dev20261023 said, and the least without overlap.
HEADS = {
    "emza_ssd_slim": (316_288, 316_288),
    "mcunet_detection": (337_024, 337_024),
    "mcunet_vww": (161_472, 161_472),
    "mlperf_ad01_int8": (768, 768),
    "mlperf_kws_int8": (16_000, 16_000),
    "mlperf_resnet8_int8": (49_152, 49_152),
    "mlperf_vww96_int8": (73_728, 55_296),
    "mww_alexa_v1": (21_216, 14_208),
    "mww_vad": (1_536, 1_456),
    "sl_kws_on_off_v3": (21_568, 19_616),
    "tflm_audio_preprocessor_int8": (3_040, 3_040),
    "tflm_dtln_noise_suppression": (1_424, 1_424),
    "tflm_keyword_scrambled_8bit": (672, 672),
    "tflm_person_detect": (55_296, 55_296),
    "tflm_trained_lstm_int8": (1_536, 1_536),
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/tflm")
@pytest.mark.parametrize("name", HEADS)
def test_models_of_others_are_at_the_least_head(name: str) -> None:
    summary = plan_model(SHARED / f"{name}.tflite").summary
    assert (summary.greedy, summary.head) == HEADS[name]
    assert summary.is_proven


def test_the_planner_of_the_runtime() -> None:
    # Of equal sizes the later is placed first; a gap is taken where it is large enough.
    assert greedy.place([Request(32, 0, 1), Request(32, 1, 2), Request(16, 0, 0)]) == [32, 0, 0]
    # What is fixed stands there, whatever it meets, and the rest goes around it.
    assert greedy.place([Request(64, 0, 5), Request(16, 2, 3, 32), Request(16, 3, 3, 32)]) == [48, 32, 32]
    requests = [Request(16, 0, 1, 0), Request(16, 1, 2, 48), Request(32, 1, 1), Request(16, 1, 1)]
    offsets = greedy.place(requests)
    assert (offsets, greedy.head(requests, offsets)) == ([0, 48, 16, 64], 80)


def test_subgraphs_have_scopes_of_their_own(tmp_path: Path) -> None:
    model = read_tflite(branch(tmp_path / "if.tflite"))
    found = scopes(len(model.tensors), model.subgraphs)
    # NEG, LESS and IF begin scopes 1 to 3, its branches 4 and 7, with an operator each after them; ADD is the last.
    assert found.operators == {
        (0, 0): (1, 1),
        (0, 1): (2, 2),
        (0, 2): (3, 8),
        (0, 3): (9, 9),
        (1, 0): (5, 5),
        (1, 1): (6, 6),
        (2, 0): (8, 8),
    }
    assert list(zip(found.first, found.last, strict=True))[:6] == [(0, 9), (0, 2), (1, 8), (2, 8), (3, 9), (9, 9)]
    for path in (branch(tmp_path / "if.tflite"), loop(tmp_path / "while.tflite")):
        summary = plan_model(path).summary
        assert summary.is_proven
        assert summary.subgraphs == 3
        assert summary.head <= summary.greedy


def test_variables_keep_their_sequence_and_what_is_nobodys_takes_nothing(tmp_path: Path) -> None:
    planned = plan_model(state(tmp_path / "state.tflite"))
    # Three vectors of 256 bytes live at once.
    assert (planned.summary.greedy, planned.summary.head, planned.summary.bound) == (1024, 768, 768)
    offsets = planned.summary.offsets
    assert (offsets[1], offsets[5], offsets[7]) == (-1, 0, -1)
    broken = bytearray(with_orders(planned.source, {0: (0, 1, 4, 2, 3, 5, 6)}))
    assert "operators with effects run in another sequence" in faults(
        planned.source.data, with_offsets(bytes(broken), offsets), {}
    )


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
def test_a_better_order_is_taken_and_written(tmp_path: Path) -> None:
    path = wide(tmp_path / "wide.tflite")
    planned = plan_model(path)
    summary = planned.summary
    assert summary.moved
    assert summary.head == summary.bound < summary.greedy
    again = tmp_path / "again.tflite"
    again.write_bytes(planned.data)
    written = read_tflite(again, replace_offline_plan=True)
    assert [each.writes for each in written.subgraphs[0].operators] == [
        planned.source.subgraphs[0].operators[at].writes for at in summary.orders[0]
    ]
    assert written.offsets == summary.offsets
    assert plan_model(path, reorder=False).summary.moved == 0
    with pytest.raises(InputError, match=r"OfflineMemoryAllocation: found offsets in the model.*replace_offline_plan=yes"):
        plan_model(again)
    assert plan_model(again, replace_offline_plan=True).summary.head == summary.head


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_above_greedy(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = drawn(tmp_path / "drawn.tflite", chance, steps=chance.randrange(2, 20))
    count = len(read_tflite(path).subgraphs[0].operators)
    given = [f"{chance.randrange(count)}={chance.randrange(1, 900)}+{chance.randrange(400)}"]
    planned = plan_model(path, scratch=given, options=Options(time_limit=1.0))
    summary = planned.summary
    assert summary.bound <= summary.head <= summary.greedy
    # The packing plan is what the runtime makes of the offsets.
    assert planned.plan.objective == summary.head


@pytest.mark.parametrize("kernels", ["none", "reference"])
@pytest.mark.parametrize("seed", range(3))
def test_inputs_that_survive_the_run_lie_above_all_else(seed: int, kernels: str, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = drawn(tmp_path / "drawn.tflite", chance, steps=chance.randrange(2, 20))
    model = read_tflite(path)
    given = [f"{at}={chance.randrange(1, 900)}" for at in range(len(model.subgraphs[0].operators))]
    names = [model.tensors[number].own_name for number in model.subgraphs[0].inputs]
    options = Options(time_limit=1.0)
    plain = plan_model(path, scratch=given, kernels=kernels, options=options).summary
    kept = plan_model(path, scratch=given, kernels=kernels, keep=names, options=options)
    summary = kept.summary
    assert summary.kept == sum(model.tensors[number].size for number in model.subgraphs[0].inputs) > 0
    assert plain.head <= summary.head <= summary.greedy + summary.kept
    assert summary.head == kept.plan.objective == summary.bound
    rest = [at for number, at in enumerate(summary.offsets) if number not in model.subgraphs[0].inputs]
    assert min(summary.offsets[number] for number in model.subgraphs[0].inputs) > max(rest)


def test_the_check_sees_that_an_input_does_not_survive(tmp_path: Path) -> None:
    graph = Graph([real(64)] * 4, [0], [3], [Step(NEG, [at], [at + 1]) for at in range(3)])
    path = save(tmp_path / "named.tflite", graph._replace(tensors=[{**real(64), 3: f"x{at}"} for at in range(4)]))
    planned = plan_model(path)
    assert any("before the end of the run" in fault for fault in faults(planned.source.data, planned.data, {}, kept=[0]))
    assert plan_model(path, keep=["x0"]).summary.head == planned.summary.head + 256
    with pytest.raises(InputError, match="found --keep x1, expected an input: x0"):
        plan_model(path, keep=["x1"])


def test_the_check_sees_bytes_that_are_shared_and_values_that_are_not_there(tmp_path: Path) -> None:
    planned = plan_model(wide(tmp_path / "wide.tflite"), reorder=False)
    data, offsets = planned.source.data, list(planned.summary.offsets)
    assert faults(data, planned.data, {}) == []
    for vector in (1, 2):
        # The two long vectors live together.
        wrong = [*offsets]
        wrong[vector] = offsets[3 - vector] + 16
        assert any("is overwritten" in fault for fault in faults(data, with_offsets(data, wrong), {}))
    assert any("overwritten" in fault for fault in faults(data, planned.data, {(0, 2): [(offsets[1], 16)]}))
    assert "multiple of 16" in faults(data, with_offsets(data, [*offsets[:-1], 8]), {})[0]
    moved = with_offsets(with_orders(planned.source, {0: (0, 2, 1, 4, 3)}), offsets)
    assert "an operator reads other values than before" in faults(data, moved, {})
    assert "the plan is of" in faults(data, data, {})[0]


def test_the_check_lets_callers_of_one_subgraph_change_places(tmp_path: Path) -> None:
    calls = {0: number(1), 1: number(1)}
    main = Graph(
        [real(1), real(64), tensor([1], 6), real(64), real(64), real(64)],
        [0, 1],
        [5],
        [Step(LESS, [0, 0], [2]), Step(IF, [2, 1], [3], calls), Step(IF, [2, 1], [4], calls), Step(ADD, [3, 4], [5])],
    )
    body = Graph([real(64)] * 3, [0], [2], [Step(NEG, [0], [1]), Step(NEG, [1], [2])])
    model = read_tflite(save(tmp_path / "callers.tflite", main, body))
    apart = [256 * at for at in range(len(model.tensors))]
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        assert faults(model.data, with_offsets(with_orders(model, {0: order}), apart), {}) == []


def test_scratch_memory_of_a_table_of_a_log_and_by_hand(tmp_path: Path) -> None:
    path = EXAMPLES / "branches.tflite"
    plain = plan_model(path)
    by_hand = plan_model(path, scratch=["5=1000+24"])
    assert by_hand.summary.scratch == {"0:5": (1000, 24)}
    assert by_hand.summary.head > plain.summary.head
    table, log = tmp_path / "table.json", tmp_path / "device.log"
    table.write_text('{"5": [1000, 24]}', encoding="utf-8")
    assert plan_model(path, scratch=[str(table)]).summary.offsets == by_hand.summary.offsets
    model = read_tflite(path)
    lives = scopes(len(model.tensors), model.subgraphs)
    rows = [(tensor.size, lives.first[at], lives.last[at]) for at, tensor in enumerate(model.tensors) if tensor.is_planned]
    rows += [(1008, 6, 6), (32, 6, 6)]
    lines = [
        f"{at} (id={at}): size={size}, offset=0, first_used={one} last_used={two}" for at, (size, one, two) in enumerate(rows)
    ]
    log.write_text("boot\n" + "\n".join(lines), encoding="utf-8")
    assert plan_model(path, scratch=[str(log)]).summary.offsets == by_hand.summary.offsets
    log.write_text("\n".join(lines[1:]), encoding="utf-8")
    with pytest.raises(InputError, match="found the log of another model"):
        plan_model(path, scratch=[str(log)])
    for text, message in (("99=16", "found operator '99', expected 0 to"), ("5=many", "found 'many', expected bytes")):
        with pytest.raises(UsageError, match=message):
            plan_model(path, scratch=[text])
    for operator in ("x:3", "3:", ":3", "0:1:3", "\N{SUPERSCRIPT TWO}", "9" * 5000):
        table.write_text(json.dumps({operator: 16}), encoding="utf-8")
        with pytest.raises(UsageError, match=r"table\.json: found operator '.*, expected 0 to \d+, or SUBGRAPH:POSITION"):
            plan_model(path, scratch=[str(table)])
    for size in ("\N{SUPERSCRIPT TWO}", "9" * 5000, "-1", True, 1.5, None, [[16]]):
        table.write_text(json.dumps({"5": size}), encoding="utf-8")
        with pytest.raises(UsageError, match=r"table\.json: found .*, expected bytes"):
            plan_model(path, scratch=[str(table)])
    table.write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(InputError, match="found no names, expected bytes by operator"):
        plan_model(path, scratch=[str(table)])


def test_a_recheck_names_scratch_memory_of_no_operator(tmp_path: Path) -> None:
    path = EXAMPLES / "branches.tflite"
    summary = plan_model(path, scratch=["5=1000+24"]).summary
    assert recheck(path, summary) == []
    for key in ("x", "5", "0:5:1", "0:99", "9:0", "-1:0", "0:\N{SUPERSCRIPT TWO}", "0:" + "9" * 5000):
        (line,) = recheck(path, msgspec.structs.replace(summary, scratch={key: (16,)}))
        assert re.fullmatch(r"scratch: found operator '.*, expected SUBGRAPH:POSITION of one of the model's operators", line)
    for size in (-24, 1 << 31):
        (line,) = recheck(path, msgspec.structs.replace(summary, scratch={"0:5": (1000, size)}))
        assert line == f"scratch: found {size} bytes for operator 0:5, expected at least 0 and less than 2 GiB"


@pytest.mark.parametrize("offset", [-2, -(1 << 31) - 1, -(1 << 62)])
def test_a_recheck_refuses_offsets_below_zero(offset: int) -> None:
    path = EXAMPLES / "branches.tflite"
    summary = plan_model(path).summary
    at = max(range(len(summary.offsets)), key=lambda number: summary.offsets[number])
    changed = msgspec.structs.replace(summary, offsets=(*summary.offsets[:at], offset, *summary.offsets[at + 1 :]))
    message = f"tensors: found offset {offset}, expected at least 0, or -1 for a tensor that the runtime places"
    with pytest.raises(InputError, match=f"{message}$"):
        recheck(path, changed)


def test_scratch_memory_of_the_reference_kernels(tmp_path: Path) -> None:
    known, unknown = scratch.of_reference_kernels(read_tflite(wide(tmp_path / "wide.tflite")))
    # SUM of floats: extents of the operand, and the axes.
    assert (known, unknown) == ({(0, 2): (4, 4), (0, 3): (4, 4)}, [])


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
def test_a_custom_operator_that_is_not_known(tmp_path: Path) -> None:
    graph = Graph([real(64)] * 3, [0], [2], [Step(32, [0], [1]), Step(NEG, [1], [2])])
    path = save(tmp_path / "custom.tflite", graph)
    with pytest.raises(InputError, match=r"operator 0: what scratch memory the custom operator 'mine' asks for is not known"):
        plan_model(path)
    assert plan_model(path, scratch=["0=100"]).summary.head == 512 + 112
    known = save(tmp_path / "known.tflite", graph, custom="SignalWindow")
    assert plan_model(known).summary.head == 512


def test_inputs_that_nobody_reads_are_there_at_the_start(tmp_path: Path) -> None:
    graph = Graph([real(400), real(4), real(4)], [0, 1], [2], [Step(NEG, [1], [2])])
    summary = plan_model(save(tmp_path / "unread.tflite", graph)).summary
    assert (summary.greedy, summary.head, summary.bound) == (1616, 1616, 1616)


def test_an_arena_beyond_the_runtimes_numbers(tmp_path: Path) -> None:
    graph = Graph([real(1 << 29), real(1 << 29), real(4)], [0], [2], [Step(NEG, [0], [1]), Step(NEG, [1], [2])])
    with pytest.raises(InputError, match="expected less than 2 GiB"):
        plan_model(save(tmp_path / "large.tflite", graph))


def test_a_subgraph_inside_itself(tmp_path: Path) -> None:
    itself = {0: number(0), 1: number(0)}
    path = save(tmp_path / "circle.tflite", Graph([real(1), real(1)], [0], [1], [Step(IF, [0], [1], itself)]))
    with pytest.raises(InputError, match="found subgraph 0 inside itself"):
        plan_model(path)
