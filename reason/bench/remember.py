"""Measures what the draft table of an earlier run is worth: tokens per forward pass, which no other work changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from reason.bench.runs import RunSpec, execute_run
from reason.models.checkpoint import find_model

_OTHER_PROBLEMS = 5  # task.seed of problems of the same kinds


@dataclass(frozen=True)
class RememberBench:
    """What is run. `noise` is the share by which weights differ between two checkpoints, a standard deviation.

    decays    values of `remember_decay`, for a table of the checkpoint before
    settings  of all runs
    """

    problems: int = 30
    samples: int = 4
    nodes: int = 8
    decays: tuple[float, ...] = (0.99, 0.5, 0.1)
    noise: float = 0.05
    settings: tuple[str, ...] = ()

    @property
    def num_runs(self) -> int:
        """Runs of a seed."""
        return 6 + len(self.decays)


@dataclass(frozen=True)
class TableGain:
    """Tokens per forward pass of one run, with the table of an earlier run and without a table."""

    case: str
    seed: int
    remembering: float
    without: float


def measure_seed(bench: RememberBench, seed: int) -> Iterator[TableGain]:
    """Yields the gain of one table in each case. All runs have their own seeds, so no text is known before."""
    with TemporaryDirectory() as home:
        folder = Path(home)
        tables, seeds = folder / "tables", [1000 * seed + i for i in range(3)]
        first = _measure_run(bench, folder, seeds[0], f"speculation.remember={tables}")
        yield TableGain("first run, nothing to begin with", seed, first, first)

        def measure(case: str, run_seed: int, without: float, *settings: str) -> TableGain:
            copy = folder / "copy"  # each case begins with the table of the first run, and no other one
            shutil.copytree(tables, copy)
            remembering = _measure_run(bench, folder, run_seed, *settings, f"speculation.remember={copy}")
            shutil.rmtree(copy)
            return TableGain(case, seed, remembering, without)

        yield measure("the same problems", seeds[1], _measure_run(bench, folder, seeds[1]))
        similar = f"task.seed={_OTHER_PROBLEMS}"
        yield measure("similar problems", seeds[1], _measure_run(bench, folder, seeds[1], similar), similar)
        changed = f"model.path={_write_changed(folder / 'changed', bench.noise, seed)}"
        without = _measure_run(bench, folder, seeds[2], changed)
        for decay in bench.decays:
            case = f"the same problems, other weights, decay {decay:g}"
            yield measure(case, seeds[2], without, changed, f"speculation.remember_decay={decay}")


def _measure_run(bench: RememberBench, folder: Path, seed: int, *settings: str) -> float:
    """Returns the tokens per forward pass of a run."""
    common = (
        *("+task=synthetic", f"task.size={2 * bench.problems}", f"limit={bench.problems}", "scorer=none"),
        *("concurrency=1", "controller=fixed", f"controller.nodes={bench.nodes}", "search.sampling.temperature=1"),
        *bench.settings,
        *settings,
    )
    run_folder = folder / "run"
    outcome = execute_run(
        RunSpec("self_consistency", bench.samples, common, seed), run_folder, Console(file=StringIO())
    )
    shutil.rmtree(run_folder)
    return sum(row.usage.tokens for row in outcome.rows) / sum(row.usage.forwards for row in outcome.rows)


def _write_changed(folder: Path, noise: float, seed: int) -> Path:
    """Writes the bundled model with other weights: each is multiplied by 1 plus noise, as after a step of training."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(find_model("bundled:target").source, folder)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: (weight.float() * (1 + noise * torch.randn(weight.shape, generator=generator))).to(weight.dtype)
        for name, weight in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def summarize_gains(gains: Sequence[TableGain]) -> list[dict[str, object]]:
    """Returns per case the means over seeds, and the lowest and highest gain of a seed."""
    grouped: dict[str, list[TableGain]] = {}
    for gain in gains:
        grouped.setdefault(gain.case, []).append(gain)
    return [
        {
            "case": case,
            "seeds": len(group),
            "remembering": sum(gain.remembering for gain in group) / len(group),
            "without": sum(gain.without for gain in group) / len(group),
            "lowest": min(gain.remembering / gain.without for gain in group),
            "highest": max(gain.remembering / gain.without for gain in group),
        }
        for case, group in grouped.items()
    ]
