"""Checks what an OpenAI-compatible server does with our requests, against the same model in this process.

python scripts/dev/check_servers.py --url http://127.0.0.1:8000/v1 --model NAME --name "llama.cpp 0.3"
python scripts/dev/check_servers.py --gguf target.gguf          writes the bundled model for llama.cpp and ends

The server must have the bundled model in float32. Prints a row for each question: same greedy texts, continued texts,
log-probabilities, stop strings, streams, seeds. The exit code is 1 where greedy texts differ. The token that ends a
text may be missing: a server that sends log-probabilities may send none for it, and it is no token of the reply then.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import reason
from decoding.core import Engine, Generation, GenerationRequest, SamplingParams, Tokens
from reason.engines.openai_api.engine import OpenAIEngine
from reason.models.checkpoint import find_model
from reason.runs.tables import format_markdown
from reason.solver import Solver

QUESTIONS = (
    "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
    "What is the remainder when 7^2 is divided by 5?",
    "x0 = 1. Each next term is 2 times the one before plus 3, modulo 7. Find x4.",
)
GREEDY = SamplingParams(max_tokens=200, temperature=0.0)
LOCAL = ("speculation=off", "engine.kv_mib=256", "search=self_consistency", "scorer=none")


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of the server, with its version")
    parser.add_argument("--model", default="bundled", help="the name that the server knows the bundled model by")
    parser.add_argument("--name", default="server", help="heading of the column")
    parser.add_argument("settings", nargs="*", help="further settings, such as engine.omit=[top_k]")
    parser.add_argument("--gguf", type=Path, help="write the bundled model to this file for llama.cpp, and end")
    given = parser.parse_args()
    if given.gguf is not None:
        from reason.bench.peers.gguf_file import write_gguf

        write_gguf(find_model("bundled:target").source, given.gguf, with_tokens=True)
        return 0
    if given.url is None:
        parser.error("give --url or --gguf")
    remote = [*LOCAL[2:], "engine=openai", f"engine.urls=[{given.url}]", f"engine.model={given.model}"]
    remote += ["model=bundled", "engine.logprobs=true", "engine.api=completions", *given.settings]
    with (
        reason.load(*LOCAL) as here,
        reason.load(*remote) as there,
        reason.load(*remote, "engine.stream_from_tokens=1") as streaming,
    ):
        rows, is_same = check_server(here, there, streaming)
    print(format_markdown(("question", given.name), rows))
    return 0 if is_same else 1


def check_server(here: Solver, there: Solver, streaming: Solver) -> tuple[list[tuple[str, str]], bool]:
    """Returns a row for each question, and whether greedy texts are the same."""
    prompts = [here.prompt.encode(question) for question in QUESTIONS]
    ours, theirs, streams = (
        generate(solver.engine, [ask(prompt, GREEDY) for prompt in prompts]) for solver in (here, there, streaming)
    )
    num_same = count_same(ours, theirs)
    halves = [replace(one, tokens=one.tokens[: len(one.tokens) // 2], logprobs=()) for one in ours]
    begun = [(*prompt, *half.tokens) for prompt, half in zip(prompts, halves, strict=True)]
    rest = generate(there.engine, [ask(prefix, GREEDY) for prefix in begun])
    num_continued = sum(
        is_same_text(whole, replace(end, tokens=half.tokens + end.tokens, logprobs=(), top_logprobs=None))
        for half, end, whole in zip(halves, rest, ours, strict=True)
    )
    step = replace(GREEDY, stop=("\n\n",))
    steps = [generate(engine, [ask(prompt, step) for prompt in prompts]) for engine in (here.engine, there.engine)]
    seeded = [ask(prompts[0], replace(GREEDY, temperature=1.0), seed=seed) for seed in (5, 5, 6)]
    first, again, other = (generate(there.engine, [request])[0].tokens for request in seeded)
    measured = generate(there.engine, [replace(ask(prompts[0], GREEDY), num_top=5)])[0]
    expected = generate(here.engine, [replace(ask(prompts[0], GREEDY), num_top=5)])[0]
    assert isinstance(there.engine, OpenAIEngine)
    rows = [
        ("same greedy texts", f"{num_same} of {len(ours)}"),
        ("same greedy texts, streamed", f"{count_same(ours, streams)} of {len(ours)}"),
        ("continues a begun text with the same tokens", f"{num_continued} of {len(ours)}"),
        ("ends at a stop string, which comes along", f"{count_same(*steps)} of {len(ours)}"),
        ("names what ended a text", to_word(there.engine.capabilities.names_end_cause)),
        ("a log-probability for the end of a text", to_word(len(measured.logprobs) == len(expected.logprobs))),
        ("largest difference of a log-probability", describe_gap(expected, measured)),
        ("log-probabilities of 5 likely tokens, largest difference", describe_top_gap(expected, measured)),
        ("same seed, same sampled text", to_word(first == again)),
        ("other seed, other sampled text", to_word(first != other)),
        ("counts tokens as here", to_word([one.usage.tokens for one in ours] == [one.usage.tokens for one in theirs])),
    ]
    return rows, num_same == len(ours)


def ask(prefix: Tokens, params: SamplingParams, seed: int = 5) -> GenerationRequest:
    return GenerationRequest(prefix=prefix, params=params, seed=seed)


def generate(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Generation]:
    """Sends the requests one after another: not every server takes several."""
    return [asyncio.run(engine.generate([request]))[0] for request in requests]


def count_same(ours: Sequence[Generation], theirs: Sequence[Generation]) -> int:
    return sum(is_same_text(one, other) for one, other in zip(ours, theirs, strict=True))


def is_same_text(ours: Generation, theirs: Generation) -> bool:
    """Returns whether the tokens are the same, with or without the token that ends a text."""
    return theirs.finish == ours.finish and theirs.tokens in (ours.tokens, ours.tokens[: count_text_tokens(ours)])


def count_text_tokens(ours: Generation) -> int:
    """Returns the number of tokens without the one that ends the text, which the local engine always has."""
    return len(ours.tokens) - (ours.finish == "eos")


def describe_gap(ours: Generation, theirs: Generation) -> str:
    count = len(theirs.logprobs)
    if count not in (len(ours.logprobs), count_text_tokens(ours)):
        return f"{count} of {len(ours.logprobs)} came"
    return f"{np.abs(np.subtract(ours.logprobs[:count], theirs.logprobs)).max():.1g}"


def describe_top_gap(ours: Generation, theirs: Generation) -> str:
    if ours.top_logprobs is None or theirs.top_logprobs is None:
        return "none came"
    count = len(theirs.top_logprobs)
    if count not in (len(ours.top_logprobs), count_text_tokens(ours)):
        return f"{count} of {len(ours.top_logprobs)} came"
    return f"{np.nanmax(np.abs(ours.top_logprobs[:count] - theirs.top_logprobs)):.1g}"


def to_word(is_so: bool) -> str:
    return "yes" if is_so else "no"
