"""Replays recorded texts through drafters, without the model that wrote them, and counts accepted draft tokens.

A draft token is accepted if it equals the recorded token. Drafts are therefore deterministic, a rejected token teaches
no more than its rejection, and the feedback of the target has all probability on the recorded token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np

from decoding.core import SamplingParams, Tokens
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, Drafter, DraftPlan, Feedback
from decoding.validation import require_text
from reason.bench.accepted_paths import learn_accepted_paths
from reason.models.checkpoint import BUNDLED, find_model, load_tokenizer
from reason.models.tokenizer import PretrainedTokenizer

QUESTION_KEYS = ("problem", "question", "prompt")
SAMPLE_KEYS = ("samples", "completions", "solutions")

DRAFTERS: dict[str, Callable[[], DraftSource]] = {
    "stand": Stand,
    "published_stand": partial(Stand, max_order=4, mix=False, shared=False, recent=None),
    "token_recycling": TokenRecycling,
    "prompt_lookup": PromptLookup,
    "suffix": SuffixDecoding,
    "suffix_for_all": partial(SuffixDecoding, across_groups=True),
    "suffix_both": partial(SuffixDecoding, across_groups="both"),
    "published_suffix": partial(SuffixDecoding, across_groups="finished"),
}


@dataclass(frozen=True)
class RecordedProblem:
    """A problem and the texts recorded for it."""

    problem: str
    samples: tuple[str, ...]


@dataclass(frozen=True)
class EncodedProblem:
    """A recorded problem as token ids."""

    prompt: Tokens
    samples: tuple[Tokens, ...]


def validate_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of drafters. Raises: ValueError for an unknown one."""
    if unknown := sorted(set(names) - set(DRAFTERS)):
        raise ValueError(f"drafters must be from {', '.join(DRAFTERS)}; got {', '.join(unknown)}")
    return tuple(names)


def encode_recordings(recordings: Sequence[RecordedProblem], tokenizer: str) -> list[EncodedProblem]:
    """Encodes texts with the tokenizer at a folder, a hub id or bundled:NAME. Raises: ValueError or OSError."""
    return encode_texts(recordings, load_replay_tokenizer(tokenizer))


def load_replay_tokenizer(tokenizer: str) -> PretrainedTokenizer:
    """Returns the tokenizer at a folder, a hub id or bundled:NAME. Raises: ValueError or OSError."""
    return load_tokenizer(find_model(tokenizer, key="tokenizer").source if tokenizer.startswith(BUNDLED) else tokenizer)


def encode_texts(recordings: Sequence[RecordedProblem], tokenizer: PretrainedTokenizer) -> list[EncodedProblem]:
    """Encodes problems and texts, without special tokens."""

    def ids(text: str) -> Tokens:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return [EncodedProblem(ids(one.problem), tuple(map(ids, one.samples))) for one in recordings]


