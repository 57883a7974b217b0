"""Each branch gets exactly one complete reply whatever the servers do, or fails with one sentence."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest, OversizedRequest, SamplingParams
from reason.engines.http.errors import NoServer, RequestRejected
from reason.engines.openai_api.engine import OpenAIEngine
from reason.engines.openai_api.settings import OpenAISettings
from reason.models.byte_tokenizer import ByteTokenizer
from tests.support.scripted_openai_server import REPLY_TEXT, Act, ScriptedOpenAIServer

Serve = Callable[..., ScriptedOpenAIServer]
Connect = Callable[..., OpenAIEngine]
TOKENIZER = ByteTokenizer()
END = (TOKENIZER.eos_token_id,)


@pytest.fixture
def connect() -> Iterator[Connect]:
    engines: list[OpenAIEngine] = []

    def start(*servers: ScriptedOpenAIServer, chat: bool = False, **more: Any) -> OpenAIEngine:
        api = "chat" if chat else "completions"
        quick: dict[str, Any] = {"cooldown_s": 0.2, "unavailable_timeout_s": 20, "min_backoff_s": 0.05}
        settings = OpenAISettings(urls=[s.url for s in servers], model="toy", api=api, **(quick | more))
        engines.append(OpenAIEngine(settings, tokenizer=TOKENIZER))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def request_for(
    text: str = "Q?", *, group: str = "p", deadline: float | None = None, **params: Any
) -> GenerationRequest:
    prefix = tuple(TOKENIZER.encode(text))
    return GenerationRequest(
        prefix=prefix, params=SamplingParams(**params), seed=2**63 + 7, group=group, deadline=deadline
    )


def chat(question: str, answer: str = "") -> str:
    messages = [{"role": "user", "content": question}]
    return TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + answer


def run(engine: OpenAIEngine, *requests: GenerationRequest) -> list[Generation]:
    return asyncio.run(engine.generate(requests))


class TestRequestBody:
    def test_completion_has_every_field(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        run(connect(server), request_for(temperature=0.5, top_p=0.9, stop=("zz",), max_tokens=70))
        assert server.paths == ["/v1/completions"]
        assert server.bodies == [
            {
                "model": "toy",
                "prompt": "Q?",
                "max_tokens": 70,
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": -1,
                "min_p": 0.0,
                "seed": 7,
                "stop": ["zz"],
                "stream": False,
            }
        ]

    def test_chat_keeps_messages_and_omits_fields(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        more = {"max_tokens_field": "max_completion_tokens", "omit": ("seed",), "extra_body": {"effort": "low"}}
        run(connect(server, chat=True, **more), request_for(chat("1+1?"), max_tokens=70))
        assert server.paths == ["/v1/chat/completions"]
        assert server.bodies == [
            {
                "model": "toy",
                "messages": [{"role": "user", "content": "1+1?"}],
                "max_completion_tokens": 70,
                "temperature": 1.0,
                "top_p": 1.0,
                "stream": False,
                "effort": "low",
            }
        ]

    def test_chat_has_filters_that_change_something(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        run(connect(server, chat=True), request_for(chat("1+1?"), top_k=20, min_p=0.1))
        assert (server.bodies[0]["top_k"], server.bodies[0]["min_p"]) == (20, 0.1)

    def test_prefill_continues_an_answer(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        run(connect(server, chat=True, prefill=True), request_for(chat("1+1?", answer="One.\n\n")))
        body = server.bodies[0]
        assert body["messages"][1] == {"role": "assistant", "content": "One.\n\n"}
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)

    @pytest.mark.parametrize(
        ("prefill", "complaint"), [("new_turn", "begins a new answer"), ("trims", "loses the blank line")]
    )
    def test_prefill_is_refused_where_the_server_does_not_continue_exactly(
        self, serve: Serve, connect: Connect, prefill: str, complaint: str
    ) -> None:
        with pytest.raises(ValueError, match=complaint):
            connect(serve(prefill=prefill), chat=True, prefill=True)

    def test_validation_comes_before_sending(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        engine = connect(server, chat=True, omit=("temperature",))
        for request, complaint in (
            (request_for(chat("1+1?"), temperature=0.5), r"temperature=0\.5 is not sent"),
            (request_for(chat("1+1?"), stop_token_ids=(3,)), "stop_token_ids"),
            (request_for("1+1?"), "takes conversations"),
            (request_for(chat("1+1?", answer="One.")), "begins every answer anew"),
        ):
            with pytest.raises(ValueError, match=complaint):
                run(engine, request_for(chat("1+1?")), request)
        assert server.bodies == []

    def test_api_key_is_sent_and_never_shown(
        self, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        server = serve("ok", "denied", "error_200_with_key", key="sk-secret")
        engine = connect(server, api_key="sk-secret", max_retries=1)
        run(engine, request_for())
        assert server.keys == {"Bearer sk-secret"}
        with pytest.raises(RequestRejected, match=r"says 401: Incorrect API key provided: \*\*\*$"):
            run(engine, request_for())
        with pytest.raises(NoServer, match=r"says 200 and an error: refused: \[31mBearer \*\*\*; 1 replies"):
            run(engine, request_for())
        assert "sk-secret" not in caplog.text + repr(vars(engine))


class TestResponse:
    @pytest.mark.parametrize("says_ended", [True, False])
    @pytest.mark.parametrize(
        ("params", "text", "finish"),
        [
            ({}, REPLY_TEXT, "eos"),
            ({"stop": ("\n\n",)}, "One.\n\n", "stop"),
            ({"stop": ("w", "\n\n")}, "One.\n\n", "stop"),
            ({"stop": ("zz",)}, REPLY_TEXT, "eos"),
            ({"stop": ("\n\n",), "max_tokens": 2}, "On", "length"),
        ],
    )
    def test_end_and_finish_reason(
        self, serve: Serve, connect: Connect, says_ended: bool, params: dict[str, Any], text: str, finish: str
    ) -> None:
        """Also on servers that remove the stop string and do not report the kind of end."""
        (generation,) = run(connect(serve(says_ended=says_ended)), request_for(**params))
        end = END if finish == "eos" else ()
        assert (generation.tokens, generation.finish) == ((*TOKENIZER.encode(text), *end), finish)
        assert generation.logprobs == ()

    def test_stream_is_closed_at_the_stop_string(self, serve: Serve, connect: Connect) -> None:
        server = serve(says_ended=False)
        engine = connect(server)
        (generation,) = run(engine, request_for(stop=("\n\n",)))
        assert "stop" not in server.bodies[0]
        assert generation.usage.tokens == len("One.\n\n"), "as many as came"
        deadline = time.monotonic() + 5
        while not server.dropped and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.dropped == 1

    def test_usage_has_the_counts_of_the_server(self, serve: Serve, connect: Connect) -> None:
        engine = connect(serve(), chat=True)
        (generation,) = run(engine, request_for(chat("1+1?"), max_tokens=4))
        spent = generation.usage
        assert (spent.calls, spent.tokens, spent.prompt_tokens, spent.cached_tokens) == (1, 4, 10, 3)
        assert (engine.stats.tokens, engine.stats.prompt_tokens, engine.stats.cached_tokens) == (4, 10, 3)

    def test_usage_without_server_counts(self, serve: Serve, connect: Connect) -> None:
        (generation,) = run(connect(serve(usage=False)), request_for())
        assert (generation.usage.tokens, generation.usage.prompt_tokens) == (len(REPLY_TEXT) + 1, 2)

    def test_filtered_answer_finishes_by_length(self, serve: Serve, connect: Connect) -> None:
        assert run(connect(serve("filtered")), request_for())[0].finish == "length"

    def test_logprobs_where_vocabularies_agree(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        (generation,) = run(connect(server, logprobs=True), request_for(stop=("\n\n",)))
        assert server.bodies[0]["logprobs"] == 1
        assert (bytes(generation.tokens), generation.logprobs) == (b"One.\n\n", (-0.5,) * 6)
        assert generation.top_logprobs is generation.entropies is None


class TestRetries:
    @pytest.mark.parametrize(
        "act",
        [
            *("die", "cut", "html", "crash_500", "error_200", "error_200_busy"),
            *("no_choices", "no_text", "aborted", "overloaded", "no_workers"),
        ],
    )
    def test_transient_error_is_retried(self, serve: Serve, connect: Connect, act: Act) -> None:
        server = serve(act, act)
        assert run(connect(server), request_for())[0].finish == "eos"
        assert len(server.bodies) == 3

    def test_broken_stream_is_retried(self, serve: Serve, connect: Connect) -> None:
        server = serve("cut", "die", "full", says_ended=False)
        assert run(connect(server), request_for(stop=("zz",)))[0].finish == "eos"
        assert len(server.bodies) == 4

    @pytest.mark.parametrize(("act", "at_least"), [("full", 0.4), ("full_until", 0.9)])
    def test_retry_after_holds_back_all_requests(
        self, serve: Serve, connect: Connect, act: Act, at_least: float
    ) -> None:
        """The second request waits for the pause that the first one received."""
        server = serve(act)
        engine = connect(server, max_in_flight=1)
        began = time.monotonic()
        run(engine, request_for(), request_for())
        assert time.monotonic() - began >= at_least
        assert (len(server.bodies), engine.stats.full) == (3, 1)

    def test_retry_after_of_hours_gives_up(self, serve: Serve, connect: Connect) -> None:
        with pytest.raises(NoServer, match=r"says 429: slow down; it says to wait 7200 s, longer than 20 s$"):
            run(connect(serve("full_for_hours")), request_for())

    def test_overload_without_progress_gives_up(self, serve: Serve, connect: Connect) -> None:
        server = serve(*["overloaded"] * 99)
        with pytest.raises(NoServer, match=r"nothing got through for 0\.3 s$"):
            run(connect(server, unavailable_timeout_s=0.3), request_for())

    @pytest.mark.parametrize("act", ["openai_400", "vllm_400", "detail_422"])
    def test_rejection_message_of_every_error_shape(self, serve: Serve, connect: Connect, act: Act) -> None:
        server = serve(act)
        with pytest.raises(
            RequestRejected, match=r"/v1/completions says 4\d\d: top_k: unknown field( \(unknown_parameter\))?$"
        ):
            run(connect(server), request_for())
        assert len(server.bodies) == 1

    def test_missing_credit_is_not_retried(self, serve: Serve, connect: Connect) -> None:
        with pytest.raises(RequestRejected, match="no credit"):
            run(connect(serve("no_credit")), request_for())

    def test_too_long_prompt_is_an_oversized_request(self, serve: Serve, connect: Connect) -> None:
        with pytest.raises(OversizedRequest, match="maximum context length"):
            run(connect(serve("too_long")), request_for())

    def test_lost_responses_end_at_max_retries(self, serve: Serve, connect: Connect) -> None:
        server = serve(*["error_200"] * 9)
        with pytest.raises(NoServer, match=r"says 200 and an error: the model is gone; 3 replies to this request"):
            run(connect(server, max_retries=3), request_for())

    def test_lost_response_leaves_the_other_requests_and_all_slots(self, serve: Serve, connect: Connect) -> None:
        """Slots are free again afterwards: later requests are answered too."""
        server = serve(*["ok"] * 7, "no_choices", *["ok"] * 9, *["openai_400"] * 4)
        engine = connect(server, max_in_flight=4)
        assert [generation.finish for generation in run(engine, *[request_for()] * 16)] == ["eos"] * 16
        with pytest.raises(RequestRejected):
            run(engine, *[request_for()] * 4)
        assert [generation.finish for generation in run(engine, *[request_for()] * 8)] == ["eos"] * 8

    def test_lost_response_is_retried_at_another_server(self, serve: Serve, connect: Connect) -> None:
        first, second = serve("crash_500"), serve()
        engine = connect(first, second)
        assert run(engine, request_for())[0].finish == "eos"
        assert (len(first.bodies), len(second.bodies), engine.stats.reissued) == (1, 1, 1)


class TestConcurrencyAndDeadline:
    def test_max_in_flight_is_reached(self, serve: Serve, connect: Connect) -> None:
        """Above the default limit of HTTP clients, a hundred connections."""
        server = serve(*["hang"] * 150)
        engine = connect(server, max_in_flight=130)

        async def scenario() -> list[Generation]:
            pending = asyncio.create_task(engine.generate([request_for()] * 150))
            while server.under_way < 130:
                await asyncio.sleep(0.01)
            server.release()
            return await pending

        assert len(asyncio.run(scenario())) == 150
        assert server.max_under_way == 130

    def test_cancellation_closes_the_connection(self, serve: Serve, connect: Connect) -> None:
        server = serve("hang", "hang")
        engine = connect(server)

        async def scenario() -> None:
            pending = asyncio.create_task(engine.generate([request_for(), request_for()]))
            while server.under_way < 2:
                await asyncio.sleep(0.01)
            pending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pending
            while server.dropped < 2:
                await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(scenario(), 20))
        assert (engine.stats.aborted, engine.stats.running, engine.stats.waiting) == (2, 0, 0)

    def test_deadline_returns_an_empty_generation(self, serve: Serve, connect: Connect) -> None:
        server = serve("hang")
        (generation,) = run(connect(server), request_for(deadline=time.monotonic() + 0.3))
        assert (generation.tokens, generation.finish) == ((), "deadline")

    def test_passed_deadline_sends_nothing(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        (generation,) = run(connect(server), request_for(deadline=time.monotonic() - 1))
        assert (generation.finish, server.bodies) == ("deadline", [])

    def test_closed_engine_raises(self, serve: Serve, connect: Connect) -> None:
        engine = connect(serve())
        engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            run(engine, request_for())


class TestProbe:
    def test_limits_are_logged_once(self, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
        connect(serve(says_ended=False))
        (line,) = [record.getMessage() for record in caplog.records]
        assert "no log-probabilities; lengths in trees are bytes; steps are streamed" in line

    def test_missing_model_is_named_with_the_chat_hint(self, serve: Serve, connect: Connect) -> None:
        with pytest.raises(ValueError, match=r"no model toy; .*engine\.api=chat"):
            connect(serve(models=["other"]))

    def test_unreachable_server_is_named(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        server.close()
        with pytest.raises(ConnectionError, match=f"{server.url} does not answer"):
            connect(server)
