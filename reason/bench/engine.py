"""The engine's benchmark: tokens per second beside transformers, KV held, and the distance to the machine's limit."""

from __future__ import annotations

import copy
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from decoding.model.transformers_checkpoint import HFBackend, pick_device, pick_dtype
from reason.bench.baselines import Run, Workload, contestants
from reason.bench.roofline import Ceiling, ceiling, module_cost


@dataclass
class Point:
    """All runs of one number of branches, in the order they were made; `failed` says why a contestant has none."""

    work: Workload
    runs: dict[str, list[Run]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    ceiling: Ceiling | None = None

    def rate(self, name: str) -> float | None:
        """Median tokens per second."""
        runs = self.runs.get(name)
        return median(self.work.tokens / run.seconds for run in runs) if runs else None

    def ratio(self, name: str) -> float | None:
        """Median over repetitions of our speed relative to a contestant's run next to it."""
        pairs = zip(self.runs.get("ours", []), self.runs.get(name, []), strict=False)
        ratios = [theirs.seconds / mine.seconds for mine, theirs in pairs]
        return median(ratios) if ratios else None

    def shares(self) -> dict[str, float]:
        """Where our seconds went, as fractions of the median run's wall clock."""
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
        named["outside rounds"] = run.seconds - sum(named.values())
        return {name: seconds / run.seconds for name, seconds in named.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for the JSON line."""
        stats = self.runs["ours"][-1].stats
        assert stats is not None
        assert self.ceiling is not None
        at_best = self.work.branches / self.ceiling.seconds
        return {
            "prompt": len(self.work.prompt),
            "branches": self.work.branches,
            "tokens_per_s": {name: self.rate(name) for name in self.runs},
            "speed_vs": {name: self.ratio(name) for name in self.runs if name != "ours"},
            "failed": self.failed,
            "peak_resident_tokens": stats.peak_resident_tokens,
            "peak_unshared_tokens": stats.peak_unshared_tokens,
            "kv_fraction": stats.peak_resident_tokens / stats.peak_unshared_tokens,
            "ceiling_tokens_per_s": at_best,
            "of_ceiling": (self.rate("ours") or 0.0) / at_best,
            "ceiling_products_ms": 1e3 * self.ceiling.products_s,
            "ceiling_memory_ms": 1e3 * self.ceiling.memory_s,
            "shares": self.shares(),
        }


def random_model() -> Any:
    """A Qwen2 of the bundled target's size with random weights, for when there is no bundled target yet."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=640, hidden_size=192, intermediate_size=512, num_hidden_layers=8, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=4096,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def open_model(path: str | None, device: str, dtype: str) -> tuple[Any, HFBackend]:
    """The model as transformers runs it, and as we run it."""
    place = pick_device(device)
    precision = pick_dtype(dtype, place)
    if path is None:
        model = random_model()
    else:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path, dtype=precision)
    model = model.to(place, precision).eval()
    return model, HFBackend(copy.deepcopy(model), device=device, dtype=dtype)


def measure(
    model: Any,
    backend: HFBackend,
    *,
    branches: Sequence[int],
    prompts: Sequence[int],
    new: int,
    repeats: int,
    on_run: Callable[[str, int, float], None] = lambda name, branches, rate: None,
) -> list[Point]:
    """Interleaved: every contestant runs every workload once before any runs again. One short round is warm-up."""
    points = [Point(Workload(_prompt(backend.vocab_size, length), new, n)) for length in prompts for n in branches]
    entrants = contestants(model, backend)
    for repeat in range(-1, repeats):
        for point, name in _rounds(points, entrants):
            if name in point.failed:
                continue
            work = point.work if repeat >= 0 else Workload(point.work.prompt, min(8, new), point.work.branches)
            try:
                run = entrants[name](work)
            except Exception as error:  # another library's failure is a result of this benchmark, ours is not
                if name == "ours":
                    raise
                point.failed[name] = f"{type(error).__name__}: {error}"
                continue
            if repeat >= 0:
                point.runs.setdefault(name, []).append(run)
                on_run(name, work.branches, work.tokens / run.seconds)
    for point in points:
        work = point.work
        keys = {"prompt": len(work.prompt), "private": new // 2}
        point.ceiling = ceiling(
            model.config, branches=work.branches, **keys, dtype=backend.dtype, device=backend.device
        )
    return points


def _rounds(points: Sequence[Point], entrants: dict[str, Any]) -> Iterator[tuple[Point, str]]:
    for point in points:
        for name in entrants:
            yield point, name


def _prompt(vocabulary: int, length: int) -> tuple[int, ...]:
    """Fixed pseudo-random ids: nothing stops early here, so what the ids mean does not change the time."""
    state, ids = 12345, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(state % vocabulary)
    return tuple(ids)


def modules(model: Any, backend: HFBackend, rows: Sequence[int]) -> dict[int, tuple[float, float, float]]:
    """How many times longer transformers' modules take than our fused stack (quartiles), by rows."""
    return {n: module_cost(model, backend, n) for n in rows}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpus": os.cpu_count(), "threads": torch.get_num_threads(), "load": os.getloadavg()[0], "gpu": gpu,
        "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
