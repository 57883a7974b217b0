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
from search.strategy import StepScores
from search.tree import Step
from tests.support.prm_cases import CASES, FormatCase
from tests.support.sglang_servers import IS_INSTALLED, NOT_INSTALLED, RealServer
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
EVERY = pytest.mark.parametrize("reward_servers", WAVES, indirect=True)


@dataclass(frozen=True)
class RewardServer:
    """A server of a format, and the scores of a path from Hugging Face's own classes."""

    name: str
    folder: Path
    server: RealServer
    plain: Callable[[Sequence[str]], list[float]]

    def make_scorer(self) -> SglangPrmScorer:
        return SglangPrmScorer(format=self.name, path=str(self.folder), urls=self.server.url, max_tokens=500)


RewardServers = dict[str, RewardServer]


@pytest.fixture(scope="module")
def reward_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, RewardServer]]:
    """The servers of a wave, by format, all loading at once."""
    if not IS_INSTALLED:
        pytest.skip(NOT_INSTALLED)
    folder = tmp_path_factory.mktemp("reward_servers")
    ours = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "reason.decoding.sglang_plugin.models"}
    with ExitStack() as stack:
        servers = {}
        for name, case in WAVES[request.param].items():
            path = folder / name
            plain = partial(case.reference, case.save(path), QUESTION)
            variables = ours if case.adapter.head.needs_sglang_plugin else {}
            server = RealServer(folder / f"{name}.log", model=path, variables=variables)
            stack.callback(server.kill)
            servers[name] = RewardServer(name, path, server, plain)
        for reward_server in servers.values():
            reward_server.server.wait()
        yield servers


def score_batches(scorer: PrmScorer, *batches: Sequence[Sequence[str]]) -> list[StepScores | None]:
    """Of the paths of the batches, one batch after the other."""
    with closing(scorer):
        encode = partial(scorer.loaded_prm.tokenizer.encode, add_special_tokens=False)
        prompt: Tokens = tuple(encode(QUESTION))
        bound = scorer.bind(QUESTION, prompt)

        async def score_in_turn() -> list[StepScores | None]:
            path_scores: list[StepScores | None] = []
            for batch in batches:
                paths = [[Step(tuple(encode(text)), text) for text in path] for path in batch]
                path_scores += (await bound.score(paths)).scores
            return path_scores

        return asyncio.run(score_in_turn())


@EVERY
def test_scores_equal_those_of_hugging_face_step_by_step_or_in_one_request(
    reward_servers: RewardServers,
) -> None:
    for name, reward_server in reward_servers.items():
        whole, stepwise = (
            score_batches(reward_server.make_scorer(), PATHS),
            score_batches(reward_server.make_scorer(), *([path] for path in PATHS)),
        )
        ours = [reward_server.plain(path) for path in PATHS]
        assert len({score for path in ours for score in path}) > 4, f"{name}: all alike, which compares nothing"
        for mine, theirs, again in zip(ours, whole, stepwise, strict=True):
            assert mine == pytest.approx(theirs, abs=2e-5), name
            assert theirs == pytest.approx(again, abs=2e-5), name


@EVERY
def test_repeated_prefixes_are_read_from_the_servers_prefix_cache(reward_servers: RewardServers) -> None:
    for name, reward_server in reward_servers.items():
        score_batches(reward_server.make_scorer(), [FIRST[:2]])
        log = reward_server.server.log
        length = len(log.read_text(errors="replace"))
        score_batches(reward_server.make_scorer(), [FIRST[:2]], [FIRST])
        hits = re.findall(r"#cached-token: (\d+)", log.read_text(errors="replace")[length:])
        assert max(map(int, hits)) > 10, name


@pytest.mark.parametrize("reward_servers", ["heads"], indirect=True)
def test_a_path_beyond_max_tokens_has_no_scores(reward_servers: RewardServers) -> None:
    long = ["1 + " * 400 + "\n\n"]
    assert score_batches(reward_servers["qwen_prm"].make_scorer(), [long, FIRST])[0] is None


@pytest.mark.parametrize("reward_servers", ["heads"], indirect=True)
def test_a_server_with_another_vocabulary_is_rejected(reward_servers: RewardServers) -> None:
    one, other = reward_servers["qwen_prm"], reward_servers["skywork_prm"]
    with pytest.raises(ValueError, match=r"vocabulary is another one|not a server of this model"):
        SglangPrmScorer(format="qwen_prm", path=str(one.folder), urls=other.server.url).load()


@pytest.mark.parametrize("reward_servers", ["words"], indirect=True)
def test_a_language_model_without_a_reward_head_is_rejected(reward_servers: RewardServers) -> None:
    reward_server = reward_servers["rlhflow_prm"]
    with pytest.raises(ValueError, match="SGLANG_EXTERNAL_MODEL_PACKAGE"):
        SglangPrmScorer(
            format="token_classification",
            path=str(reward_server.folder),
            urls=reward_server.server.url,
            adapter=_Misread(),
        ).load()


class _Misread(TokenClassifier):
    """Takes a language model for a classifier."""

    architectures = ("LlamaForCausalLM",)
