"""Accepts the draft nodes that are the target's own tokens, which are chosen before the draft is looked at."""

from __future__ import annotations

from collections.abc import Sequence as Items

from decoding.speculation.draft import Draft, VerifyResult


def match_tokens(
    drafts: Items[Draft], first_rows: Items[int], tokens: Items[int], logprobs: Items[float]
) -> list[VerifyResult]:
    """Returns the path of each draft along given tokens.

    tokens, logprobs   by logits row, the token after it and its raw log-probability: lists, because indexing arrays on
                       every step of a path costs more than the comparison

    >>> match_tokens([Draft((5, 6, 9), (-1, 0, 0))], [0], [5, 9, 1, 2], [-0.1, -0.2, -0.3, -0.4])
    [VerifyResult(accepted_nodes=(0, 2), tokens=(5, 9, 2))]
    """
    results = []
    for first, draft in zip(first_rows, drafts, strict=True):
        if not draft.tokens:  # plain decoding, most rows of a large batch
            results.append(VerifyResult((), (tokens[first],), (logprobs[first],)))
            continue
        # as `Draft.follow_path`, without a call for each node
        last, token, row = -1, tokens[first], first
        path: list[int] = []
        chosen, of_chosen = [token], [logprobs[first]]
        for parent, drafted in zip(draft.parents, draft.tokens, strict=True):
            row += 1
            if parent == last and drafted == token:
                last, token = row - first - 1, tokens[row]
                path.append(last)
                chosen.append(token)
                of_chosen.append(logprobs[row])
        results.append(VerifyResult(tuple(path), tuple(chosen), tuple(of_chosen)))
    return results
