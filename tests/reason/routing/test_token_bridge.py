"""A small model of another vocabulary: two tokenizers meet at text, where steps end."""

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
from decoding.core import Generation, GenerationRequest, SamplingParams, Spent, Tokens
from reason import ConfigError
from reason.models.byte_tokenizer import ByteText
from reason.models.vocabulary import check_steps
from reason.prompt import Prompt, PromptFormat
from reason.routing.token_bridge import BoundTranslated, Translation
from reason.training.stages import BUNDLED

OURS = Prompt(PromptFormat(raw="Ask: {question}\n"), ByteText())
END = ByteText.eos_token_id
SAYS = "ab c.\n\nThen é.\n\nSo 7."


class Pairs:
    """Two characters a token; 0 ends a text."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1 + ord(text[i]) * 512 + (ord(text[i + 1]) if i + 1 < len(text) else 0) for i in range(0, len(text), 2)]

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        pairs = [divmod(token - 1, 512) for token in token_ids if token]
        return "".join(chr(a) + (chr(b) if b else "") for a, b in pairs)

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        raise NotImplementedError


THEIRS = Prompt(OURS.form, Pairs())


class Speaker:
    """Goes on with `SAYS`; a token that completes a stop string may say more than it."""

    def __init__(self) -> None:
        self.prefixes: list[Tokens] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return [self._go_on(request) for request in requests]

    def _go_on(self, request: GenerationRequest) -> Generation:
        self.prefixes.append(request.prefix)
        assert request.params.stop_token_ids == ()
        before = Pairs().decode(request.prefix).partition("?\n")[2]
        assert SAYS.startswith(before)
        tokens = (*Pairs().encode(SAYS[len(before) :], add_special_tokens=False), 0)
        for i in range(len(tokens)):
            if any(stop in Pairs().decode(tokens[:i]) for stop in request.params.stop):
                return self._said(tokens[:i], "stop")
            if i == request.params.max_tokens:
                return self._said(tokens[:i], "length")
        return self._said(tokens, "eos")

    def _said(self, tokens: Tokens, finish: Any) -> Generation:
        logprobs = tuple(-0.25 * i for i in range(len(tokens)))
        return Generation(tokens=tokens, logprobs=logprobs, finish=finish, spent=Spent(calls=1, tokens=len(tokens)))


def bound(root: Tokens | None = None) -> tuple[Speaker, BoundTranslated]:
    speaker = Speaker()
    between = Translation(THEIRS, OURS, END)
    return speaker, between.bind(speaker, "why?", OURS.encode("why?") if root is None else root)


def write(engine: BoundTranslated, said: Tokens = (), **params: Any) -> Generation:
    prefix = OURS.encode("why?") + said
    params = {"stop": ("\n\n",), "stop_token_ids": (END,), **params}
    (found,) = asyncio.run(engine.generate([GenerationRequest(prefix=prefix, params=SamplingParams(**params), seed=1)]))
    return found


def test_steps_come_in_our_ids_and_go_back_in_theirs() -> None:
    speaker, engine = bound()
    said = Tokens()
    steps: list[Generation] = []
    while not steps or steps[-1].finish == "stop":
        steps.append(write(engine, said))
        said += steps[-1].tokens
    assert [OURS.decode(step.tokens) for step in steps] == ["ab c.\n\n", "Then é.\n\n", "So 7."]
    assert [step.finish for step in steps] == ["stop", "stop", "eos"]
    assert said[-1] == END
    for shorter, longer in zip(speaker.prefixes, speaker.prefixes[1:], strict=False):
        assert longer[: len(shorter)] == shorter, "what is in the small model's cache stays a prefix"


def test_the_log_probability_of_the_whole_is_the_small_models() -> None:
    _, engine = bound()
    found = write(engine, stop=())
    assert len(found.logprobs) == len(found.tokens)
    assert sum(found.logprobs) == pytest.approx(sum(-0.25 * i for i in range(found.spent.tokens)))


@pytest.mark.parametrize("most", [1, 3, 9])
def test_no_more_tokens_than_asked_for_in_either_vocabulary(most: int) -> None:
    _, engine = bound()
    found = write(engine, stop=(), max_tokens=most)
    assert len(found.tokens) == most
    assert found.spent.tokens <= most
    assert found.finish == "length"


def test_half_a_character_at_the_end_is_left_out() -> None:
    class Half(Speaker):
        def _go_on(self, request: GenerationRequest) -> Generation:
            return self._said(tuple("aé".encode()[:2]), "length")

    engine = Translation(OURS, THEIRS, 0).bind(Half(), "why?", THEIRS.encode("why?"))
    request = GenerationRequest(prefix=THEIRS.encode("why?"), params=SamplingParams(), seed=1)
    (found,) = asyncio.run(engine.generate([request]))
    assert THEIRS.decode(found.tokens) == "a"


def test_a_prompt_that_is_more_than_the_question_goes_over_as_text() -> None:
    root = OURS.encode_text("We spoke before. Ask: why?\n")
    speaker, engine = bound(root)
    asyncio.run(engine.generate([GenerationRequest(prefix=root, params=SamplingParams(), seed=1)]))
    assert Pairs().decode(speaker.prefixes[0]) == "We spoke before. Ask: why?\n"


def test_vocabularies_that_differ_are_refused_where_ids_are_handed_over() -> None:
    check_steps("own", "A", {"a": 0}, "B", {"a": 1})
    with pytest.raises(ValueError, match=r"A cannot draft steps for B.*draft\.vocabulary=own"):
        check_steps("same", "A", {"a": 0}, "B", {"a": 1})
    with pytest.raises(ConfigError, match=r"^draft: vocabulary must be one of same, own; got 'mine'"):
        reason.load("router=arbitrage", "draft.vocabulary=mine")


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
def test_where_nothing_is_drawn_another_vocabulary_changes_no_word(other_ids: Path, search: str) -> None:
    def texts(*draft: str) -> list[tuple[str | None, str]]:
        greedy = ("search.n=2", "search.sampling.temperature=0", "engine.dtype=float32", "draft.dtype=float32")
        with reason.load(f"search={search}", "router=random", *greedy, *draft) as solver:
            tree = solver.solve("x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.").tree
            return [(node.step.author, node.step.text) for node in tree.nodes]

    with pytest.raises(ConfigError, match=r"cannot draft steps.*draft\.vocabulary=own"):
        texts(f"draft.path={other_ids}")
    found = texts(f"draft.path={other_ids}", "draft.vocabulary=own")
    assert found == texts()
    assert {author for author, _ in found} >= {"draft", "target"}
