"""Compiled steps over the nodes of a `TextForest`: appending, matching the end of a text, counting what followed.

Shapes: N nodes, S hash slots, V token ids, P places, F contexts, W followers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decoding.compiled import compiled, compiled_in_place
from decoding.speculation.drafters.ngram_hash_table import Counts, Int32s, Ints, Keys, extend_key, find_slot
from decoding.speculation.drafters.source import Floats

NO_NODE = -1


class ForestNodes(NamedTuple):
    """Parallel arrays of N nodes, each an appended token; a root has token and parent -1. Parents come before children.

    child_N      the newest child
    sibling_N    the next older child of the same parent
    twin_N       the next older node with the same token in the same tree
    key_S, newest_S  a hash table from tree and token to the newest node with it
    tally_V, first_V  scratch space for counts by token; zeros between calls
    """

    token_N: Int32s
    parent_N: Int32s
    child_N: Int32s
    sibling_N: Int32s
    twin_N: Int32s
    key_S: Keys
    newest_S: Int32s
    tally_V: Int32s
    first_V: Int32s


@compiled_in_place
def link_node(nodes: ForestNodes, node: int, root: int) -> None:
    """Links a node, whose token and parent are set, to its parent and its twins. *Mutates*."""
    parent, token = nodes.parent_N[node], nodes.token_N[node]
    nodes.child_N[node] = NO_NODE
    nodes.sibling_N[node], nodes.child_N[parent] = nodes.child_N[parent], node
    key = extend_key(np.uint64(root + 1), token)
    slot = find_slot(nodes.key_S, key)
    nodes.twin_N[node] = nodes.newest_S[slot] if nodes.key_S[slot] == key else NO_NODE
    nodes.key_S[slot], nodes.newest_S[slot] = key, node


@compiled
def link_all(nodes: ForestNodes, count: int) -> None:
    """Links the first `count` nodes, of which only tokens and parents are set. *Mutates*."""
    root_N = np.empty(count, dtype=np.int64)
    for node in range(count):
        if nodes.parent_N[node] < 0:
            nodes.child_N[node], nodes.sibling_N[node], nodes.twin_N[node] = NO_NODE, NO_NODE, NO_NODE
            root_N[node] = node
        else:
            root_N[node] = root_N[nodes.parent_N[node]]
            link_node(nodes, node, root_N[node])


@compiled_in_place
def append_text(nodes: ForestNodes, count: int, root: int, end: int, tokens_T: Int32s) -> int:
    """Adds tokens after the node `end` as the nodes `count`, `count + 1`, ...; returns the last one. *Mutates*."""
    for i in range(len(tokens_T)):
        node = count + i
        nodes.token_N[node], nodes.parent_N[node] = tokens_T[i], end
        link_node(nodes, node, root)
        end = node
    return end


@compiled
def list_children(nodes: ForestNodes, places_P: Int32s, token: int) -> Int32s:
    """Returns the children of these nodes with this token, -1 for any."""
    size = 0
    for place in places_P:
        child = nodes.child_N[place]
        while child >= 0:
            size += token < 0 or nodes.token_N[child] == token
            child = nodes.sibling_N[child]
    children, n = np.empty(size, dtype=np.int32), 0
    for place in places_P:
        child = nodes.child_N[place]
        while child >= 0:
            if token < 0 or nodes.token_N[child] == token:
                children[n] = child
                n += 1
            child = nodes.sibling_N[child]
    return children


@compiled
def find_prefix(nodes: ForestNodes, root: int, tokens_T: Int32s) -> tuple[int, int]:
    """Returns node and length of the longest beginning of `tokens_T` that the tree has as the beginning of a text."""
    places = np.full(1, root, dtype=np.int32)
    for length in range(len(tokens_T)):
        children = list_children(nodes, places, tokens_T[length])
        if not len(children):
            return int(places.min()), length
        places = children
    return int(places.min()), len(tokens_T)


@compiled_in_place
def tally_tokens(nodes: ForestNodes, children_C: Int32s, distinct_C: Int32s) -> int:
    """Counts the tokens of nodes in `tally_V`, with their oldest node in `first_V`; lists each once, returns how many.

    *Mutates*: the caller clears `tally_V` at the listed tokens.
    """
    num_distinct = 0
    for child in children_C:
        token = nodes.token_N[child]
        if nodes.tally_V[token] == 0:
            distinct_C[num_distinct], nodes.first_V[token] = token, child
            num_distinct += 1
        nodes.tally_V[token] += 1
        nodes.first_V[token] = min(nodes.first_V[token], child)
    return num_distinct


@compiled_in_place
def pop_most_frequent(nodes: ForestNodes, distinct_D: Int32s) -> tuple[int, int]:
    """Returns the token with the largest tally, of equals the oldest, and its tally, which is cleared. *Mutates*."""
    best = distinct_D[0]
    for token in distinct_D:
        more, tie = nodes.tally_V[token] > nodes.tally_V[best], nodes.tally_V[token] == nodes.tally_V[best]
        if more or (tie and nodes.first_V[token] < nodes.first_V[best]):
            best = token
    tally = nodes.tally_V[best]
    nodes.tally_V[best] = 0
    return int(best), int(tally)


@compiled
def score_path(nodes: ForestNodes, places_P: Int32s, steps: int, least: float) -> float:
    """Returns the sum of path probabilities along the most frequent continuation of the places.

    At most `steps` tokens, while the probability of the path is at least `least`.
    """
    probability, total = 1.0, 0.0
    for _ in range(steps):
        children = list_children(nodes, places_P, -1)
        if not len(children):
            break
        distinct = np.empty(len(children), dtype=np.int32)
        num_distinct = tally_tokens(nodes, children, distinct)
        best, tally = pop_most_frequent(nodes, distinct[:num_distinct])
        nodes.tally_V[distinct[:num_distinct]] = 0
        probability *= tally / max(len(places_P), len(children))
        if probability < least:
            break
        total += probability
        places_P = list_children(nodes, places_P, best)
    return total


@compiled
def list_matches(nodes: ForestNodes, root: int, end: int, longest: int, most: int) -> tuple[Int32s, Ints]:
    """Returns the nodes of a tree that end as the text of the node `end` does, longest matches first, and the ends.

    The end `[m]` of the returned places is that of the matches of m or more tokens; all matches above `longest` count
    as that. `end` may be of another tree. Takes the newest `most` nodes with the token of `end` only.
    """
    token = nodes.token_N[end]
    key = extend_key(np.uint64(root + 1), token)
    slot = find_slot(nodes.key_S, key)
    place = nodes.newest_S[slot] if token >= 0 and nodes.key_S[slot] == key else NO_NODE
    places_N, lengths, n = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32), 0
    ends_M = np.zeros(longest + 2, dtype=np.int64)
    while place >= 0 and n < most:
        length, one, other = 0, place, end
        # A root has token -1, which ends a match, also where both texts begin.
        while length < longest and nodes.token_N[one] >= 0 and nodes.token_N[one] == nodes.token_N[other]:
            length, one, other = length + 1, nodes.parent_N[one], nodes.parent_N[other]
        places_N[n], lengths[n] = place, length
        ends_M[length] += 1
        n, place = n + 1, nodes.twin_N[place]
    for m in range(longest - 1, -1, -1):
        ends_M[m] += ends_M[m + 1]
    places, at_M = np.empty(n, dtype=np.int32), ends_M.copy()
    for i in range(n):
        at_M[lengths[i]] -= 1
        places[at_M[lengths[i]]] = places_N[i]
    return places, ends_M


@compiled
def find_best_match(
    nodes: ForestNodes, root: int, end: int, longest: int, most: int, factor: float, offset: float, least: float
) -> tuple[Int32s, int, int, float]:
    """Returns the places, length, budget and score of the match with the largest score, of equals the longest.

    The budget, the most tokens that a draft may have, is factor * length + offset. No match has no places.
    """
    places, ends_M = list_matches(nodes, root, end, longest, most)
    best, size, budget, score = 0, 0, 0, 0.0
    for length in range(longest, 0, -1):
        if ends_M[length] == ends_M[length + 1]:
            continue  # the same places as of a longer match
        steps = int(factor * length + offset + 1e-6)  # 0.29 * 100 must be 29, not 28
        if steps < 1 or steps <= score:  # a score is at most its budget, and shorter matches have less
            break
        total = score_path(nodes, places[: ends_M[length]], steps, least)
        if total > score:  # strict: of equals the longest match
            best, size, budget, score = length, ends_M[length], steps, total
    return places[:size], best, budget, score


@compiled
def rank_followers(
    nodes: ForestNodes, places: Int32s, first_F: Ints, size_F: Ints, least_F: Counts, ids_FW: Ints, ratio_FW: Floats
) -> None:
    """Fills the most frequent tokens after each context and their relative counts, those of at least `least_F`.

    The places of a context are `places[first : first + size]`.
    """
    for f in range(len(first_F)):
        at_P = places[first_F[f] : first_F[f] + size_F[f]]
        children = list_children(nodes, at_P, -1)
        if not len(children):
            continue
        # Where texts fork, one place has several continuations; the end of a text has none.
        total = max(len(at_P), len(children))
        distinct = np.empty(len(children), dtype=np.int32)
        num_distinct = tally_tokens(nodes, children, distinct)
        for w in range(min(ids_FW.shape[1], num_distinct)):
            token, tally = pop_most_frequent(nodes, distinct[:num_distinct])
            if tally / total < least_F[f]:
                break
            ids_FW[f, w], ratio_FW[f, w] = token, tally / total
        nodes.tally_V[distinct[:num_distinct]] = 0


@compiled
def follow_tokens(
    nodes: ForestNodes, places: Int32s, first_F: Ints, size_F: Ints, tokens_F: Ints
) -> tuple[Int32s, Ints, Counts]:
    """Returns the places after one more token in each context, side by side, their numbers and the relative counts."""
    sizes, ratios = np.zeros(len(first_F), dtype=np.int64), np.zeros(len(first_F))
    followed = np.empty(0, dtype=np.int32)
    for f in range(len(first_F)):
        at_P = places[first_F[f] : first_F[f] + size_F[f]]
        children = list_children(nodes, at_P, tokens_F[f])
        if len(children):
            sizes[f] = len(children)
            ratios[f] = len(children) / max(len(at_P), len(list_children(nodes, at_P, -1)))
            followed = np.concatenate((followed, children))
    return followed, sizes, ratios


@compiled
def keep_texts(parent_N: Int32s, ends_T: Ints, num_required: int, most: int) -> tuple[int, Ints]:
    """Returns how many of the texts, given by their last nodes, are kept, and the new index of each node, -1 for none.

    The first `num_required` texts are kept, then one after the other while nodes and texts are at most `most`.
    """
    kept_N = np.zeros(len(parent_N), dtype=np.int64)
    total = num_texts = 0
    for end in ends_T:
        more, node = 0, end
        while node >= 0 and kept_N[node] == 0:
            more, node = more + 1, parent_N[node]
        if num_texts >= num_required and total + more + num_texts + 1 > most:
            break
        total, num_texts, node = total + more, num_texts + 1, end
        while node >= 0 and kept_N[node] == 0:
            kept_N[node], node = 1, parent_N[node]
    index_N = np.cumsum(kept_N) - 1
    return num_texts, np.where(kept_N > 0, index_N, -1)
