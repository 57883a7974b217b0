"""How far drafters would have guessed recorded texts, without the model that wrote them.

A guess is right if it is what was written. So drafts are deterministic, a refused guess teaches nothing but that it
was refused, and where the target's probabilities would be told, all of it is on the token that was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from decoding.core import SamplingParams, Tokens
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.source import Ints, Source, Successors
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, Draft, Drafter, Feedback, Plan
from reason.models.checkpoint import BUNDLED, find_model, load_tokenizer

QUESTION = ("problem", "question", "prompt")
SAMPLES = ("samples", "completions", "solutions")

DRAFTERS: dict[str, Callable[[], Source]] = {
    "stand": Stand,
    "published_stand": partial(Stand, max_order=4, mix=False, shared=False),
    "token_recycling": TokenRecycling,
    "prompt_lookup": PromptLookup,
    "suffix": SuffixDecoding,
}


@dataclass(frozen=True)
class Recording:
    """A problem and the texts written for it."""

    problem: str
    samples: tuple[str, ...]


@dataclass(frozen=True)
class Encoded:
    """The same as ids."""

    prompt: Tokens
    samples: tuple[Tokens, ...]


@dataclass
class OnPath:
    """Implements `Source`: another one, that hears only of the nodes that were accepted."""

    source: Source

    @property
    def feedback_k(self) -> int:
        return self.source.feedback_k

    @property
    def has_probabilities(self) -> bool:
        return self.source.has_probabilities

    def anchors(self, branches: Sequence[Branch]) -> Any:
        return self.source.anchors(branches)

    def successors(self, state: Any) -> Successors:
        return self.source.successors(state)

    def descend(self, state: Any, tokens_F: Ints) -> Any:
        return self.source.descend(state, tokens_F)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.source.observe([_on_path(seen) for seen in feedback])


def _on_path(seen: Feedback) -> Feedback:
    path = tuple(range(len(seen.accepted)))
    draft = seen.draft.keep(seen.accepted)
    if seen.topk_ids is None:
        return Feedback(seen.branch, draft, path)
    rows = [0, *(1 + node for node in seen.accepted)]
    return Feedback(seen.branch, draft, path, seen.topk_ids[rows], seen.topk_logprobs[rows])


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names. Raises: ValueError for one that no drafter has."""
    if unknown := sorted(set(names) - set(DRAFTERS)):
        raise ValueError(f"drafters must be from {', '.join(DRAFTERS)}; got {', '.join(unknown)}")
    return tuple(names)


def encoded(recordings: Sequence[Recording], tokenizer: str) -> list[Encoded]:
    """As ids of the tokenizer at a folder, a hub id or bundled:NAME. Raises: ValueError or OSError for none."""
    source = find_model(tokenizer, key="tokenizer").source if tokenizer.startswith(BUNDLED) else tokenizer
    loaded = load_tokenizer(source)

    def ids(text: str) -> Tokens:
        return tuple(loaded.encode(text, add_special_tokens=False))

    return [Encoded(ids(one.problem), tuple(map(ids, one.samples))) for one in recordings]


def read(file: Path) -> list[Recording]:
    """JSON lines with a problem and a list of texts each. Raises: ValueError naming the line and what it must hold."""
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [_recording(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ValueError(f"{file} holds no lines")
    return found


def _recording(line: str, where: str) -> Recording:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not valid JSON ({error})") from error
    question, samples = _either(row, QUESTION, where), _either(row, SAMPLES, where)
    if not isinstance(question, str) or not question:
        raise ValueError(f"{where}: the problem must be a text, got {question!r}")
    if not isinstance(samples, list) or not samples or not all(isinstance(text, str) for text in samples):
        raise ValueError(f"{where}: the samples must be a list of texts, got {str(samples)[:80]}")
    return Recording(question, tuple(samples))


def _either(row: Any, keys: Sequence[str], where: str) -> Any:
    if isinstance(row, Mapping):
        for key in keys:
            if key in row:
                return row[key]
    got = ", ".join(row) if isinstance(row, Mapping) else type(row).__name__
    raise ValueError(f"{where}: wants an object with {' or '.join(keys)}, got {got or 'an empty one'}")


@dataclass(frozen=True)
class Passes:
    """What a text took: forward passes and the tokens they would have committed, bonus tokens included."""

    tokens: int = 0
    forwards: int = 0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.tokens + other.tokens, self.forwards + other.forwards)


def replay(name: str, recordings: Sequence[Encoded], nodes: int) -> dict[str, Any]:
    """Mean accepted length of a fresh drafter with `nodes` draft nodes, by trajectory number.

    Trajectories of a problem follow one another, and problems too: what was learned is kept as in an engine.
    """
    drafter = TreeDrafter(OnPath(DRAFTERS[name]()), draw="likely")
    sums: list[Passes] = []
    for group, recording in enumerate(recordings):
        for number, text in enumerate(recording.samples):
            sums += [Passes()] * (number + 1 - len(sums))
            for step in follow(
                drafter, recording.prompt, text, group=str(group), request=group << 20 | number, n=nodes
            ):
                sums[number] += Passes(step, 1)
    total = sum(sums, Passes())
    return {
        "drafter": name,
        "nodes": nodes,
        "tokens_per_forward": total.tokens / max(1, total.forwards),
        "by_trajectory": [passes.tokens / max(1, passes.forwards) for passes in sums],
        "tokens": total.tokens,
    }


def follow(drafter: Drafter, prompt: Tokens, text: Tokens, *, group: str, request: int, n: int) -> Iterator[int]:
    """The tokens each pass commits on the way through a text. *Mutates* the drafter."""
    params = SamplingParams(max_tokens=max(1, len(text)))
    at = 0
    while at < len(text):
        branch = Branch(request, group, prompt + text[:at], request, params, len(text) - at)
        (draft,) = drafter.propose([branch], Plan((n,), n))
        draft = draft.within(nodes=n, depth=len(text) - at - 1)
        path = agreeing(draft, text[at:])
        drafter.observe([_feedback(branch, draft, path, text[at : at + len(path) + 1], drafter.feedback_k)])
        yield len(path) + 1
        at += len(path) + 1


def agreeing(draft: Draft, written: Tokens) -> tuple[int, ...]:
    """The nodes, from the top, that say what was written.

    >>> agreeing(Draft((5, 6, 9), (-1, 0, 0)), (5, 9, 1))
    (0, 2)
    """
    child = {(parent, token): i for i, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    path: list[int] = []
    node = -1
    for token in written:
        node = child.get((node, token), -1)
        if node < 0:
            break
        path.append(node)
    return tuple(path)


def _feedback(branch: Branch, draft: Draft, path: tuple[int, ...], written: Tokens, k: int) -> Feedback:
    """All on what was written after the accepted rows; nothing is known of the others."""
    if not k:
        return Feedback(branch, draft, path)
    ids = np.full((1 + len(draft), k), -1, dtype=np.int64)
    logprobs = np.full((1 + len(draft), k), -np.inf, dtype=np.float32)
    for row, token in zip((0, *(1 + node for node in path)), written, strict=True):
        ids[row, 0], logprobs[row, 0] = token, 0.0
    return Feedback(branch, draft, path, ids, logprobs)
