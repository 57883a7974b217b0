"""Part b5: transformers' own generation beside the engine, with the same random weights."""

from __future__ import annotations

import torch

from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import BranchWorkload, run_ours, transformers_generate
from reason.bench.gpu_report.rig import NO_TIME, ReportRig
from reason.bench.puppet import find_shape

_SECONDS = 20.0


def compare_with_transformers(rig: ReportRig) -> None:
    """Adds tokens per second of both at 1 and 16 branches of one prompt."""
    name = rig.pick("qwen2.5-7b", "miniature")
    model = find_shape(name).make_model(rig.device, rig.dtype).eval()
    backend = HFBackend(model, device=str(rig.device), dtype=str(rig.dtype).removeprefix("torch."))
    for branches in rig.pick((1, 16), (2,)):
        if not rig.has_seconds(rig.pick(_SECONDS, 0)):
            rig.add_skipped(f"{name}, {branches} branches", NO_TIME)
            continue
        prompt = tuple(1 + token % 250 for token in range(rig.pick(512, 8)))
        short, whole = (BranchWorkload(prompt, new, branches) for new in (4, rig.pick(128, 6)))
        with torch.inference_mode():
            transformers_generate(model, short)
            theirs = transformers_generate(model, whole).seconds
        run_ours(backend, short)
        ours = run_ours(backend, whole).seconds
        rig.add_figure(
            f"{name}, {branches} branches of {len(prompt)} + {whole.new} tokens",
            f"transformers' generate {whole.tokens / theirs:,.0f} tokens/s, the engine without drafts "
            f"{whole.tokens / ours:,.0f}: {theirs / ours:.2f}x",
            generate_seconds=theirs,
            engine_seconds=ours,
        )
