"""The token bridge: two models with different vocabularies exchange text at the ends of steps."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import reason
from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens, Usage
from reason import ConfigError
from reason.models.byte_tokenizer import ByteTokenizer
from reason.models.tokenizer import require_step_vocabulary
from reason.prompt import Prompt, PromptFormat
from reason.routing.token_bridge import BoundTokenBridge, TokenBridge
from reason.training.stages import BUNDLED

OURS = Prompt(PromptFormat(raw="Ask: {question}\n"), ByteTokenizer())
END = ByteTokenizer.eos_token_id
SAYS = "ab c.\n\nThen é.\n\nSo 7."


class Pairs:
    """A tokenizer of two characters per token; 0 ends a text."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1 + ord(text[i]) * 512 + (ord(text[i + 1]) if i + 1 < len(text) else 0) for i in range(0, len(text), 2)]

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        pairs = [divmod(token - 1, 512) for token in token_ids if token]
        return "".join(chr(a) + (chr(b) if b else "") for a, b in pairs)

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        raise NotImplementedError


THEIRS = Prompt(OURS.format, Pairs())


class Speaker:
    """Generates `SAYS`; the text of a token that completes a stop string may extend beyond it."""

    def __init__(self) -> None:
        self.prefixes: list[Tokens] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return [self._continue(request) for request in requests]

    def _continue(self, request: GenerationRequest) -> Generation:
        self.prefixes.append(request.prefix)
        assert request.params.stop_token_ids == ()
        before = Pairs().decode(request.prefix).partition("?\n")[2]
        assert SAYS.startswith(before)
        tokens = (*Pairs().encode(SAYS[len(before) :], add_special_tokens=False), 0)
        for i in range(len(tokens)):
            if any(stop in Pairs().decode(tokens[:i]) for stop in request.params.stop):
                return self._build(tokens[:i], "stop")
            if i == request.params.max_tokens:
                return self._build(tokens[:i], "length")
        return self._build(tokens, "eos")

    def _build(self, tokens: Tokens, finish: Any) -> Generation:
        logprobs = tuple(-0.25 * i for i in range(len(tokens)))
        return Generation(tokens=tokens, logprobs=logprobs, finish=finish, usage=Usage(calls=1, tokens=len(tokens)))


def bound(root: Tokens | None = None) -> tuple[Speaker, BoundTokenBridge]:
    speaker = Speaker()
    between = TokenBridge(THEIRS, OURS, END)
    return speaker, between.bind(speaker, "why?", OURS.encode("why?") if root is None else root)


def write(engine: BoundTokenBridge, answer: Tokens = (), **params: Any) -> Generation:
    prefix = OURS.encode("why?") + answer
    params = {"stop": ("\n\n",), "stop_token_ids": (END,), **params}
    (generation,) = asyncio.run(
        engine.generate([GenerationRequest(prefix=prefix, params=SamplingParams(**params), seed=1)])
    )
    return generation


def test_small_steps_are_translated_to_target_ids_and_prefixes_back() -> None:
    speaker, engine = bound()
    answer = Tokens()
    steps: list[Generation] = []
    while not steps or steps[-1].finish == "stop":
        steps.append(write(engine, answer))
        answer += steps[-1].tokens
    assert [OURS.decode(step.tokens) for step in steps] == ["ab c.\n\n", "Then é.\n\n", "So 7."]
    assert [step.finish for step in steps] == ["stop", "stop", "eos"]
    assert answer[-1] == END
    for shorter, longer in zip(speaker.prefixes, speaker.prefixes[1:], strict=False):
        assert longer[: len(shorter)] == shorter, "what is in the small model's cache stays a prefix"


def test_step_log_probability_is_that_of_the_small_model() -> None:
    _, engine = bound()
    generation = write(engine, stop=())
    assert len(generation.logprobs) == len(generation.tokens)
    assert sum(generation.logprobs) == pytest.approx(sum(-0.25 * i for i in range(generation.usage.tokens)))


@pytest.mark.parametrize("most", [1, 3, 9])
def test_translated_step_has_at_most_the_requested_tokens_in_either_vocabulary(most: int) -> None:
    _, engine = bound()
    generation = write(engine, stop=(), max_tokens=most)
    assert len(generation.tokens) == most
    assert generation.usage.tokens <= most
    assert generation.finish == "length"


def test_incomplete_character_at_the_end_is_left_out() -> None:
    class Half(Speaker):
        def _continue(self, request: GenerationRequest) -> Generation:
            return self._build(tuple("aé".encode()[:2]), "length")

    engine = TokenBridge(OURS, THEIRS, 0).bind(Half(), "why?", THEIRS.encode("why?"))
    request = GenerationRequest(prefix=THEIRS.encode("why?"), params=SamplingParams(), seed=1)
    (generation,) = asyncio.run(engine.generate([request]))
    assert THEIRS.decode(generation.tokens) == "a"


def test_prompt_beyond_the_question_is_translated_as_text() -> None:
    root = OURS.encode_text("We spoke before. Ask: why?\n")
    speaker, engine = bound(root)
    asyncio.run(engine.generate([GenerationRequest(prefix=root, params=SamplingParams(), seed=1)]))
    assert Pairs().decode(speaker.prefixes[0]) == "We spoke before. Ask: why?\n"


def test_different_vocabularies_are_refused_without_a_bridge() -> None:
    require_step_vocabulary("own", "A", {"a": 0}, "B", {"a": 1})
    with pytest.raises(ValueError, match=r"A cannot draft steps for B.*small\.vocabulary=own"):
        require_step_vocabulary("same", "A", {"a": 0}, "B", {"a": 1})
    with pytest.raises(ConfigError, match=r"^small: vocabulary must be one of same, own; got 'mine'"):
        reason.load("router=arbitrage", "small.vocabulary=mine")


@pytest.fixture(scope="module")
def other_ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled small model with its vocabulary in another order, but for special tokens."""
    folder: Path = tmp_path_factory.mktemp("draft") / "other"
    shutil.copytree(BUNDLED / "draft", folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    ids = [i for i in vocabulary.values() if i not in special]
    new = dict(zip(ids, ids[1:] + ids[:1], strict=True))
    tokenizer["model"]["vocab"] = {token: new.get(i, i) for token, i in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = moved = embedding.clone()
    moved[list(new.values())] = embedding[list(new)]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("search", ["best_of_n", "rebase"])
def test_greedy_routed_texts_do_not_depend_on_the_small_vocabulary(other_ids: Path, search: str) -> None:
    def texts(*draft: str) -> list[tuple[str | None, str]]:
        greedy = ("search.n=2", "search.sampling.temperature=0", "engine.dtype=float32", "small.dtype=float32")
        with reason.load(f"search={search}", "router=random", *greedy, *draft) as solver:
            tree = solver.solve("x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.").tree
            return [(node.step.model, node.step.text) for node in tree.nodes]

    with pytest.raises(ConfigError, match=r"cannot draft steps.*small\.vocabulary=own"):
        texts(f"small.path={other_ids}")
    translated = texts(f"small.path={other_ids}", "small.vocabulary=own")
    assert translated == texts()
    assert {author for author, _ in translated} >= {"draft", "target"}
