"""Models as they are shipped: the list, and what becomes of its rows. Nothing is fetched here."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from benchmarks.embedded import models
from benchmarks.embedded.models import Model, Package, Row, UnreachableError
from stowplan.kernel.context import Options
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from tests.paths import ROOT

BRANCHES = ROOT / "examples" / "data" / "branches.tflite"


def test_the_list() -> None:
    """Enough models of both formats, each by a version and a digest, and no name twice."""
    found = [(package, model) for package in models.packages() for model in package.models]
    endings = [Path(model.file).suffix for _, model in found]
    assert len(found) >= 60
    assert endings.count(".tflite") >= 25
    assert endings.count(".onnx") >= 30
    assert set(endings) == {".tflite", ".onnx"}
    for package, model in found:
        assert package.tool in {"pip", "npm"}
        assert re.fullmatch(r"\d[\w.]*", package.version), package.name
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256), model.file
        assert not (model.dim or model.shape) or model.file.endswith(".onnx")
        assert not model.scratch or model.file.endswith(".tflite")
    labels = [package.label(model) for package, model in found]
    assert len(set(labels)) == len(labels)
    assert len({model.sha256 for _, model in found}) == len(found)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """A package with a model, as it lies in the cache once it was fetched."""
    data = BRANCHES.read_bytes()
    folder = tmp_path / "packages" / "@mine-nets-1.0"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "nets-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nets/branches.tflite", data)
        wheel.writestr("nets/damaged.tflite", data[:100])
    known = [
        Model(file=f"nets/{name}.tflite", sha256=hashlib.sha256(content).hexdigest())
        for name, content in (("branches", data), ("damaged", data[:100]))
    ]
    return Package(tool="npm", name="@mine/nets", version="1.0", models=(*known, Model(file="nets/gone.onnx", sha256="0" * 64)))


def test_a_file_of_a_package(package: Package, tmp_path: Path) -> None:
    branches, _, gone = package.models
    path = models.fetched(package, branches, tmp_path)
    assert path.name == "branches.tflite"
    assert path.read_bytes() == BRANCHES.read_bytes()
    with pytest.raises(UnreachableError, match=r"has no nets/gone\.onnx"):
        models.fetched(package, gone, tmp_path)
    other = Model(file=branches.file, sha256="1" * 64)
    with pytest.raises(UnreachableError, match=r"another nets/branches\.tflite than the list"):
        models.fetched(package, other, tmp_path)


def test_rows_are_kept(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is planned, one refused, one not to be had; the second call plans none anew."""
    monkeypatch.setattr(models, "packages", lambda: [package])
    call = ["--cache", str(tmp_path), "--json-out", str(tmp_path / "rows.json"), "--time-limit", "2", "--no-run"]
    models.main(call)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| model | operators |")
    assert re.match(r"\| @mine/nets/branches\.tflite \| \d+ \| [\d,]+ \| [\d,]+ \| [\d,]+ \| yes \|  \|", lines[2])
    assert lines[3].startswith("| @mine/nets/damaged.tflite | refused: damaged.tflite: ")
    assert lines[4].startswith("| @mine/nets/gone.onnx | unreachable: ")
    assert lines[-1].startswith("read and planned 1 of 2, proven 1, above greedy 0, below greedy ")
    assert lines[-1].endswith("unreachable 1")
    monkeypatch.setattr(models, "_tflite", lambda *_: pytest.fail("planned again"))
    models.main([*call, "--only", "branches"])
    assert capsys.readouterr().out.splitlines()[2] == lines[2]


def test_summary() -> None:
    def row(planned: int, bound: int, run: str = "", state: str = "planned") -> Row:
        return Row(model="net", package="nets 1.0", state=state, greedy=100, planned=planned, bound=bound, run=run)

    rows = [row(90, 90, "equal"), row(100, 80, "sizes hold"), row(110, 110), row(0, 0, state="refused")]
    text = "read and planned 3 of 4, proven 2, above greedy 1, below greedy 1; run with equal outputs 1, sizes hold 1"
    assert models.summary(rows) == text
    assert models.summary([*rows, row(0, 0, state="unreachable")]) == f"{text}; unreachable 1"


def test_graphs_as_in_an_arena() -> None:
    """Sizes and offsets by 16 bytes, as the greedy planner has them, and nothing in place."""
    sizes = (20, 20, 8)
    ops = (Op(id="first", reads=(0,), writes=(1,), in_place=((0, 1),)), Op(id="second", reads=(1,), writes=(2,)))
    graph = Problem(tensors=tuple(Tensor(id=f"t{at}", size=size) for at, size in enumerate(sizes)), ops=ops, inputs=(0,))
    plain = models.as_in_arena(graph)
    assert [tensor.size for tensor in plain.tensors] == [32, 32, 16]
    assert not any(op.in_place for op in plain.ops)
    assert models.by_greedy(models.arena_problem(plain)) == 64


def test_an_onnx_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"]), onnx.helper.make_node("Add", ["x", "y"], ["z"])],
        "net",
        [value("x", 1, [4])],
        [value("z", 1, [4])],
    )
    path = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph), path)
    row = models.planned(path, Model(file="net.onnx", sha256=""), "net", "nets 1.0", Options(time_limit=2.0))
    assert (row.state, row.operators, row.greedy, row.planned, row.bound) == ("planned", 2, 48, 48, 48)
    assert row.run in {"", "sizes hold"}  # Nothing, where ONNX Runtime is not installed.
