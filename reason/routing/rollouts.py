"""Ground truth of a step, where answers can be checked: how often the large model arrives from there.

After Math-Shepherd (arXiv 2312.08935, section 3.3): a step is as good as the share of solutions begun with it that end
in the right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from decoding.core import Engine, GenerationRequest, SamplingParams, Tokens
from reason.routing.pairs import Pair
from search.seeds import derive_seed


async def with_truth(
    pairs: Sequence[Pair],
    engine: Engine,
    *,
    count: int,
    params: SamplingParams,
    root: int,
    decode: Callable[[Tokens], str],
    right: Callable[[str], bool],
    delimiter: str,
    seed: int,
) -> list[Pair]:
    """The pairs with both truths, each the share of `count` solutions that `engine` finishes rightly.

    params   of whole solutions; `max_tokens` counts from each step's end
    root     tokens of the prompt, which is no part of a solution's text
    right    whether a solution's text is
    """
    starts = [prefix for pair in pairs for prefix in (pair.prefix + pair.draft, pair.prefix + pair.target)]
    open_ends = [start for start in dict.fromkeys(starts) if decode(start[root:]).endswith(delimiter)]
    requests = [
        GenerationRequest(prefix=start, params=params, seed=derive_seed(seed, i, *start), group=pairs[0].group)
        for start in open_ends
        for i in range(count)
    ]
    written = await engine.generate(requests)
    shares = {start: float(right(decode(start[root:]))) for start in starts}  # of those that are solutions already
    for number, start in enumerate(open_ends):
        ends = written[number * count : (number + 1) * count]
        shares[start] = sum(right(decode(start[root:] + end.tokens)) for end in ends) / count
    return [
        replace(pair, draft_truth=shares[pair.prefix + pair.draft], target_truth=shares[pair.prefix + pair.target])
        for pair in pairs
    ]
