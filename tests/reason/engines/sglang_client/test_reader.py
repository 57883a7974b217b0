"""Outputs of a reward model on servers: whole or not at all, whatever a server does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from decoding.core import Tokens
from reason.engines.sglang_client.client import Client
from reason.engines.sglang_client.errors import Lost, NoServer, Refused
from reason.engines.sglang_client.outputs import Expected, Head, TwoWords
from reason.engines.sglang_client.reader import AtHome, RemoteReader
from reason.scorers.probabilities import logistic, pair_probability
from tests.support.scripted_sglang_server import Act, ByteVocabulary, ScriptedServer


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def served(stack: ExitStack, *scripts: list[Act], outcome: Any = None, **more: Any) -> tuple[RemoteReader, Any]:
    """A reader and its servers; each takes one script."""
    servers = [ScriptedServer(script) for script in scripts]
    for server in servers:
        stack.callback(server.close)
    client = Client([server.url for server in servers], **({"rest_s": 0.2, "patience_s": 20} | more))
    reader = RemoteReader(client, outcome or Head(count=2), vocab_size=257, tokenizer=ByteVocabulary())
    stack.callback(reader.close)
    return reader, servers


def read(reader: RemoteReader, *asked: tuple[Tokens, int]) -> list[np.ndarray]:
    return asyncio.run(reader.read([tokens for tokens, _ in asked], [start for _, start in asked]))


def shares(tokens: Tokens) -> list[float]:
    return [(token % 10 + 1) / 12 for token in tokens]


def test_there_is_a_row_after_every_token_from_the_start_on(stack: ExitStack) -> None:
    reader, (server,) = served(stack, [])
    first, second = read(reader, ((1, 2, 3, 4), 1), ((5,), 0))
    assert pair_probability(first, positive=0) == pytest.approx(shares((2, 3, 4)))
    assert pair_probability(second, positive=0) == pytest.approx(shares((5,)))
    assert [body["logprob_start_len"] for body in server.generations] == [1, 0]
    assert all(body["sampling_params"]["max_new_tokens"] == 0 for body in server.generations)


def test_one_output_is_the_difference_of_the_two_words(stack: ExitStack) -> None:
    reader, _ = served(stack, [], outcome=Head(count=1))
    (outputs,) = read(reader, ((1, 2, 3), 1))
    assert logistic(outputs[:, 0].astype(np.float64)) == pytest.approx(shares((2, 3)))


def test_how_expected_a_token_was_is_told_where_it_stands(stack: ExitStack) -> None:
    reader, (server,) = served(stack, [], outcome=Expected())
    (outputs,) = read(reader, ((1, 2, 3, 4), 2))
    assert outputs.tolist() == [[-0.5], [-0.5]]
    assert server.generations[0]["logprob_start_len"] == 1


def test_a_full_queue_is_waited_for_and_a_lost_server_replaced(stack: ExitStack) -> None:
    reader, servers = served(stack, ["full", "die"], ["cut"])
    (outputs,) = read(reader, ((1, 2, 3), 1))
    assert pair_probability(outputs, positive=0) == pytest.approx(shares((2, 3)))
    assert sum(len(server.generations) for server in servers) > 1


def test_a_problem_is_at_home_with_one_server(stack: ExitStack) -> None:
    reader, servers = served(stack, [], [])

    async def story() -> None:
        for problem in "ab":
            for _ in range(3):
                await AtHome(reader, problem).read([(1, 2)], [1])

    asyncio.run(story())
    assert sorted(len(server.generations) for server in servers) in ([3, 3], [0, 6])


def test_a_request_that_loses_every_server_is_given_up(stack: ExitStack) -> None:
    reader, _ = served(stack, ["die"] * 9, losses=3)
    with pytest.raises(NoServer, match="3 servers were lost over this request"):
        read(reader, ((1, 2), 1))


def test_what_the_server_refuses_is_said(stack: ExitStack) -> None:
    reader, _ = served(stack, ["native_400"])
    with pytest.raises(Refused, match="top_p"):
        read(reader, ((1, 2), 1))


def test_an_id_outside_the_vocabulary_is_not_sent(stack: ExitStack) -> None:
    reader, (server,) = served(stack, [])
    with pytest.raises(ValueError, match="token id 257 is outside the reward model's vocabulary of 257"):
        read(reader, ((1, 257), 1))
    assert not server.generations


@pytest.mark.parametrize(
    "reply",
    [{}, {"meta_info": {}}, {"meta_info": {"input_token_ids_logprobs": [None], "output_token_ids_logprobs": []}}],
)
def test_a_reply_that_is_not_whole_is_a_loss(reply: Any) -> None:
    with pytest.raises(Lost):
        TwoWords((3, 4)).outputs(reply, 1)
    with pytest.raises(Lost):
        Expected().outputs(reply, 1)


def test_only_a_head_leaves_no_other_word() -> None:
    def reply(*logprobs: float) -> Any:
        row = [[logprob, i, None] for i, logprob in enumerate(logprobs)]
        return {"meta_info": {"input_token_ids_logprobs": [None], "output_token_ids_logprobs": [row]}}

    assert Head(count=2).served(reply(np.log(0.3), np.log(0.7)))
    assert not Head(count=2).served(reply(np.log(0.3), np.log(0.1)))
