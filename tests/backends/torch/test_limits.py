"""Training within a memory limit: what is measured while a step runs, and gradients beside eager's."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from stowplan.backends.torch import MemoryLimitError, PlanningWarning, backend, measure_peak, partitioner
from stowplan.errors import UsageError
from stowplan.models.rematerialization.structure import build
from tests.backends.torch.training import Compiled, Decoder, assert_same, gradients, tight, torch, words

SECONDS = 2.5


def peaks(model: Decoder, limits: list[int]) -> list[int]:
    """Measured while a step within each of these limits runs, whose gradients are eager's."""
    found = []
    expected = gradients(model, lambda: model(words()))
    for limit in limits:
        planner = partitioner(limit, time_limit=SECONDS)
        compiled = Compiled(model, planner)
        assert_same(gradients(model, lambda: compiled(words())), expected)  # noqa: B023
        given = words()
        found.append(measure_peak(lambda: compiled(given).backward(), model, given))  # noqa: B023
        model.zero_grad(set_to_none=True)
        assert planner.reports[0].peak <= limit
        assert found[-1] <= planner.reports[0].peak + 8
    return found


def test_limits_are_met_and_a_smaller_one_is_not_higher() -> None:
    torch.manual_seed(0)
    model = Decoder(2)
    given = words()
    eager = measure_peak(lambda: model(given).backward(), model, given)
    model.zero_grad(set_to_none=True)
    planner = partitioner(1, time_limit=SECONDS)
    with pytest.raises(Exception, match="the least peak found") as caught:
        Compiled(model, planner)(given)
    error = caught.value.inner_exception
    assert isinstance(error, MemoryLimitError)
    assert error.limit == 1 < error.bound <= error.least < eager
    limits = [error.least + int((eager - error.least) * part) for part in (0.25, 0.6, 1.0)]
    found = peaks(model, limits)
    assert found == sorted(found)
    assert found[0] < 0.9 * eager


def test_a_limit_that_cannot_be_met_is_a_warning_if_asked_for() -> None:
    model = Decoder(1)
    compiled = Compiled(model, partitioner("1 KB", time_limit=1.0, strict=False))
    with pytest.warns(PlanningWarning, match=r"proven: no plan is below \d+\): torch's own plan is kept"):
        found = gradients(model, lambda: compiled(words()))
    assert_same(found, gradients(model, lambda: model(words())))


def test_nothing_is_recomputed_where_all_fits() -> None:
    model = Decoder(1)
    planner = partitioner("1 GiB", time_limit=1.0)
    gradients(model, lambda: Compiled(model, planner)(words()))
    (report,) = planner.reports
    assert report.peak <= report.stock_peak  # never above, however much is allowed
    assert report.added_flops == 0


def test_parameters_and_gradients_count_or_not() -> None:
    from torch._functorch.partitioners import default_partition

    from stowplan.backends.torch.partition import prepared
    from stowplan.backends.torch.reader import Counted, read

    found, total = {}, {}

    def partition(module: Any, inputs: Any, **kwargs: Any) -> Any:
        for parameters, counted in product((True, False), repeat=2):
            problem = read(prepared(module).graph, kwargs["num_fwd_outputs"], Counted(parameters, counted)).problem
            structure = build(problem)
            found[parameters, counted] = structure.made(structure.order).peak
            total[counted] = sum(each.size for each in problem.tensors[1:])
        return default_partition(module, inputs, **kwargs)

    model = Decoder(1)
    gradients(model, lambda: Compiled(model, partition)(words()))
    given = sum(each.numel() * each.element_size() for each in [*model.parameters(), words()])
    for counted in (True, False):
        assert found[True, counted] - found[False, counted] == given
    assert found[False, False] <= found[False, True]
    assert total[True] - total[False] == sum(each.numel() * each.element_size() for each in model.parameters())


def test_the_back_end_for_compile_takes_text() -> None:
    torch._dynamo.reset()
    model = Decoder(1)
    made = backend("1 MiB", outside=0, time_limit=1.0)
    compiled = torch.compile(model, backend=made)
    assert_same(gradients(model, lambda: compiled(words())), gradients(model, lambda: model(words())))
    assert made.reports[0].peak <= made.reports[0].limit <= 1 << 20


@pytest.mark.parametrize("memory", ["much", "4 XB", "", 0, -1, True, None, 1.5])
def test_bad_memory_says_so(memory: object) -> None:
    with pytest.raises(UsageError, match="found a memory limit of"):
        backend(memory)  # type: ignore[arg-type]


def test_bad_options_say_so() -> None:
    wrong: list[dict[str, Any]] = [{"time_limit": 0}, {"graphs": 0}, {"workers": 0}, {"seed": -1}, {"strict": "no"}]
    for options in wrong:
        (name,) = options
        with pytest.raises(UsageError, match=name.replace("_", " ")):
            backend(1, **options)
    with pytest.raises(TypeError):
        backend(1, colour="red")


def test_an_unknown_version_keeps_torchs_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.backends.torch.partition.VERSIONS", ("1.0",))
    model = Decoder(1)
    with pytest.warns(PlanningWarning, match=r"found torch .*, expected 1\.0: torch's own plan is kept"):
        gradients(model, lambda: Compiled(model, partitioner(1))(words()))


def test_a_plan_that_cannot_be_written_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise KeyError("no such node")

    monkeypatch.setattr("stowplan.backends.torch.partition.split", failing)
    model, planner = Decoder(1), tight()
    with pytest.warns(PlanningWarning, match=r"KeyError: 'no such node': torch's own plan is kept"):
        found = gradients(model, lambda: Compiled(model, planner)(words()))
    assert_same(found, gradients(model, lambda: model(words())))
    assert planner.reports == []
