"""Measures the local engine: tokens per second beside transformers, KV held, distance to the machine's limit."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median

from decoding.model.device_choice import pick_device, pick_dtype
from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import BaselineRun, BranchWorkload, TransformersModel, make_baselines
from reason.bench.roofline import Roofline, measure_roofline, module_cost


@dataclass
class EnginePoint:
    """All runs of one workload, in the order they were made; `failed` holds the errors of baselines without runs."""

    workload: BranchWorkload
    runs: dict[str, list[BaselineRun]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    roofline: Roofline | None = None

    def median_rate(self, name: str) -> float | None:
        """Median tokens per second."""
        runs = self.runs.get(name)
        return median(self.workload.tokens / run.seconds for run in runs) if runs else None

    def median_speedup(self, name: str) -> float | None:
        """Median over repetitions of our speed relative to the run of a baseline next to it."""
        pairs = zip(self.runs.get("ours", []), self.runs.get(name, []), strict=False)
        ratios = [baseline.seconds / ours.seconds for ours, baseline in pairs]
        return median(ratios) if ratios else None

    def time_shares(self) -> dict[str, float]:
        """Parts of the wall clock of our median run, as fractions; on a GPU the host's run beside the device's."""
        run = sorted(self.runs["ours"], key=lambda run: run.seconds)[len(self.runs["ours"]) // 2]
        stats = run.stats
        assert stats is not None
        named = {
            "model": stats.seconds_model - stats.seconds_attention,
            "attention": stats.seconds_attention,
            "sampling": stats.seconds_sampling,
            "drafting": stats.seconds_drafting,
            "bookkeeping": stats.seconds_bookkeeping,
        }
        named["outside rounds"] = run.seconds - stats.busy_seconds
        return {name: seconds / run.seconds for name, seconds in named.items()}

    def to_json(self) -> dict[str, object]:
        """Returns the numbers of the tables and of the JSON line."""
        stats = self.runs["ours"][-1].stats
        assert stats is not None
        assert self.roofline is not None
        limit = self.workload.branches / self.roofline.seconds
        return {
            "prompt": len(self.workload.prompt),
            "branches": self.workload.branches,
            "tokens_per_s": {name: self.median_rate(name) for name in self.runs},
            "speed_vs": {name: self.median_speedup(name) for name in self.runs if name != "ours"},
            "failed": self.failed,
            "peak_resident_tokens": stats.peak_resident_tokens,
            "peak_unshared_tokens": stats.peak_unshared_tokens,
            "kv_fraction": stats.peak_resident_tokens / stats.peak_unshared_tokens,
            "roofline_tokens_per_s": limit,
            "of_roofline": (self.median_rate("ours") or 0.0) / limit,
            "roofline_products_ms": 1e3 * self.roofline.products_s,
            "roofline_memory_ms": 1e3 * self.roofline.memory_s,
            "shares": self.time_shares(),
        }


def make_random_model() -> TransformersModel:
    """Returns a Qwen2 of the bundled target's size with random weights, for a checkout without a bundled target."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=640, hidden_size=192, intermediate_size=512, num_hidden_layers=8, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=4096,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def open_model(path: str | None, device: str, dtype: str) -> tuple[TransformersModel, HFBackend]:
    """Returns the model as transformers runs it, and as the local engine runs it."""
    torch_device = pick_device(device)
    torch_dtype = pick_dtype(dtype, torch_device)
    if path is None:
        model = make_random_model()
    else:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch_dtype)
    model = model.to(torch_device, torch_dtype).eval()
    return model, HFBackend(model, device=device, dtype=dtype)


def measure_points(
    model: TransformersModel,
    backend: HFBackend,
    *,
    branches: Sequence[int],
    prompts: Sequence[int],
    new: int,
    repeats: int,
    on_run: Callable[[str, int, float], None] = lambda name, branches, rate: None,
) -> list[EnginePoint]:
    """Runs every engine on every workload, `repeats` times, interleaved, after a short warm-up of each."""
    points = [
        EnginePoint(BranchWorkload(_random_prompt(backend.vocab_size, length), new, n))
        for length in prompts
        for n in branches
    ]
    engines = make_baselines(model, backend)
    for repeat in range(-1, repeats):
        for point, name in product(points, engines):
            if name in point.failed:
                continue
            workload = point.workload
            if repeat < 0:
                workload = BranchWorkload(workload.prompt, min(8, new), workload.branches)
            try:
                run = engines[name](workload)
            except Exception as error:  # a failure of transformers is a result of this benchmark, ours is not
                if name == "ours":
                    raise
                point.failed[name] = f"{type(error).__name__}: {error}"
                continue
            if repeat >= 0:
                point.runs.setdefault(name, []).append(run)
                on_run(name, workload.branches, workload.tokens / run.seconds)
    for point in points:
        keys = {"prompt": len(point.workload.prompt), "private": new // 2}
        point.roofline = measure_roofline(
            model.config, branches=point.workload.branches, **keys, dtype=backend.dtype, device=backend.device
        )
    return points


def _random_prompt(vocabulary: int, length: int) -> tuple[int, ...]:
    """Fixed pseudo-random ids: no run stops early, so the time does not depend on the ids."""
    state, ids = 12345, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(state % vocabulary)
    return tuple(ids)


def compare_modules(
    model: TransformersModel, backend: HFBackend, rows: Sequence[int]
) -> dict[int, tuple[float, float, float]]:
    """Returns the time of transformers' modules over that of our fused stack (quartiles), by number of rows."""
    return {n: module_cost(model, backend, n) for n in rows}


def describe_machine() -> dict[str, object]:
    """Returns machine, load and library versions, for a report."""
    import torch
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpus": os.cpu_count(), "threads": torch.get_num_threads(), "load": os.getloadavg()[0], "gpu": gpu,
        "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