def read_recordings(file: Path) -> list[RecordedProblem]:
    """Reads JSON lines with a problem and its texts each: a list, or an object with a `solution` per model.

    Raises: ValueError naming a wrong line.
    """
    lines = file.read_text(encoding="utf-8").split("\n")  # texts may hold other line breaks
    recordings = [_parse_recording(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not recordings:
        raise ValueError(f"{file} holds no lines")
    return recordings


def _parse_recording(line: str, where: str) -> RecordedProblem:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not valid JSON ({error})") from error
    question = _first_value(row, QUESTION_KEYS, where)
    samples = _list_solutions(row) or _first_value(row, SAMPLE_KEYS, where)
    if not isinstance(question, str) or not question:
        raise ValueError(f"{where}: the problem must be a text, got {question!r}")
    if not isinstance(samples, list) or not samples or not all(isinstance(text, str) for text in samples):
        raise ValueError(f"{where}: the samples must be a list of texts, got {str(samples)[:80]}")
    require_text(f"{where}: the problem", question)
    require_text(f"{where}: sample", samples)
    return RecordedProblem(question, tuple(samples))


def _list_solutions(row: object) -> list[object]:
    """Returns the solutions of a row without a list of samples, one per model: {"175b": {"solution": "..."}}."""
    if not isinstance(row, Mapping) or any(key in row for key in SAMPLE_KEYS):
        return []
    return [value["solution"] for value in row.values() if isinstance(value, Mapping) and "solution" in value]


def _first_value(row: object, keys: Sequence[str], where: str) -> object:
    if isinstance(row, Mapping):
        for key in keys:
            if key in row:
                return row[key]
    given = ", ".join(row) if isinstance(row, Mapping) else type(row).__name__
    raise ValueError(f"{where}: must be an object with {' or '.join(keys)}, got {given or 'an empty one'}")


class ReplayRow(TypedDict):
    """The result of one drafter at one number of draft nodes."""

    drafter: str
    nodes: int
    tokens_per_forward: float
    by_trajectory: list[float]
    tokens: int


@dataclass(frozen=True)
class PassCount:
    """Forward passes over a text, and the tokens that they would have committed, bonus tokens included."""

    tokens: int = 0
    forwards: int = 0

    def __add__(self, other: PassCount) -> PassCount:
        return PassCount(self.tokens + other.tokens, self.forwards + other.forwards)


def replay_drafter(name: str, recordings: Sequence[EncodedProblem], nodes: int) -> ReplayRow:
    """Returns the mean accepted length of a new drafter with `nodes` draft nodes, by trajectory number."""
    return replay_problems(name, TreeDrafter(DRAFTERS[name](), draw="likely"), recordings, nodes)


def replay_problems(name: str, drafter: Drafter, recordings: Sequence[EncodedProblem], nodes: int) -> ReplayRow:
    """Returns the mean accepted length of a new drafter that loads no model.

    Trajectories of a problem are replayed one after the other, and problems too: the drafter learns as in an engine.

    Raises: ValueError as `learn_accepted_paths`.
    """
    drafter = learn_accepted_paths(drafter)
    sums: list[PassCount] = []
    for group, recording in enumerate(recordings):
        for number, text in enumerate(recording.samples):
            sums += [PassCount()] * (number + 1 - len(sums))
            for step in replay_text(
                drafter, recording.prompt, text, group=str(group), request=group << 20 | number, n=nodes
            ):
                sums[number] += PassCount(step, 1)
    total = sum(sums, PassCount())
    return {
        "drafter": name,
        "nodes": nodes,
        "tokens_per_forward": total.tokens / max(1, total.forwards),
        "by_trajectory": [passes.tokens / max(1, passes.forwards) for passes in sums],
        "tokens": total.tokens,
    }


def replay_text(drafter: Drafter, prompt: Tokens, text: Tokens, *, group: str, request: int, n: int) -> Iterator[int]:
    """Yields the number of tokens that each forward pass commits on the way through a text. *Mutates* the drafter."""
    params = SamplingParams(max_tokens=max(1, len(text)))
    at = 0
    while at < len(text):
        branch = Branch(request, group, prompt + text[:at], request, params, len(text) - at)
        (draft,) = drafter.propose([branch], DraftPlan((n,), n))
        draft = draft.truncate_to(nodes=n, depth=len(text) - at - 1)
        path = _accepted_path(draft, text[at:])
        drafter.observe([recorded_feedback(branch, draft, path, text[at : at + len(path) + 1], drafter.feedback_k)])
        yield len(path) + 1
        at += len(path) + 1


def _accepted_path(draft: Draft, text: Tokens) -> tuple[int, ...]:
    following = iter(text)  # not exhausted: the draft ends at least one token before the text
    return draft.follow_path(lambda node: next(following)).accepted_nodes


def recorded_feedback(branch: Branch, draft: Draft, path: tuple[int, ...], text: Tokens, k: int) -> Feedback:
    """Returns feedback with all probability on the recorded token after each accepted row, and none for other rows."""
    if not k:
        return Feedback(branch, draft, path)
    ids = np.full((1 + len(draft), k), -1, dtype=np.int64)
    logprobs = np.full((1 + len(draft), k), -np.inf, dtype=np.float32)
    for row, token in zip((0, *(1 + node for node in path)), text, strict=True):
        ids[row, 0], logprobs[row, 0] = token, 0.0
    return Feedback(branch, draft, path, ids, logprobs)
