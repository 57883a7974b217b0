"""Times what our SGLang plug-in does on the host in a round, phase by phase, without SGLang and without a model.

The rounds are those of `ServerRounds` over requests that already have long contexts, held as SGLang holds them. The
logits are random, one vector for all rows: what a GPU would do with them is timed apart.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from decoding.sglang_plugin.parts import make_parts
from decoding.sglang_plugin.requests import PROBLEM_KEY, RequestReader, SGLangRequest
from decoding.sglang_plugin.rounds import PlannedRound, ServerRounds
from decoding.sglang_plugin.trees import flatten_trees, sampling_rows, to_committed_arrays

BORDER_PHASES = ("requests", "packing", "committing")
"""What the border between SGLang and `decoding` costs: ids of requests in, arrays in and out."""
PLUGIN_PHASES = (*BORDER_PHASES, "drafting", "learning")
_VOCABULARY = 512
_REPEATED = 64  # tokens of the piece that a text repeats


@dataclass(frozen=True)
class ServedSampling:
    """Sampling parameters as SGLang holds them."""

    max_new_tokens: int
    sampling_seed: int | None
    custom_params: Mapping[str, object] | None
    temperature: float = 1.0
    top_k: int = 1 << 30
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, eq=False)
class ServedRequest:
    """A request as SGLang holds it."""

    rid: str
    origin_input_ids: array[int]
    output_ids: array[int]
    sampling_params: ServedSampling


@dataclass(frozen=True)
class PluginCost:
    """Milliseconds of a round by phase, medians; `device_ms` is what a GPU would do."""

    requests: int
    context: int
    nodes: int
    phases: dict[str, float]
    device_ms: float

    @property
    def border_ms(self) -> float:
        """What the border between SGLang and `decoding` costs."""
        return sum(self.phases[name] for name in BORDER_PHASES)

    @property
    def host_ms(self) -> float:
        """What the host does in a round: the border, drafting and learning."""
        return sum(self.phases.values())

    def to_json(self) -> dict[str, object]:
        """Returns all figures."""
        return {**vars(self), "border_ms": self.border_ms, "host_ms": self.host_ms}


def measure_plugin_rounds(requests: int, context: int, nodes: int, *, rounds: int, warmup: int) -> PluginCost:
    """Returns the medians over `rounds` rounds with `nodes` draft nodes of each request, after `warmup` others."""
    random = np.random.default_rng(0)
    served = [_serve_request(i, context, random) for i in range(requests)]
    server, reader = ServerRounds(make_parts(nodes, "coupled"), None), RequestReader()
    seconds: dict[str, list[float]] = {phase: [] for phase in (*PLUGIN_PHASES, "device")}
    logits_WV = torch.from_numpy(random.standard_normal((1, _VOCABULARY), dtype=np.float32))
    logits_WV = 4 * logits_WV.expand(requests * (1 + nodes), _VOCABULARY)
    with torch.inference_mode():
        for _ in range(warmup + rounds):
            for phase, duration in _run_round(server, reader, served, logits_WV).items():
                seconds[phase].append(1e3 * duration)
    medians = {phase: float(np.median(durations[warmup:])) for phase, durations in seconds.items()}
    device_ms = medians.pop("device")
    return PluginCost(requests, context, nodes, medians, device_ms)


def _run_round(
    server: ServerRounds, reader: RequestReader, served: list[ServedRequest], logits_WV: torch.Tensor
) -> dict[str, float]:
    """Returns seconds by phase. *Mutates* the server, the reader and the requests."""
    marks = [time.perf_counter()]
    branches = reader.to_branches(cast(list[SGLangRequest], served))  # an array has all that is read
    marks.append(time.perf_counter())
    planned = server.plan_round(branches, None)
    marks.append(time.perf_counter())
    flattening, sampling = _repeat_packing(planned)
    marks.append(time.perf_counter())
    verified = server.verify_round(planned, logits_WV)
    marks.append(time.perf_counter())
    to_committed_arrays(verified.outcomes, planned.nodes)
    marks.append(time.perf_counter())
    server.end_round(planned, verified)
    marks.append(time.perf_counter())
    for request, outcome in zip(served, verified.outcomes, strict=True):
        request.output_ids.extend(outcome.tokens)  # SGLang's own work
    to_requests, planning, _, verifying, committing, learning = np.diff(marks).tolist()
    return {
        "requests": to_requests,
        "drafting": planning - flattening,
        "packing": flattening + sampling,
        "device": verifying - sampling,
        "committing": committing,
        "learning": learning,
    }


def _repeat_packing(planned: PlannedRound) -> tuple[float, float]:
    """Returns the seconds of what planning and verifying do besides drafting and sampling: it is done once more."""
    begin = time.perf_counter()
    trees = flatten_trees(planned.branches, planned.drafts, planned.nodes)
    middle = time.perf_counter()
    sampling_rows(planned.branches, trees.depths)
    return middle - begin, time.perf_counter() - middle


def _serve_request(number: int, context: int, random: np.random.Generator) -> ServedRequest:
    """Returns a request in the middle of its answer, whose text repeats a piece of its own."""
    piece = random.integers(1, _VOCABULARY, _REPEATED).tolist()
    ids = (piece * (1 + context // _REPEATED))[:context]
    half = context // 2
    sampling = ServedSampling(1 << 19, number, {PROBLEM_KEY: f"problem {number // 8}"})
    return ServedRequest(f"request {number}", array("q", ids[:half]), array("q", ids[half:]), sampling)
