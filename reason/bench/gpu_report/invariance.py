"""Part a3: whether a row has the same bits alone, in a batch, and in another chunking; products beside it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from decoding.core import GenerationRequest, SamplingParams
from decoding.gpu_sampler import sample_on_gpu
from decoding.kv.kv_cache import KVCache
from decoding.kv.slots import SlotPool
from decoding.model.batch import SequenceInput
from decoding.model.segments import SegmentTiles
from decoding.request import Request
from decoding.sampling_batch import SamplingBatch
from reason.bench.gpu_report.attention_case import AttentionCase, draw_inputs
from reason.bench.gpu_report.kernel_checks import HEADS_7B, TINY_CASES, VOCABULARY, draw_logits
from reason.bench.gpu_report.rig import ReportRig
from reason.bench.puppet import find_shape
from reason.bench.round_contexts import SearchContexts
from reason.bench.sampling import SETTINGS

_SAME_BITS = "the same bits"


def check_invariance(rig: ReportRig) -> None:
    """Adds a line per kernel and way of batching, and how much the products of the library change."""
    _compare_batches(rig)
    _compare_chunks(rig)
    _compare_sampling(rig)
    _compare_products(rig)


def _compare_batches(rig: ReportRig) -> None:
    heads = rig.pick(HEADS_7B, TINY_CASES[0][0])
    source = rig.pick(SearchContexts(64), SearchContexts(3, 1, 2, prompt=(3, 9), written=(50, 90), step=(1, 9)))
    kv, inputs = draw_inputs(source, rig.pick(4, 2), rig.pick(300, 8), 0)
    tiles = rig.pick(None, SegmentTiles(5, 64))
    case = AttentionCase(heads, rig.dtype, rig.device, kv, inputs, tiles)
    together = case.attend(inputs)
    some = inputs[:: rig.pick(5, 2)]
    differing = sum(
        not torch.equal(case.attend([item])[item.sequence.arrival], together[item.sequence.arrival]) for item in some
    )
    # the interpreter multiplies with the CPU's library, whose bits depend on the sizes of the matrices
    rig.add_device_check(
        f"attention, alone and among {len(inputs)} inputs",
        f"{differing} of {len(some)} inputs differ",
        not differing,
        _SAME_BITS,
    )


def _compare_chunks(rig: ReportRig) -> None:
    """Reads one text in one pass, and again in two, into the same slots."""
    heads, length, first = rig.pick(HEADS_7B, TINY_CASES[0][0]), rig.pick(700, 40), rig.pick(270, 17)
    kv = KVCache(SlotPool(length + 1))
    slots = kv.allocate(length)

    def make_input(begin: int, end: int) -> SequenceInput[Request]:
        text = tuple(range(1, end + 1))
        request = Request(GenerationRequest(prefix=text, params=SamplingParams(), seed=0))
        request.arrival = 0
        request.append_slots(slots[:begin])
        return SequenceInput(request, end - begin, slots[begin:end], 0)

    whole = make_input(0, length)
    case = AttentionCase(heads, rig.dtype, rig.device, kv, [whole], rig.pick(None, SegmentTiles(5, 64)))
    queries = case.queries[0]
    expected = case.attend([whole])[0]
    case.queries[0] = queries[:first]
    parts = [case.attend([make_input(0, first)])[0]]
    case.queries[0] = queries[first:]
    parts.append(case.attend([make_input(first, length)])[0])
    differing = int((torch.cat(parts) != expected).any(dim=1).sum())
    rig.add_device_check(
        f"attention, {length} tokens in one pass and in two",
        f"{differing} of {length} rows differ",
        not differing,
        _SAME_BITS,
    )


def _compare_sampling(rig: ReportRig) -> None:
    count = rig.pick(64, 4)
    logits = draw_logits(count, rig.pick(VOCABULARY, 1000), rig.device, 1).to(rig.dtype)
    params = [*SETTINGS.values()] * count
    numbers = np.arange(count)
    batch = SamplingBatch.from_params(params[:count], range(count), range(count))
    tokens, sums = sample_on_gpu(logits, batch)
    differing = 0
    for row in range(0, count, rig.pick(1, 2)):
        token, one = sample_on_gpu(logits[row : row + 1], batch.select_rows(numbers[row : row + 1]))
        differing += not (torch.equal(token[0], tokens[row]) and torch.equal(one[0], sums[row]))
    rig.add_check(
        f"sampler, alone and among {count} rows",
        f"{differing} rows differ in the token or the log-sum",
        not differing,
        _SAME_BITS,
    )


def _compare_products(rig: ReportRig) -> None:
    """Compares rows of the library's product, alone and among others: no bar, the difference is to be seen."""
    name = rig.pick("qwen2.5-7b", "miniature")
    shape = find_shape(name)
    weight = torch.randn(2 * shape.mlp_size, shape.hidden_size, device=rig.device).to(rig.dtype) * 0.02
    x = torch.randn(rig.pick(512, 8), shape.hidden_size, device=rig.device).to(rig.dtype)
    with torch.inference_mode():
        alone = F.linear(x[:1], weight)
        for rows in rig.pick((2, 16, 64, 128, 512), (2, 8)):
            among = F.linear(x[:rows], weight)[:1]
            differing = float((among != alone).float().mean())
            largest = float((among.double() - alone.double()).abs().max())
            rig.add_figure(
                f"a row of the library's product, alone and among {rows}",
                f"{differing:.1%} of the numbers differ, at most by {largest:.1e}",
            )
