"""The callbacks for trainers: when their scopes open and close, with made-up trainers and with the real packages."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.lightning import StepMemory as LightningMemory
from stowplan.backends.transformers import StepMemory as TransformersMemory
from stowplan.errors import MissingDependencyError, UsageError
from tests.paths import ROOT
from tests.patience import HANG


class Memory:
    """Writes down when scopes open and close, and with which error."""

    def __init__(self, named: Exception | None = None) -> None:
        self.events: list[str] = []
        self.named = named

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self.events.append("(")
        try:
            yield
        except BaseException as error:
            self.events.append(type(error).__name__)
            if self.named is not None:
                raise self.named from error
            raise
        self.events.append(")")

    def __str__(self) -> str:
        return " ".join(self.events)


def made_up(monkeypatch: pytest.MonkeyPatch, name: str, base: str) -> type:
    """A trainer's package that has nothing but its callback class."""
    module = ModuleType(name)
    setattr(module, base, type(base, (), {"state_key": "made up"}))
    for each in ("lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.delitem(sys.modules, each, raising=False)
    monkeypatch.setitem(sys.modules, name.partition(".")[0], ModuleType(name.partition(".")[0]))
    monkeypatch.setitem(sys.modules, name, module)
    found: type = getattr(module, base)
    return found


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    return made_up(monkeypatch, request.param, "Callback")


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> type:
    return made_up(monkeypatch, "transformers", "TrainerCallback")


def test_importing_the_callbacks_loads_no_trainer() -> None:
    code = (
        "import sys, stowplan.backends.lightning, stowplan.backends.transformers;"
        "print({'torch', 'lightning', 'pytorch_lightning', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(("callback", "extra"), [(LightningMemory, "lightning"), (TransformersMemory, "transformers")])
def test_without_its_trainer_a_callback_says_what_to_install(
    callback: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in callback.modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=rf"needs {extra}, .* pip install '\.\[{extra}\]'"):
        callback(Memory())


def test_a_callback_is_one_of_the_trainer_s_own_and_of_this_package(lightning: type) -> None:
    first, second = LightningMemory(Memory()), LightningMemory(Memory())  # type: ignore[arg-type]
    assert isinstance(first, lightning)
    assert isinstance(first, LightningMemory)
    assert type(first) is type(second)
    assert type(first).__qualname__ == "StepMemory"
    own = type("Own", (LightningMemory,), {})(Memory())
    assert isinstance(own, lightning)


def test_what_is_no_memory_is_refused(lightning: type) -> None:
    with pytest.raises(UsageError, match="a memory of int, expected a TrainingMemory"):
        LightningMemory(4 << 30)  # type: ignore[arg-type]


class Fit:
    """Calls the hooks of a Lightning callback as a fit does."""

    def __init__(self, named: Exception | None = None) -> None:
        self.memory = Memory(named)
        self.callback: Any = LightningMemory(self.memory)  # type: ignore[arg-type]
        self.trainer = SimpleNamespace(global_step=0)

    def batch(self, steps: bool = True) -> None:
        self.callback.on_train_batch_start(self.trainer, None, None, 0)
        self.memory.events.append("batch")
        self.trainer.global_step += steps
        self.callback.on_train_batch_end(self.trainer, None, None, None, 0)

    def validate(self) -> None:
        self.callback.on_validation_start(self.trainer, None)
        self.memory.events.append("validation")
        self.callback.on_validation_end(self.trainer, None)


def test_a_step_of_lightning_lasts_until_an_optimizer_stepped(lightning: type) -> None:
    fit = Fit()
    fit.validate()  # the sanity check
    fit.batch()
    fit.batch(False)
    fit.batch()
    fit.validate()
    assert str(fit.memory) == "( validation ) ( batch ) ( batch batch ) ( validation )"


def test_an_evaluation_splits_a_step_of_lightning_and_an_epoch_ends_it(lightning: type) -> None:
    fit = Fit()
    fit.batch(False)
    fit.validate()
    fit.batch(False)
    fit.callback.on_train_epoch_end(fit.trainer, None)
    fit.callback.on_train_end(fit.trainer, None)
    assert str(fit.memory) == "( batch ) ( validation ) ( batch )"


def test_an_exception_closes_the_step_of_lightning(lightning: type) -> None:
    fit = Fit()
    for error in (ValueError("of the model"), KeyboardInterrupt()):
        fit.callback.on_train_batch_start(fit.trainer, None, None, 0)
        fit.callback.on_exception(fit.trainer, None, error)
        fit.callback.on_exception(fit.trainer, None, error)
    fit.batch()
    assert str(fit.memory) == "( ValueError ( KeyboardInterrupt ( batch )"


def test_what_the_memory_knows_about_an_exception_is_its_note(lightning: type) -> None:
    fit = Fit(MemoryLimitError("the device has no memory left", 1, 2, 0))
    fit.callback.on_train_batch_start(fit.trainer, None, None, 0)
    error = RuntimeError("out of memory")
    fit.callback.on_exception(fit.trainer, None, error)
    assert error.__notes__ == ["the device has no memory left"]
    assert not fit.callback.is_open


def test_a_step_of_transformers_lasts_until_its_end(transformers: type) -> None:
    memory = Memory()
    callback: Any = TransformersMemory(memory)  # type: ignore[arg-type]
    assert isinstance(callback, transformers)
    callback.on_train_begin(None, None, None)
    for event in ("step_begin", "step_end", "step_begin", "epoch_end", "train_end", "step_begin"):
        getattr(callback, f"on_{event}")(None, None, None, model=None)
    # An exception ended the training, and it is begun again.
    callback.on_train_begin(None, None, None)
    callback.on_step_begin(None, None, None)
    callback.close()
    assert str(memory) == "( ) ( ) ( RuntimeError ( )"


def test_after_an_exception_a_memory_can_be_used_again(lightning: type) -> None:
    torch = pytest.importorskip("torch")
    from stowplan.backends.torch import TrainingMemory

    memory = TrainingMemory("1 MiB")
    callback: Any = LightningMemory(memory)
    callback.on_train_batch_start(SimpleNamespace(global_step=0), None, None, 0)
    with pytest.raises(UsageError, match="a step inside of a step"), memory.step():
        pass
    callback.on_exception(None, None, ValueError("of the model"))
    with memory.step():
        torch.ones(1)
    assert memory.report.steps.count == 2


def test_a_memory_without_steps_is_refused_when_the_callback_is_made(lightning: type) -> None:
    pytest.importorskip("torch")
    from stowplan.backends.torch import TrainingMemory

    with pytest.raises(UsageError, match="a step with Inductor"):
        LightningMemory(TrainingMemory("1 GiB", inductor=True))


# ---------------------------------------------------------------------------------------------- the real packages


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("accumulated", [1, 2])
def test_lightning_calls_the_callback_as_expected(accumulated: int) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    torch = pytest.importorskip("torch")
    memory = Memory()

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def training_step(self, batch: Any) -> Any:
            memory.events.append("batch")
            if batch.isnan().any():
                raise ValueError("a batch that is no number")
            return self.layer(batch).sum()

        def validation_step(self, batch: Any) -> None:
            memory.events.append("validation")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(*rows: float) -> None:
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            accumulate_grad_batches=accumulated,
            num_sanity_val_steps=0,
            callbacks=[LightningMemory(memory)],  # type: ignore[arg-type]
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader
        trainer.fit(Model(), loader([torch.full((4,), row) for row in rows]), loader([torch.ones(4)]))

    fit(1.0, 2.0, 3.0)
    expected = {1: "( batch ) ( batch ) ( batch ) ( validation )", 2: "( batch batch ) ( batch ) ( validation )"}
    assert str(memory) == expected[accumulated]
    memory.events.clear()
    with pytest.raises(ValueError, match="no number"):
        fit(float("nan"))
    assert str(memory) == "( batch ValueError"


def test_transformers_calls_the_callback_as_expected() -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    memory = Memory()

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: Any, labels: Any = None) -> Any:
            memory.events.append("batch" if self.training else "evaluation")
            return {"loss": self.layer(x).sum()}

    rows = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        callback = TransformersMemory(memory)  # type: ignore[arg-type]
        transformers.Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows[:1], callbacks=[callback]).train()
    assert str(memory) == "( batch batch ) ( batch ) evaluation"


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_the_examples_train_as_eager_within_their_limit(trainer: str, tmp_path: Path) -> None:
    pytest.importorskip(trainer)
    command = [sys.executable, str(ROOT / "examples" / f"train_with_{trainer}.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=True)
    assert ", equal to eager's" in done.stdout
    plans = [line for line in done.stdout.splitlines() if line.startswith("graph of ")]
    assert any("first steps" not in line for line in plans), "no graph was planned anew"


@pytest.mark.slow
def test_the_recipe_for_accelerate_trains_as_eager() -> None:
    accelerate = pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    from stowplan.backends.torch import TrainingMemory

    def train(memory: TrainingMemory | None) -> list[float]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        nn = torch.nn
        model = nn.Sequential(*(each for _ in range(4) for each in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1))))
        batches = torch.randn(12, 8, 16)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        run = model if memory is None else memory.compile(model)
        losses = []
        for batch in batches:
            with contextlib.nullcontext() if memory is None else memory.step(), accelerator.accumulate(model):
                loss = run(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    memory = TrainingMemory("40 kB", time_limit=0.5)
    assert train(memory) == train(None)
    assert memory.report.steps.count == 12
    assert len(memory.reports) > 1
