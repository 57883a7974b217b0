"""Whatever a server does, a branch is answered once and with the server's own words, or fails with one sentence."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest, OversizedRequest, SamplingParams
from reason.engines.openai_api.engine import EndpointEngine
from reason.engines.openai_api.wire import Form
from reason.engines.sglang_client.errors import NoServer, Refused
from reason.models.byte_tokenizer import ByteText
from tests.support.scripted_openai_server import SAID, Act, ScriptedEndpoint

Serve = Callable[..., ScriptedEndpoint]
Connect = Callable[..., EndpointEngine]
TEXT = ByteText()
END = (TEXT.eos_token_id,)


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ScriptedEndpoint] = []

    def start(*script: Act, **more: Any) -> ScriptedEndpoint:
        servers.append(ScriptedEndpoint(script, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    engines: list[EndpointEngine] = []

    def start(*servers: ScriptedEndpoint, chat: bool = False, **more: Any) -> EndpointEngine:
        asked = {name: more.pop(name) for name in list(more) if name in Form.__dataclass_fields__}
        form = Form(model="toy", chat=chat, **asked)
        quick: dict[str, Any] = {"tokenizer": TEXT, "rest_s": 0.2, "patience_s": 20, "shortest_s": 0.05}
        engines.append(EndpointEngine([s.url for s in servers], form=form, **(quick | more)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def ask(text: str = "Q?", *, group: str = "p", deadline: float | None = None, **params: Any) -> GenerationRequest:
    prefix = tuple(TEXT.encode(text))
    return GenerationRequest(
        prefix=prefix, params=SamplingParams(**params), seed=2**63 + 7, group=group, deadline=deadline
    )


def chat(question: str, said: str = "") -> str:
    messages = [{"role": "user", "content": question}]
    return TEXT.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + said


def run(engine: EndpointEngine, *requests: GenerationRequest) -> list[Generation]:
    return asyncio.run(engine.generate(requests))


class TestWhatIsSent:
    def test_a_completion_says_everything(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        run(connect(server), ask(temperature=0.5, top_p=0.9, stop=("zz",), max_tokens=70))
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

    def test_a_conversation_goes_as_it_is_and_without_fields_that_vendors_refuse(
        self, serve: Serve, connect: Connect
    ) -> None:
        server = serve()
        more = {"max_tokens_field": "max_completion_tokens", "omit": ("seed",), "extra_body": {"effort": "low"}}
        run(connect(server, chat=True, **more), ask(chat("1+1?"), max_tokens=70))
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

    def test_a_conversation_is_sent_filters_that_do_something(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        run(connect(server, chat=True), ask(chat("1+1?"), top_k=20, min_p=0.1))
        assert (server.bodies[0]["top_k"], server.bodies[0]["min_p"]) == (20, 0.1)

    def test_an_answer_is_gone_on_with_where_the_server_can(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        run(connect(server, chat=True, prefill=True), ask(chat("1+1?", said="One.\n\n")))
        body = server.bodies[0]
        assert body["messages"][1] == {"role": "assistant", "content": "One.\n\n"}
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)

    @pytest.mark.parametrize(
        ("prefill", "complaint"), [("new_turn", "begins a new answer"), ("trims", "loses the blank line")]
    )
    def test_a_server_that_only_seems_to_go_on_is_refused(
        self, serve: Serve, connect: Connect, prefill: str, complaint: str
    ) -> None:
        with pytest.raises(ValueError, match=complaint):
            connect(serve(prefill=prefill), chat=True, prefill=True)

    def test_what_cannot_be_sent_is_refused_before_anything_is(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        engine = connect(server, chat=True, omit=("temperature",))
        for request, complaint in (
            (ask(chat("1+1?"), temperature=0.5), r"temperature=0\.5 is not sent"),
            (ask(chat("1+1?"), stop_token_ids=(3,)), "stop_token_ids"),
            (ask("1+1?"), "takes conversations"),
            (ask(chat("1+1?", said="One.")), "begins every answer anew"),
        ):
            with pytest.raises(ValueError, match=complaint):
                run(engine, ask(chat("1+1?")), request)
        assert server.bodies == []

    def test_the_key_goes_along_and_nowhere_else(
        self, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        server = serve("ok", "denied", key="sk-secret")
        engine = connect(server, key="sk-secret")
        run(engine, ask())
        assert server.keys == {"Bearer sk-secret"}
        with pytest.raises(Refused, match=r"says 401: Incorrect API key provided: \*\*\*$"):
            run(engine, ask())
        assert "sk-secret" not in caplog.text + repr(vars(engine))


class TestWhatComesBack:
    @pytest.mark.parametrize("says_ended", [True, False])
    @pytest.mark.parametrize(
        ("params", "said", "finish"),
        [
            ({}, SAID, "eos"),
            ({"stop": ("\n\n",)}, "One.\n\n", "stop"),
            ({"stop": ("w", "\n\n")}, "One.\n\n", "stop"),
            ({"stop": ("zz",)}, SAID, "eos"),
            ({"stop": ("\n\n",), "max_tokens": 2}, "On", "length"),
        ],
    )
    def test_it_ends_where_and_why_it_ended(
        self, serve: Serve, connect: Connect, says_ended: bool, params: dict[str, Any], said: str, finish: str
    ) -> None:
        """Also on servers that keep the stop string to themselves and do not say which end it was."""
        (generation,) = run(connect(serve(says_ended=says_ended)), ask(**params))
        end = END if finish == "eos" else ()
        assert (generation.tokens, generation.finish) == ((*TEXT.encode(said), *end), finish)
        assert generation.logprobs == ()

    def test_a_stream_is_left_at_its_stop_string(self, serve: Serve, connect: Connect) -> None:
        server = serve(says_ended=False)
        engine = connect(server)
        (generation,) = run(engine, ask(stop=("\n\n",)))
        assert "stop" not in server.bodies[0]
        assert generation.spent.tokens == len("One.\n\n"), "as many as came"
        deadline = time.monotonic() + 5
        while not server.dropped and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.dropped == 1

    def test_tokens_are_the_servers_count(self, serve: Serve, connect: Connect) -> None:
        engine = connect(serve(), chat=True)
        (generation,) = run(engine, ask(chat("1+1?"), max_tokens=4))
        spent = generation.spent
        assert (spent.calls, spent.tokens, spent.prompt_tokens, spent.cached_tokens) == (1, 4, 10, 3)
        assert (engine.stats.tokens, engine.stats.prompt_tokens, engine.stats.cached_tokens) == (4, 10, 3)

    def test_without_a_count_what_is_there_is_counted(self, serve: Serve, connect: Connect) -> None:
        (generation,) = run(connect(serve(usage=False)), ask())
        assert (generation.spent.tokens, generation.spent.prompt_tokens) == (len(SAID) + 1, 2)

    def test_a_filtered_answer_is_one_cut_short(self, serve: Serve, connect: Connect) -> None:
        assert run(connect(serve("filtered")), ask())[0].finish == "length"

    def test_log_probabilities_where_tokens_are_ours_one_by_one(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        (generation,) = run(connect(server, logprobs=True), ask(stop=("\n\n",)))
        assert server.bodies[0]["logprobs"] == 1
        assert (bytes(generation.tokens), generation.logprobs) == (b"One.\n\n", (-0.5,) * 6)


class TestFailures:
    @pytest.mark.parametrize(
        "act",
        [
            *("die", "cut", "html", "crash_500", "error_200", "error_200_busy"),
            *("no_choices", "no_text", "aborted", "overloaded", "no_workers"),
        ],
    )
    def test_what_may_pass_is_asked_again(self, serve: Serve, connect: Connect, act: Act) -> None:
        server = serve(act, act)
        assert run(connect(server), ask())[0].finish == "eos"
        assert len(server.bodies) == 3

    def test_a_stream_that_breaks_off_is_asked_again(self, serve: Serve, connect: Connect) -> None:
        server = serve("cut", "die", "full", says_ended=False)
        assert run(connect(server), ask(stop=("zz",)))[0].finish == "eos"
        assert len(server.bodies) == 4

    @pytest.mark.parametrize(("act", "at_least"), [("full", 0.4), ("full_until", 0.9)])
    def test_a_server_is_left_alone_for_as_long_as_it_says(
        self, serve: Serve, connect: Connect, act: Act, at_least: float
    ) -> None:
        """By all requests: the second one waits for what the first one was told."""
        server = serve(act)
        engine = connect(server, most=1)
        began = time.monotonic()
        run(engine, ask(), ask())
        assert time.monotonic() - began >= at_least
        assert (len(server.bodies), engine.stats.full) == (3, 1)

    def test_a_server_that_wants_hours_is_not_waited_for(self, serve: Serve, connect: Connect) -> None:
        with pytest.raises(NoServer, match=r"says 429: slow down; it says to wait 7200 s, longer than 20 s$"):
            run(connect(serve("full_for_hours")), ask())

    def test_a_server_that_is_always_full_is_given_up(self, serve: Serve, connect: Connect) -> None:
        server = serve(*["overloaded"] * 99)
        with pytest.raises(NoServer, match=r"nothing got through for 0\.3 s$"):
            run(connect(server, patience_s=0.3), ask())

    @pytest.mark.parametrize("act", ["openai_400", "vllm_400", "detail_422"])
    def test_every_shape_of_an_error_becomes_its_sentence(self, serve: Serve, connect: Connect, act: Act) -> None:
        server = serve(act)
        with pytest.raises(
            Refused, match=r"/v1/completions says 4\d\d: top_k: unknown field( \(unknown_parameter\))?$"
        ):
            run(connect(server), ask())
        assert len(server.bodies) == 1

    def test_an_empty_purse_is_not_waited_for(self, serve: Serve, connect: Connect) -> None:
        with pytest.raises(Refused, match="no credit"):
            run(connect(serve("no_credit")), ask())

    def test_a_prompt_too_long_is_one(self, serve: Serve, connect: Connect) -> None:
        with pytest.raises(OversizedRequest, match="maximum context length"):
            run(connect(serve("too_long")), ask())

    def test_a_request_that_is_always_lost_fails_with_the_last_reason(self, serve: Serve, connect: Connect) -> None:
        server = serve(*["error_200"] * 9)
        with pytest.raises(NoServer, match=r"says 200 and an error: the model is gone; 3 servers were lost"):
            run(connect(server, losses=3), ask())

    def test_one_bad_reply_in_sixteen_costs_nobody_anything(self, serve: Serve, connect: Connect) -> None:
        """And leaves no permit behind: what is asked afterwards is answered too."""
        server = serve(*["ok"] * 7, "no_choices", *["ok"] * 9, *["openai_400"] * 4)
        engine = connect(server, most=4)
        assert [generation.finish for generation in run(engine, *[ask()] * 16)] == ["eos"] * 16
        with pytest.raises(Refused):
            run(engine, *[ask()] * 4)
        assert [generation.finish for generation in run(engine, *[ask()] * 8)] == ["eos"] * 8

    def test_what_a_server_loses_is_asked_of_another(self, serve: Serve, connect: Connect) -> None:
        first, second = serve("crash_500"), serve()
        engine = connect(first, second)
        assert run(engine, ask())[0].finish == "eos"
        assert (len(first.bodies), len(second.bodies), engine.stats.reissued) == (1, 1, 1)


class TestManyAndFew:
    def test_as_many_as_may_are_there_at_once(self, serve: Serve, connect: Connect) -> None:
        """More than the hundred connections that HTTP clients allow themselves."""
        server = serve(*["hang"] * 150)
        engine = connect(server, most=130)

        async def story() -> list[Generation]:
            asked = asyncio.create_task(engine.generate([ask()] * 150))
            while server.under_way < 130:
                await asyncio.sleep(0.01)
            server.release()
            return await asked

        assert len(asyncio.run(story())) == 150
        assert server.most == 130

    def test_cancelling_closes_the_connection(self, serve: Serve, connect: Connect) -> None:
        server = serve("hang", "hang")
        engine = connect(server)

        async def story() -> None:
            asked = asyncio.create_task(engine.generate([ask(), ask()]))
            while server.under_way < 2:
                await asyncio.sleep(0.01)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            while server.dropped < 2:
                await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(story(), 20))
        assert (engine.stats.aborted, engine.stats.running, engine.stats.waiting) == (2, 0, 0)

    def test_at_the_deadline_there_is_nothing_and_the_server_is_told(self, serve: Serve, connect: Connect) -> None:
        server = serve("hang")
        (generation,) = run(connect(server), ask(deadline=time.monotonic() + 0.3))
        assert (generation.tokens, generation.finish) == ((), "deadline")

    def test_nothing_is_sent_after_the_deadline(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        (generation,) = run(connect(server), ask(deadline=time.monotonic() - 1))
        assert (generation.finish, server.bodies) == ("deadline", [])

    def test_a_closed_engine_says_so(self, serve: Serve, connect: Connect) -> None:
        engine = connect(serve())
        engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            run(engine, ask())


class TestMeeting:
    def test_what_is_lost_is_said_once(self, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
        connect(serve(says_ended=False))
        (said,) = [record.getMessage() for record in caplog.records]
        assert "no log-probabilities; lengths in trees are bytes; steps are streamed" in said

    def test_a_server_without_completions_is_told_from_one_without_the_model(
        self, serve: Serve, connect: Connect
    ) -> None:
        with pytest.raises(ValueError, match=r"no model toy; .*engine\.api=chat"):
            connect(serve(models=["other"]))

    def test_a_server_that_is_not_there_is_named(self, serve: Serve, connect: Connect) -> None:
        server = serve()
        server.close()
        with pytest.raises(ConnectionError, match=f"{server.url} does not answer"):
            connect(server)
