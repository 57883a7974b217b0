"""Part a2: attention against a softmax in float64, and sampled tokens against the sampler of the CPU."""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
from torch import Tensor

from decoding.core import SamplingParams
from decoding.gpu_sampler import sample_on_gpu
from decoding.model.segments import SegmentTiles
from decoding.sampler import sample_tokens
from decoding.sampling_batch import SamplingBatch
from reason.bench.gpu_report.attention_case import AttentionCase, HeadSizes, draw_inputs
from reason.bench.gpu_report.rig import NO_TIME, ReportRig, measure_ceilings
from reason.bench.gpu_report.timing import time_launches
from reason.bench.round_contexts import SearchContexts
from reason.bench.sampling import SETTINGS

HEADS_7B = HeadSizes("qwen2.5-7b", 4, 7, 128)
REAL_CASES = (
    (HEADS_7B, torch.bfloat16),
    (HeadSizes("qwen2.5-1.5b", 2, 6, 128), torch.bfloat16),
    (HeadSizes("llama-3.2-1b", 8, 4, 64), torch.bfloat16),
    (HEADS_7B, torch.float16),
    (HEADS_7B, torch.float32),
)
TINY_CASES = ((HeadSizes("tiny", 1, 2, 16), torch.float32),)
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-4}
"""A rounded output of up to 1, and in 16 bits the rounded weights of its sum."""
VOCABULARY = 152_064
_CHUNK = 256


def check_kernels(rig: ReportRig) -> None:
    """Adds a line per model and dtype, one per setting of the sampler, and the times of sampling."""
    for heads, dtype in rig.pick(REAL_CASES, TINY_CASES):
        _check_attention(rig, heads, dtype)
    settings = {**SETTINGS, "greedy": SamplingParams(temperature=0.0)}
    _time_sampler(rig)
    differing = total = 0
    for dtype, (name, params) in product((torch.float32, torch.bfloat16), settings.items()):
        if not rig.has_seconds(rig.pick(8, 0)):
            rig.add_skipped(f"sampler, {name}, {_name(dtype)}", NO_TIME)
            continue
        rows = rig.pick(2048 if dtype == torch.float32 else 512, 3)
        others = _check_sampler(rig, name, params, dtype, rows)
        if dtype == torch.float32:  # of bfloat16 logits many are equal
            differing, total = differing + others, total + rows
    rig.add_check(
        "sampler, all settings, float32",
        f"{differing} of {total} rows differ from the CPU",
        differing * 10_000 <= total,
        "at most 1 in 10,000",
    )


def _check_attention(rig: ReportRig, heads: HeadSizes, dtype: torch.dtype) -> None:
    sources = rig.pick(
        (
            SearchContexts(16, problems=3),
            SearchContexts(64, problems=8, written=(50, 300), step=(1, 80)),
            SearchContexts(5, problems=5, prompt=(1, 4), written=(1, 4), step=(1, 4)),
            SearchContexts(2, problems=1, prompt=(3000, 6000)),
        ),
        (SearchContexts(3, problems=1, siblings=2, prompt=(3, 9), written=(50, 90), step=(1, 9)),),
    )
    worst, nodes = 0.0, rig.pick((0, 4, 16, 70), (5,))
    count = 0
    for seed, source in enumerate(sources):
        for width in nodes:
            kv, inputs = draw_inputs(source, width, rig.pick(300, 12), seed)
            # small splits, so that in a tiny case too a row has several
            tiles = rig.pick(None, SegmentTiles(5, 64))
            case = AttentionCase(heads, dtype, rig.device, kv, inputs, tiles)
            worst = max(worst, case.find_error(TOLERANCES[dtype]))
            count += 1
    rig.add_check(
        f"attention of {heads.model}, {_name(dtype)}",
        f"largest error {worst:.3f} of the tolerance in {count} batches",
        worst <= 1,
        f"{TOLERANCES[dtype]:g} x (1 + |float64|), no NaN of a poisoned slot or place",
        share_of_tolerance=worst,
    )


def draw_logits(rows: int, vocab_size: int, device: torch.device, seed: int) -> Tensor:
    """Returns logits as peaked as those of a language model, float32: a few likely ids over a wide flat rest."""
    generator = torch.Generator(device).manual_seed(seed)
    logits = torch.randn(rows, vocab_size, generator=generator, device=device) * 2.5
    # from flat rows to ones with a single likely id
    logits[:, : min(40, vocab_size)] += torch.linspace(0, 14, rows, device=device)[:, None]
    return logits


def _check_sampler(rig: ReportRig, name: str, params: SamplingParams, dtype: torch.dtype, total: int) -> int:
    """Adds the line of one setting; returns how many rows differ."""
    columns = rig.pick(VOCABULARY, 1000)
    chunk = min(_CHUNK, total)
    differing, tied, error = 0, 0, 0.0
    for first in range(0, total, chunk):
        logits = draw_logits(chunk, columns, rig.device, first).to(dtype)
        rows = SamplingBatch.from_params([params] * chunk, range(first, first + chunk), range(chunk))
        tokens, logsumexp = sample_on_gpu(logits, rows)
        there, here = logits.cpu(), tokens.cpu()
        expected = sample_tokens(there, rows)
        is_other = here != expected
        chosen = there.float().gather(1, torch.stack([here, expected], dim=1))
        differing += int(is_other.sum())
        tied += int((is_other & (chosen[:, 0] == chosen[:, 1])).sum())
        exact = logits.double().logsumexp(-1)
        error = max(error, float((logsumexp.double() - exact).abs().max()))
    value = f"{differing} of {total} rows differ from the CPU; log-sum within {error:.1e} of float64"
    details = {"differing": differing, "with_equal_logits": tied, "rows": total, "log_sum_error": error}
    if dtype == torch.bfloat16:
        value += f"; of these rows {tied} have equal logits of both tokens"
    rig.add_check(f"sampler, {name}, {_name(dtype)}", value, error <= 1e-4, "log-sum within 1e-4", **details)
    return differing


def _time_sampler(rig: ReportRig) -> None:
    card, columns = measure_ceilings(rig), rig.pick(VOCABULARY, 1000)
    for rows in rig.pick((1, 64, 1088), (2,)):
        logits = draw_logits(rows, columns, rig.device, 0).to(rig.dtype)
        for name in ("temperature 1", "top_p 0.95", "top_k 20, top_p 0.95"):
            batch = SamplingBatch.from_params([SETTINGS[name]] * rows, range(rows), range(rows))
            calls = [partial(sample_on_gpu, logits, batch)] * rig.pick(10, 1)
            seconds = time_launches(calls, rig.device, repeats=rig.pick(5, 1))
            least = logits.numel() * logits.element_size() / card.bandwidth
            rig.add_figure(
                f"sampling {rows} rows, {name}",
                f"{1e3 * seconds:.3f} ms; reading the logits once takes {1e3 * least:.3f} ms",
                seconds=seconds,
                read_seconds=least,
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
