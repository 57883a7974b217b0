"""The outputs of a reward model on servers are complete or an error, whatever the servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from decoding.core import Tokens
from reason.engines.http.errors import NoServer, RequestRejected, ResponseLost
from reason.engines.sglang_client.dispatcher import Dispatcher
from reason.engines.sglang_client.head_queries import ExpectationQuery, LabelTokensQuery, RewardHeadQuery
from reason.engines.sglang_client.reader import SessionAffinity, SGLangReader
from reason.engines.sglang_client.settings import SGLangSettings
from reason.scorers.probabilities import pair_probability, stable_sigmoid
from tests.support.scripted_sglang_server import Act, ByteVocabulary, ScriptedSGLangServer


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def open_reader(stack: ExitStack, *scripts: list[Act], query: Any = None, **more: Any) -> tuple[SGLangReader, Any]:
    """A reader and its servers; each takes one script."""
    servers = [ScriptedSGLangServer(script) for script in scripts]
    for server in servers:
        stack.callback(server.close)
    quick: dict[str, Any] = {"cooldown_s": 0.2, "unavailable_timeout_s": 20}
    dispatcher = Dispatcher(SGLangSettings(urls=[server.url for server in servers], **(quick | more)))
    reader = SGLangReader(
        dispatcher, query or RewardHeadQuery(num_outputs=2), vocab_size=257, tokenizer=ByteVocabulary()
    )
    stack.callback(reader.close)
    return reader, servers


def read(reader: SGLangReader, *pairs: tuple[Tokens, int]) -> list[np.ndarray]:
    return asyncio.run(reader.encode([tokens for tokens, _ in pairs], [start for _, start in pairs]))


def shares(tokens: Tokens) -> list[float]:
    return [(token % 10 + 1) / 12 for token in tokens]


def test_encode_returns_a_row_per_token_from_start_on(stack: ExitStack) -> None:
    reader, (server,) = open_reader(stack, [])
    first, second = read(reader, ((1, 2, 3, 4), 1), ((5,), 0))
    assert pair_probability(first, positive=0) == pytest.approx(shares((2, 3, 4)))
    assert pair_probability(second, positive=0) == pytest.approx(shares((5,)))
    assert {body["logprob_start_len"] for body in server.generations} == {0, 1}  # on two connections, in any order
    assert all(body["sampling_params"]["max_new_tokens"] == 0 for body in server.generations)


def test_single_output_is_the_difference_of_the_two_tokens(stack: ExitStack) -> None:
    reader, _ = open_reader(stack, [], query=RewardHeadQuery(num_outputs=1))
    (outputs,) = read(reader, ((1, 2, 3), 1))
    assert stable_sigmoid(outputs[:, 0].astype(np.float64)) == pytest.approx(shares((2, 3)))


def test_expectation_row_is_at_its_token(stack: ExitStack) -> None:
    reader, (server,) = open_reader(stack, [], query=ExpectationQuery())
    (outputs,) = read(reader, ((1, 2, 3, 4), 2))
    assert outputs.tolist() == [[-0.5], [-0.5]]
    assert server.generations[0]["logprob_start_len"] == 1


def test_full_queue_and_lost_responses_are_retried(stack: ExitStack) -> None:
    reader, servers = open_reader(stack, ["full", "die"], ["cut"])
    (outputs,) = read(reader, ((1, 2, 3), 1))
    assert pair_probability(outputs, positive=0) == pytest.approx(shares((2, 3)))
    assert sum(len(server.generations) for server in servers) > 1


def test_session_affinity_keeps_a_problem_at_one_server(stack: ExitStack) -> None:
    reader, servers = open_reader(stack, [], [])

    async def scenario() -> None:
        for problem in "ab":
            for _ in range(3):
                await SessionAffinity(reader, problem).encode([(1, 2)], [1])

    asyncio.run(scenario())
    assert sorted(len(server.generations) for server in servers) in ([3, 3], [0, 6])


def test_lost_responses_end_at_max_retries(stack: ExitStack) -> None:
    reader, _ = open_reader(stack, ["die"] * 9, max_retries=3)
    with pytest.raises(NoServer, match="3 replies to this request were lost"):
        read(reader, ((1, 2), 1))


def test_rejection_has_the_message_of_the_server(stack: ExitStack) -> None:
    reader, _ = open_reader(stack, ["native_400"])
    with pytest.raises(RequestRejected, match="top_p"):
        read(reader, ((1, 2), 1))


def test_id_outside_the_vocabulary_is_never_sent(stack: ExitStack) -> None:
    reader, (server,) = open_reader(stack, [])
    with pytest.raises(ValueError, match="token id 257 is outside the reward model's vocabulary of 257"):
        read(reader, ((1, 257), 1))
    assert not server.generations


@pytest.mark.parametrize(
    "reply",
    [{}, {"meta_info": {}}, {"meta_info": {"input_token_ids_logprobs": [None], "output_token_ids_logprobs": []}}],
)
def test_incomplete_reply_is_a_lost_response(reply: Any) -> None:
    with pytest.raises(ResponseLost):
        LabelTokensQuery((3, 4)).parse_outputs(reply, 1)
    with pytest.raises(ResponseLost):
        ExpectationQuery().parse_outputs(reply, 1)


def test_head_is_recognised_by_two_probabilities_that_sum_to_one() -> None:
    def reply(*logprobs: float) -> Any:
        row = [[logprob, i, None] for i, logprob in enumerate(logprobs)]
        return {"meta_info": {"input_token_ids_logprobs": [None], "output_token_ids_logprobs": [row]}}

    assert RewardHeadQuery(num_outputs=2).is_from_head(reply(np.log(0.3), np.log(0.7)))
    assert not RewardHeadQuery(num_outputs=2).is_from_head(reply(np.log(0.3), np.log(0.1)))
