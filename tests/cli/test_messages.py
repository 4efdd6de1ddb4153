"""What the command line prints, as text that a change shows up in: results, progress, checks, tables and errors.

``python -m tests.cli.test_messages`` writes the file anew; read the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

from stowplan.cli import main
from tests.backends.llama.cases import DENSE, write
from tests.paths import ROOT

PAGE = Path(__file__).with_name("messages.txt")

#: Files that the commands read, beside the examples: name and content.
FILES = {
    "two.csv": "id,lower,upper,size\na,0,3,64\nb,2,5,32\n",
    "overlap.csv": "id,lower,upper,size,offset\na,0,3,64,0\nb,2,5,32,32\n",
    "letters.csv": "id,lower,upper,size\na,0,3,many\n",
    "ends.csv": "id,lower,upper,size\na,3,0,8\n",
    "header.csv": "name,size\na,8\n",
    "broken.json": '{"tensors": [',
    "other.json": '{"format": "something"}',
    "text.hlo.txt": "no program\n",
    "model.tflite": "no model",
    "target.toml": 'kind = "memory_mapping"\nname = "mine"\n',
    "machine.toml": """[host]
free_mib = 1000
weight_gbs = 4.0
cache_gbs = 0.4
tflops = 0.1
[[device]]
name = "CUDA0"
free_mib = 1200
weight_gbs = 100.0
tflops = 10.0
[[device]]
name = "CUDA1"
free_mib = 1200
weight_gbs = 800.0
tflops = 80.0
[calibration]
error = 0.05
""",
    "memories.toml": '[host]\nfree_mib = 1000\n[[device]]\nname = "CUDA0"\nfree_mib = 1200\n',
}

#: ``$D`` is the folder of the files; all searches are deterministic.
COMMANDS = """
solve $D/two.csv --deterministic --time-limit 1
solve $D/two.csv --deterministic --time-limit 1 -o $D/plan.json -q
solve $D/two.csv --deterministic --time-limit 1 --capacity 80 -q
solve $D/two.csv --deterministic --time-limit 1 --capacity 200 -o $D/within.csv -q
verify $D/two.csv $D/plan.json
verify $D/two.csv $D/plan.json --capacity 80
verify $D/two.csv $D/within.csv
verify $D/two.csv $D/overlap.csv
show $D/two.csv $D/plan.json
show $D/plan.json $D/two.csv
solve examples/data/banks.json --deterministic --time-limit 1 -q
solve examples/data/cells.graph.json --deterministic --time-limit 1 -q
solve examples/data/training.remat.json --deterministic --time-limit 1 --capacity 40MB -q
solve examples/data/training.remat.json --deterministic --time-limit 1 --capacity 10MB -q
solve examples/data/resnet50.layers.json --target nnp-i --deterministic --time-limit 1 -o $D/network.json -q
verify examples/data/resnet50.layers.json $D/network.json
solve examples/data/attention.hlo.txt --target inferentia --deterministic --time-limit 1 -q
solve examples/data/fir.dfg.json --target se --deterministic --time-limit 1 -q
solve examples/data/branches.tflite --deterministic --time-limit 1 -q
frontier examples/data/training.remat.json --limits 40MB,48MB --deterministic --time-limit 2 -q
tflm examples/data/branches.tflite --no-run -o $D/arena.json -q
verify examples/data/branches.tflite $D/arena.json
llm $D/model.gguf --devices $D/machine.toml --ctx 1024 --prompt 100 --generate 64 --deterministic -q
llm $D/model.gguf --devices $D/memories.toml --ctx 1024 --prompt 100 --generate 64
llm $D/model.gguf --devices $D/machine.toml --ctx 1024 --prompt 100 --generate 64 --deterministic -q -o $D/placement.json
verify $D/model.gguf $D/placement.json
targets
settings
solve
solve $D/none.csv
solve $D
solve $D/letters.csv
solve $D/ends.csv
solve $D/header.csv
solve $D/broken.json
solve $D/other.json
solve $D/text.hlo.txt --target tpu-v4
solve $D/model.tflite
solve $D/model.gguf
solve $D/arena.json
tflm $D/model.tflite
llm $D/model.gguf
llm $D/model.tflite --devices $D/machine.toml
llm $D/model.gguf --devices $D/target.toml
llm $D/model.gguf --devices $D/machine.toml --ctx 256
llm calibrate $D/model.gguf --devices $D/memories.toml --read $D/other.json
solve examples/data/alexnet_inf_b1.hlo.txt.gz
solve examples/data/alexnet_inf_b1.hlo.txt.gz --target $D/target.toml
solve examples/data/alexnet_inf_b1.hlo.txt.gz --target tpu-v9
solve $D/two.csv --target tpu-v4
solve $D/two.csv --candidates magic
solve $D/two.csv --time-limit soon
solve $D/two.csv --time-limit 0
solve $D/two.csv --capacity lots
solve $D/two.csv --set colour=blue
solve $D/two.csv --set alignment=-1
solve $D/two.csv --baseline mine
solve $D/two.csv -o $D/none/plan.json
solve $D/two.csv -o $D/two.csv
solve $D/two.csv -o $D/plan.pdf
solve $D/two.csv --hint $D/network.json
solve $D/two.csv --emit java=$D/x.java
solve $D/two.csv --fast
verify $D/two.csv $D/broken.json
verify $D/two.csv $D/network.json
show examples/data/buffers.csv $D/plan.json
compare $D/plan.json
batch $D/none -o $D/results
export $D/two.csv -o $D/x.lp
export examples/data/alexnet_inf_b1.hlo.txt.gz -o $D/x.lp
frontier $D/two.csv
library show pack-level-25-4 --json
library show pack-level-25
library list --library $D
library add pack-level-25-4 $D/plan.json
library add pack-level-25-4 $D/other.json
schema bins
convert examples/data/banks.json -o $D/banks.csv
"""


def outputs() -> str:
    """All commands with what they print, and their exit codes."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(ROOT):
        for name, content in FILES.items():
            Path(folder, name).write_text(content)
        write(DENSE, Path(folder))
        for command in COMMANDS.strip().splitlines():
            lines += [f"$ stowplan {command}", *_printed(command, folder), ""]
    return "\n".join(lines)


def _printed(command: str, folder: str) -> list[str]:
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(shlex.split(command.replace("$D", folder)))
        except SystemExit as end:
            code = int(end.code or 0)
    text = out.getvalue().replace(folder, "$D").replace(str(ROOT), ".")
    text = re.sub(r"\b\d+\.\d s\b", "N s", text)
    # Where heuristics are interpreted, every result says so.
    lines = [line.rstrip() for line in text.splitlines() if "machine code" not in line]
    return [*lines, f"exit code {code}"] if code else lines


def test_messages_are_those_of_the_file(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "120")
    assert outputs().splitlines() == PAGE.read_text(encoding="utf-8").splitlines(), (
        "read the difference, then: python -m tests.cli.test_messages"
    )


if __name__ == "__main__":
    os.environ["COLUMNS"] = "120"
    PAGE.write_text(outputs(), encoding="utf-8")
