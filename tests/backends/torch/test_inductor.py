"""What Inductor compiles: halves of our plans, and an order of ours among those that it tries."""

from __future__ import annotations

import shutil

import pytest

from stowplan.backends.torch import backend, inductor_order, memory_limit
from tests.backends.torch.training import Decoder, assert_same, gradients, torch, words

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ with g++")


@pytest.mark.slow
@needs_compiler
def test_inductor_within_a_limit_and_in_our_order() -> None:
    torch._dynamo.reset()
    model = Decoder(1)
    expected = gradients(model, lambda: model(words()))
    with memory_limit("300 kB", time_limit=1.0) as planner, inductor_order(1.0) as orders:
        compiled = torch.compile(model)
        assert_same(gradients(model, lambda: compiled(words())), expected, rtol=1e-4, atol=1e-5)
    assert planner.reports[0].peak <= 300_000
    assert planner.reports[0].source != "stock"
    assert len(orders) == 2
    assert all(each.peak <= each.given for each in orders)
    assert torch._inductor.config.custom_partitioner_fn is None


@pytest.mark.slow
@needs_compiler
def test_a_plan_of_inductors_that_fits_stays() -> None:
    model = Decoder(1)
    expected = gradients(model, lambda: model(words()))
    # The second time Inductor has the first one's code in its cache, which may be of another limit.
    for _ in range(2):
        torch._dynamo.reset()
        made = backend("1 GiB", inductor=True, time_limit=1.0)
        compiled = torch.compile(model, backend=made)
        assert_same(gradients(model, lambda: compiled(words())), expected, rtol=1e-4, atol=1e-5)  # noqa: B023
        assert [each.source for each in made.reports] == ["stock"]


def test_an_order_that_fails_is_the_one_given(caplog: pytest.LogCaptureFixture) -> None:
    from torch._inductor import memory

    with inductor_order(1.0) as orders:
        method = memory.reorder_for_peak_memory.__defaults__[0][-1]
        assert method.__name__ == "stowplan"
        assert method([1, 2]) == [1, 2]
    assert not orders
    assert "the order given is kept" in caplog.text
    assert method not in memory.reorder_for_peak_memory.__defaults__[0]
