"""Converts requests of SGLang to branches; reads their attributes and imports nothing of SGLang."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from decoding.core import SamplingParams
from decoding.speculation.interfaces import Branch

PROBLEM_KEY = "problem_id"
_ALL = 1 << 30  # SGLang's top_k for the whole vocabulary


def to_branch(request: Any, late: Sequence[int] = ()) -> Branch:
    """`late` are tokens that are accepted and not yet in the request, as overlapped scheduling has them.

    A request without a problem of its own shares its table with all of those; one without a seed gets one by its name.
    """
    sampling, name = request.sampling_params, zlib.crc32(str(request.rid).encode())
    tokens = (*request.origin_input_ids, *request.output_ids, *late)
    written = len(request.output_ids) + len(late)
    return Branch(
        request_id=name,
        group=str((sampling.custom_params or {}).get(PROBLEM_KEY, "")),
        tokens=tokens,
        seed=name if sampling.sampling_seed is None else sampling.sampling_seed,
        params=_params(sampling),
        remaining=max(0, sampling.max_new_tokens - written),
    )


def _params(sampling: Any) -> SamplingParams:
    """Returns the sampling parameters; SGLang writes greedy as temperature 1 and top_k 1."""
    greedy = sampling.top_k == 1
    return SamplingParams(
        max_tokens=max(1, sampling.max_new_tokens),
        temperature=0.0 if greedy else float(sampling.temperature),
        top_k=0 if greedy or sampling.top_k >= _ALL else sampling.top_k,
        top_p=float(sampling.top_p),
        min_p=float(sampling.min_p),
    )
