"""Live PyTorch models through ``torch.export``: the paper's three networks, and a few small ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from stowplan.errors import InputError, MissingDependencyError
from stowplan.frontends.network import read_exported, read_layers, read_torch
from tests.paths import ROOT
from tests.patience import HANG


@pytest.fixture(scope="module")
def torch() -> Any:
    found = pytest.importorskip("torch", reason="needs torch: pip install torch==2.13.0")
    found.set_num_threads(1)
    return found


@pytest.fixture(scope="module")
def models(torch: Any) -> Any:
    from benchmarks.lib import torch_networks

    return torch_networks


@pytest.mark.parametrize(
    ("model", "file"), [("resnet50", "resnet50"), ("resnet101", "resnet101"), ("bert_base", "bert_base_s128")]
)
def test_networks_of_the_paper(models: Any, model: str, file: str) -> None:
    """57, 108 and 376 layers: the example files, traced anew."""
    expected = read_layers(ROOT / "examples" / "data" / f"{file}.layers.json")
    assert read_torch(*models.build(model), name=file) == expected


def test_attention_and_activations(torch: Any) -> None:
    class Small(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16, bias=False)

        def forward(self, x: Any) -> Any:
            query, key, value = self.qkv(x).view(1, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
            mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            return torch.nn.functional.silu(self.out(mixed.transpose(1, 2).reshape(1, 5, 16))) + x

    network = read_torch(Small().eval(), (torch.zeros(1, 5, 16),))
    ops = [layer.op for layer in network.layers]
    expected = ["matmul_w", "bias_add", "view", "transpose", "matmul", "softmax", "matmul", "transpose", "reshape", "matmul_w"]
    assert ops == [*expected, "activation", "add"]
    scores, mixed = network.layers[4], network.layers[6]
    assert scores.macs == mixed.macs == 2 * 5 * 5 * 8
    assert network.layers[0].macs == 5 * 16 * 48
    assert network.weight_elements == 16 * 48 + 48 + 16 * 16


def test_grouped_and_transposed_convolutions(torch: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2),
        torch.nn.Hardswish(),
        torch.nn.ConvTranspose2d(8, 4, 2, stride=2),
    )
    first, second = read_torch(model.eval(), (torch.zeros(1, 4, 8, 8),)).layers
    assert (first.groups, first.kernel_x, first.stride, first.pad) == (2, 3, 2, 1)
    assert first.macs == 8 * 4 * 4 * 2 * 9
    assert first.fused == ("bias", "hardswish")
    # Every one of the 8 * 4 * 4 inputs meets 4 kernels of 2 by 2.
    assert second.macs == 8 * 4 * 4 * 4 * 4
    assert second.output_shape == (8, 8, 4)


def test_windows_of_pools(torch: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.MaxPool2d(3, stride=2, padding=1, dilation=(1, 2)), torch.nn.MaxPool2d((2, 3)), torch.nn.AvgPool2d(2)
    )
    layers = read_torch(model.eval(), (torch.zeros(1, 4, 32, 32),)).layers
    assert [(each.kernel_x, each.kernel_y, each.stride, each.pad, each.dilation) for each in layers] == [
        (3, 3, 2, 1, 2),
        (3, 2, 3, 0, 1),
        (2, 2, 2, 0, 1),
    ]


def test_models_that_cannot_be_traced(torch: Any) -> None:
    class Branch(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match=r"^torch\.export cannot trace Branch: ") as caught:
        read_torch(Branch(), (torch.zeros(2),))
    assert "\n" not in str(caught.value)


def test_layers_read_what_views_were_given(torch: Any) -> None:
    class Update(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            z = x.relu()
            z[0].copy_(y.sigmoid())
            return z.tanh()

    network = read_torch(Update(), (torch.zeros(2, 4), torch.zeros(4)), granularity="fine")
    # Without the row the sigmoid would feed nothing.
    assert {"relu", "sigmoid", "tanh"} <= {layer.op for layer in network.layers}


def test_graphs_inside_are_read_or_refused(torch: Any) -> None:
    class Region(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                y = x.relu()
            return y + 1

    class Branch(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, [x])

    program = torch.export.export(Region(), (torch.zeros(2, 4),))
    assert "relu" in {layer.op for layer in read_exported(program, granularity="fine").layers}
    with pytest.raises(InputError, match="operator cond: found the higher-order operator cond, expected layers"):
        read_torch(Branch(), (torch.zeros(2),))


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"\.\[learned\]"):
        read_torch(object(), ())  # type: ignore[arg-type]


def test_torch_and_onnx_are_imported_when_needed_only() -> None:
    code = (
        "import sys, stowplan.frontends.network, stowplan.frontends.read\n"
        "import stowplan.portfolio.tier_placement.candidates\n"
        "assert not {'torch', 'onnx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)
