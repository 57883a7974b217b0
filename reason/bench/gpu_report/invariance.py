"""Part a3: whether a row has the same bits alone, in a batch, and in another chunking; products beside it.

Rehearsed, products of the interpreter have one order, as those of a GPU: then the lines of invariant numerics hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F

from decoding.core import GenerationRequest, SamplingParams
from decoding.gpu_sampler import sample_on_gpu
from decoding.kv.kv_cache import KVCache
from decoding.kv.slots import SlotPool
from decoding.model.batch import EMPTY_DRAFT, SequenceInput
from decoding.model.invariant_products import multiply_rows
from decoding.model.segment_attention import pick_tiles
from decoding.model.segments import SegmentTiles
from decoding.request import Request
from decoding.sampling_batch import SamplingBatch
from decoding.speculation.draft import Draft
from decoding.triton_interpreter import ordered_products
from reason.bench.gpu_report.attention_case import AttentionCase, HeadSizes, draw_inputs
from reason.bench.gpu_report.kernel_checks import HEADS_7B, TINY_CASES, VOCABULARY, draw_logits
from reason.bench.gpu_report.rig import ReportRig
from reason.bench.puppet import find_shape
from reason.bench.round_contexts import SearchContexts
from reason.bench.sampling import SETTINGS

_SAME_BITS = "the same bits"


def check_invariance(rig: ReportRig) -> None:
    """Adds a line per kernel and way of batching, and how much the products of the library change."""
    _compare_batches(rig, is_aligned=False)
    _compare_chunks(rig, is_aligned=False)
    _compare_sampling(rig)
    _compare_products(rig)
    with _ordered_if_interpreted(rig):
        _compare_batches(rig, is_aligned=True)
        _compare_chunks(rig, is_aligned=True)
        _compare_invariant_products(rig)


@contextmanager
def _ordered_if_interpreted(rig: ReportRig) -> Iterator[None]:
    if not rig.rehearses:
        yield
        return
    with ordered_products():
        yield


def _pick_tiles(rig: ReportRig, heads: HeadSizes, is_aligned: bool) -> SegmentTiles:
    real = pick_tiles(heads.queries, heads.size, rig.dtype, is_aligned=is_aligned)
    return rig.pick(real, SegmentTiles(5, 16 if is_aligned else 64, is_aligned))


def _add_comparison(rig: ReportRig, name: str, value: str, is_passed: bool, is_aligned: bool) -> None:
    if is_aligned:
        rig.add_check(f"invariant {name}", value, is_passed, _SAME_BITS)
    else:
        # the interpreter multiplies with the CPU's library, whose bits depend on the place of a row
        rig.add_device_check(name, value, is_passed, _SAME_BITS)


def _compare_batches(rig: ReportRig, is_aligned: bool) -> None:
    heads = rig.pick(HEADS_7B, TINY_CASES[0][0])
    source = rig.pick(SearchContexts(64), SearchContexts(3, 1, 2, prompt=(3, 9), written=(50, 90), step=(1, 9)))
    kv, inputs = draw_inputs(source, rig.pick(4, 2), rig.pick(300, 8), 0)
    case = AttentionCase(heads, rig.dtype, rig.device, kv, inputs, _pick_tiles(rig, heads, is_aligned))
    together = case.attend(inputs)
    some = inputs[:: rig.pick(5, 2)]
    differing = sum(
        not torch.equal(case.attend([item])[item.sequence.arrival], together[item.sequence.arrival]) for item in some
    )
    _add_comparison(
        rig,
        f"attention, alone and among {len(inputs)} inputs",
        f"{differing} of {len(some)} inputs differ",
        not differing,
        is_aligned,
    )


def _compare_chunks(rig: ReportRig, is_aligned: bool) -> None:
    """Reads one text in one pass, and again in two, into the same slots; with aligned splits also as a draft."""
    heads, length, first = rig.pick(HEADS_7B, TINY_CASES[0][0]), rig.pick(700, 40), rig.pick(270, 17)
    kv = KVCache(SlotPool(length + 1))
    slots = kv.allocate(length)

    def make_input(begin: int, end: int, nodes: int = 0) -> SequenceInput[Request]:
        text = tuple(range(1, end + 1 - nodes))
        request = Request(GenerationRequest(prefix=text, params=SamplingParams(), seed=0))
        request.arrival = 0
        request.append_slots(slots[:begin])
        draft = Draft(tuple(range(nodes)), tuple(range(-1, nodes - 1))) if nodes else EMPTY_DRAFT
        return SequenceInput(request, end - begin - nodes, slots[begin:end], 0, draft)

    whole = make_input(0, length)
    case = AttentionCase(heads, rig.dtype, rig.device, kv, [whole], _pick_tiles(rig, heads, is_aligned))
    queries = case.queries[0]
    expected = case.attend([whole])[0]
    case.queries[0] = queries[:first]
    parts = [case.attend([make_input(0, first)])[0]]
    case.queries[0] = queries[first:]
    parts.append(case.attend([make_input(first, length)])[0])
    differing = int((torch.cat(parts) != expected).any(dim=1).sum())
    _add_comparison(
        rig,
        f"attention, {length} tokens in one pass and in two",
        f"{differing} of {length} rows differ",
        not differing,
        is_aligned,
    )
    if is_aligned:
        drafted = case.attend([make_input(first, length, length - first - 1)])[0]
        differing = int((drafted != expected[first:]).any(dim=1).sum())
        name = f"attention, {length - first - 1} tokens as text and as a draft"
        _add_comparison(rig, name, f"{differing} of {length - first} rows differ", not differing, is_aligned)


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


def _compare_invariant_products(rig: ReportRig) -> None:
    """Compares rows of our product, alone and at places among others, in layers of 7B and in its head."""
    shape = find_shape(rig.pick("qwen2.5-7b", "miniature"))
    most = rig.pick(512, 40)
    sizes = {
        "gate_up": (shape.hidden_size, 2 * shape.mlp_size),
        "down": (shape.mlp_size, shape.hidden_size),
        "head": (shape.hidden_size, rig.pick(VOCABULARY, 100)),
    }
    for name, (inputs, outputs) in sizes.items():
        weight = torch.randn(outputs, inputs, device=rig.device).to(rig.dtype) * 0.02
        # a head lies transposed
        weight = weight.t() if name == "head" else weight.t().contiguous()
        x = torch.randn(most, inputs, device=rig.device).to(rig.dtype)
        rows = rig.pick(range(0, most, 5), range(0, most, 13))
        alone = {row: multiply_rows(x[row : row + 1], weight, None) for row in rows}
        differing = compared = 0
        for count in rig.pick((*range(1, 65), 100, 128, 200, 256, 384, 512), (2, 33, 40)):
            among = multiply_rows(x[:count], weight, None)
            for row in (row for row in rows if row < count):
                compared += 1
                differing += not torch.equal(among[row], alone[row][0])
        rig.add_check(
            f"invariant product, {name}, 1 to {most} rows",
            f"{differing} of {compared} rows differ from the row alone",
            not differing,
            _SAME_BITS,
        )
