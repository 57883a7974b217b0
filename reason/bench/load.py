"""Measures what loading a checkpoint of a real shape takes: seconds, and the memory that it needs and keeps."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from reason.bench.puppet import WEIGHT_STD, BodyShape
from reason.bench.report import join_report
from reason.runs.tables import ResultTable

LOADERS: Mapping[str, str] = {
    "compiled": "from reason.models.plain_checkpoint import open_language_model as load\n"
    "model = load(folder, device='cpu', dtype='float32', decoder='compiled')",
    "compiled_bfloat16": "from reason.models.plain_checkpoint import open_language_model as load\n"
    "model = load(folder, device='cpu', dtype='bfloat16', decoder='compiled')",
    "eager": "from reason.models.plain_checkpoint import open_language_model as load\n"
    "model = load(folder, device='cpu', dtype='float32', decoder='eager')",
    "transformers": "from transformers import AutoModelForCausalLM\n"
    "model = AutoModelForCausalLM.from_pretrained(folder, dtype='float32')",
    "transformers_bfloat16": "from transformers import AutoModelForCausalLM\n"
    "model = AutoModelForCausalLM.from_pretrained(folder, dtype='bfloat16')",
}
"""Programs that load the checkpoint in `folder`, by name; bfloat16 is how it computes, all weights have it."""

_POLL_S = 0.005


@dataclass(frozen=True)
class LoadCost:
    """What one process took to load a checkpoint.

    seconds   from its start, the import of what it needs included
    peak_mb   most memory of its own, in megabytes: without pages of files, which the system can take back
    kept_mb   the same once it has loaded
    """

    loader: str
    seconds: float
    peak_mb: float
    kept_mb: float


def write_checkpoint(shape: BodyShape, folder: Path) -> None:
    """Writes a checkpoint of random weights in bfloat16 in the hub's format, a weight at a time."""
    import torch
    from safetensors.torch import save_file

    model = shape.make_meta_model(torch.bfloat16)
    model.config.save_pretrained(folder)
    weight_map: dict[str, str] = {}
    for number, (name, weight) in enumerate(model.named_parameters()):
        file = f"model-{number:05d}.safetensors"
        values = torch.ones(weight.shape) if "norm" in name else torch.randn(weight.shape) * WEIGHT_STD
        save_file({name: values.to(torch.bfloat16)}, folder / file, metadata={"format": "pt"})
        weight_map[name] = file
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def measure_loads(folder: Path, loaders: Sequence[str], repeats: int) -> list[LoadCost]:
    """Runs each loader in processes of its own, in turns; before, each once, uncounted, to fill the caches.

    Raises: ValueError where one fails.
    """
    for loader in loaders:
        run_loader(loader, folder)
    return [run_loader(loader, folder) for _ in range(repeats) for loader in loaders]


def run_loader(loader: str, folder: Path) -> LoadCost:
    """Runs one loader and follows its memory. Raises: ValueError where it fails."""
    program = f"folder = {str(folder)!r}\n{LOADERS[loader]}\nprint('loaded', flush=True)\ninput()"
    begin = time.perf_counter()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        peak = 0.0
        while not select.select([process.stdout], [], [], _POLL_S)[0]:  # until it writes, or ends
            peak = max(peak, read_own_memory(process.pid))
        seconds, memory = time.perf_counter() - begin, read_own_memory(process.pid)
        _, errors = process.communicate("\n")
    if process.returncode:
        raise ValueError(f"the loader {loader} ended with status {process.returncode}: {errors[-2000:]}")
    return LoadCost(loader, seconds, max(peak, memory), memory)


def read_own_memory(process: int) -> float:
    """Returns megabytes of a process without pages of files: Linux alone tells them. 0 for one that has ended."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def summarise_loads(loads: Sequence[LoadCost]) -> list[dict[str, Any]]:
    """Returns the medians of each loader, and all its runs."""
    by_loader: dict[str, list[LoadCost]] = {}
    for load in loads:
        by_loader.setdefault(load.loader, []).append(load)
    return [
        {
            "loader": loader,
            **{key: median(getattr(run, key) for run in runs) for key in ("seconds", "peak_mb", "kept_mb")},
            "runs": [asdict(run) for run in runs],
        }
        for loader, runs in by_loader.items()
    ]


def make_table(cases: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Returns the medians of all shapes as a table."""
    header = ("shape", "weights", "loader", "seconds", "lowest to highest", "most memory, MB", "memory kept, MB")
    rows = []
    for case in cases:
        for loader in case["loaders"]:
            seconds = [run["seconds"] for run in loader["runs"]]
            rows.append(
                [
                    case["shape"],
                    f"{case['weights']:,}",
                    loader["loader"],
                    f"{loader['seconds']:.2f}",
                    f"{min(seconds):.2f} to {max(seconds):.2f}",
                    f"{loader['peak_mb']:,.0f}",
                    f"{loader['kept_mb']:,.0f}",
                ]
            )
    return ResultTable("Seconds and memory of a process that loads a checkpoint: medians", header, rows)


def format_report(result: Mapping[str, Any], command: str) -> str:
    """Returns the report in Markdown; it ends with the figures as JSON."""
    parts = [
        "Checkpoints of random weights in bfloat16, in files that the system has read before. Seconds are those of a "
        "process, from its start, with what it imports; machine code is compiled before. Memory is the process's own, "
        f"without pages of files. {len(result['cases'][0]['loaders'][0]['runs'])} runs of each, in turns.",
        make_table(result["cases"]).markdown_section(),
    ]
    return join_report("Loading a checkpoint", command, parts, machine=result["machine"], figures=result)
