"""Reward models on real servers score as Hugging Face has them, and read only what they have not read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from decoding.core import Tokens
from reason.scorers.formats.expectation import ExpectationPrm
from reason.scorers.formats.token_classification import TokenClassifier
from reason.scorers.prm import PrmScorer
from reason.scorers.sglang_reader import SglangPrmScorer
from search.tree import Step
from tests.sglang.conftest import BUILT, SKIP
from tests.support.prm_cases import CASES, FormatCase
from tests.support.sglang_servers import RealServer
from tests.support.tiny_prm import Tiny, byte_tokenizer, llama_config, save_causal

QUESTION = "How many apples does Sam have?"
FIRST = ["Let x = 12.\n\n", "Then 2x + 7 = 31.\n\n", "The answer is \\boxed{31}."]
PATHS = [FIRST[:1], FIRST[:2], FIRST, [FIRST[0], "- first -\n\n", "So c = 5; it is: 52"], ["+7\n\n", "ünïcode ки\n\n"]]


def save_verifier(folder: Path) -> Tiny:
    tokenizer = byte_tokenizer(["<|endoftext|>"], eos_token="<|endoftext|>")
    return save_causal(folder, tokenizer, llama_config(tokenizer))


def verifier_reference(model: Tiny, question: str, steps: Sequence[str]) -> list[float]:
    tokens, scores = model.tokenizer.encode(question), []
    for step in steps:
        start = len(tokens)
        tokens += model.tokenizer.encode(step)
        logits = model.outputs(tokens)
        scores.append(
            float(np.exp(min(logits[i - 1, tokens[i]] - logits[i - 1].max() for i in range(start, len(tokens)))))
        )
    return scores


WAVES: dict[str, dict[str, FormatCase]] = {
    "heads": {"qwen_prm": CASES["qwen"], "skywork_prm": CASES["skywork"], "token_classification": CASES["trl"]},
    "words": {
        "math_shepherd": CASES["math_shepherd"],
        "rlhflow_prm": CASES["rlhflow"],
        "expectation": FormatCase(ExpectationPrm(), save_verifier, verifier_reference),
    },
}
"""Servers that run at the same time; a server wants two GB. The bundled model is asked in test_models_script.py."""
EVERY = pytest.mark.parametrize("judges", WAVES, indirect=True)


@dataclass(frozen=True)
class Judge:
    """A server of a format, and the scores of a path from Hugging Face's own classes."""

    name: str
    folder: Path
    server: RealServer
    plain: Callable[[Sequence[str]], list[float]]

    def served(self) -> SglangPrmScorer:
        return SglangPrmScorer(format=self.name, path=str(self.folder), urls=self.server.url, max_tokens=500)


@pytest.fixture(scope="module")
def judges(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Judge]]:
    """The servers of a wave, by format, all loading at once."""
    if not BUILT:
        pytest.skip(SKIP)
    folder = tmp_path_factory.mktemp("judges")
    ours = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "decoding.sglang_plugin.models"}
    with ExitStack() as stack:
        made = {}
        for name, case in WAVES[request.param].items():
            path = folder / name
            plain = partial(case.reference, case.save(path), QUESTION)
            variables = ours if case.adapter.head.needs_sglang_plugin else {}
            server = RealServer(folder / f"{name}.log", model=path, variables=variables)
            stack.callback(server.kill)
            made[name] = Judge(name, path, server, plain)
        for judge in made.values():
            judge.server.wait()
        yield made


def scores(scorer: PrmScorer, *batches: Sequence[Sequence[str]]) -> list[list[float] | None]:
    """Of the paths of the batches, one batch after the other."""
    with closing(scorer):
        encode = partial(scorer.loaded_prm.tokenizer.encode, add_special_tokens=False)
        prompt: Tokens = tuple(encode(QUESTION))
        bound = scorer.bind(QUESTION, prompt)

        async def story() -> list[list[float] | None]:
            found: list[list[float] | None] = []
            for batch in batches:
                paths = [[Step(tuple(encode(text)), text) for text in path] for path in batch]
                found += (await bound.score(paths)).scores
            return found

        return asyncio.run(story())


@EVERY
def test_the_scores_are_those_of_the_plain_model_one_step_at_a_time_or_whole(judges: dict[str, Judge]) -> None:
    for name, judge in judges.items():
        whole, stepwise = scores(judge.served(), PATHS), scores(judge.served(), *([path] for path in PATHS))
        ours = [judge.plain(path) for path in PATHS]
        assert len({score for path in ours for score in path}) > 4, f"{name}: all alike, which compares nothing"
        for mine, theirs, again in zip(ours, whole, stepwise, strict=True):
            assert mine == pytest.approx(theirs, abs=2e-5), name
            assert theirs == pytest.approx(again, abs=2e-5), name


@EVERY
def test_what_was_read_before_comes_from_the_servers_cache(judges: dict[str, Judge]) -> None:
    for name, judge in judges.items():
        scores(judge.served(), [FIRST[:2]])
        log = judge.server.log
        seen = len(log.read_text(errors="replace"))
        scores(judge.served(), [FIRST[:2]], [FIRST])
        hits = re.findall(r"#cached-token: (\d+)", log.read_text(errors="replace")[seen:])
        assert max(map(int, hits)) > 10, name


@pytest.mark.parametrize("judges", ["heads"], indirect=True)
def test_a_path_that_is_too_long_is_not_scored(judges: dict[str, Judge]) -> None:
    long = ["1 + " * 400 + "\n\n"]
    assert scores(judges["qwen_prm"].served(), [long, FIRST])[0] is None


@pytest.mark.parametrize("judges", ["heads"], indirect=True)
def test_a_server_of_another_vocabulary_is_refused(judges: dict[str, Judge]) -> None:
    one, other = judges["qwen_prm"], judges["skywork_prm"]
    with pytest.raises(ValueError, match=r"vocabulary is another one|not a server of this model"):
        SglangPrmScorer(format="qwen_prm", path=str(one.folder), urls=other.server.url).load()


@pytest.mark.parametrize("judges", ["words"], indirect=True)
def test_a_language_model_where_a_head_is_wanted_is_refused(judges: dict[str, Judge]) -> None:
    judge = judges["rlhflow_prm"]
    with pytest.raises(ValueError, match="SGLANG_EXTERNAL_MODEL_PACKAGE"):
        SglangPrmScorer(
            format="token_classification", path=str(judge.folder), urls=judge.server.url, adapter=_Misread()
        ).load()


class _Misread(TokenClassifier):
    """Takes a language model for a classifier."""

    architectures = ("LlamaForCausalLM",)
