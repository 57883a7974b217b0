"""Run common unmodified clients of OpenAI's API against a server, and check their answers.

python scripts/dev/check_clients.py                          starts scripts/serve.py on a free port
python scripts/dev/check_clients.py --url http://HOST:PORT   uses a running server
python scripts/dev/check_clients.py --python ENVIRONMENT/bin/python   runs the clients of another environment

A second server of ours stands in front of a scripted model that calls tools and writes JSON: agents complete there what
the bundled model is asked in vain.

Checks the clients that are installed (pip install 'reason-search[clients]', or in a separate environment, because they
pin many dependencies: pip install smolagents dspy inspect-ai 'litellm[proxy]' openai) and names those that are not.
Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

from client_frameworks import FRAMEWORK_CHECKS

MODEL = "best-of-4"
TOOL_MODEL = "majority-16"
SMALL: Any = {"search": {"n": 3}}
QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."
KEY = "unused"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": KEY}
"""Keeps the clients from connecting to anything but the server."""

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}},
}

FLAT_TOOL: Any = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
JSON_FORMAT: Any = {"type": "json_object"}

Check = Callable[[str], str]
Fields = dict[str, Any]  # of a request


def openai_sync(url: str) -> str:
    """Checks a conversation, choices, usage and our additional fields with the `openai` package."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    assert MODEL in [model.id for model in client.models.list()]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "You do sums."}, {"role": "user", "content": QUESTION}],
        n=2,
        seed=1,
        max_completion_tokens=200,
        extra_body={"search": {"n": 3}},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert 0 < (answer.usage.completion_tokens_details.reasoning_tokens or 0) < answer.usage.completion_tokens
    texts = [choice.message.content for choice in answer.choices]
    assert len(texts) == 2
    assert all(texts)
    again = client.completions.create(model=MODEL, prompt=f"Question: {QUESTION}\nSolution:\n", max_tokens=50)
    assert again.choices[0].text
    assert answer.model_extra is not None
    return f"{answer.usage.completion_tokens} tokens, tree at {answer.model_extra['search']['tree']}"


def openai_async(url: str) -> str:
    """Checks several concurrent requests."""
    from openai import AsyncOpenAI

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            many = [
                client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": QUESTION}], seed=seed)
                for seed in range(3)
            ]
            return [each.choices[0].message.content or "" for each in await asyncio.gather(*many)]

    texts = asyncio.run(ask())
    assert all(texts)
    return f"{len(texts)} answers"


def openai_streaming(url: str) -> str:
    """Checks a stream: progress as reasoning, then the answer, then the usage; the same answer as without streaming."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    request: Fields = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
    thoughts, text, usage = 0, "", None
    for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            thoughts += bool((choice.delta.model_extra or {}).get("reasoning_content"))
            text += choice.delta.content or ""
    assert thoughts >= 4
    assert usage is not None
    assert text == client.chat.completions.create(**request).choices[0].message.content
    return f"{thoughts} lines of progress, {len(text)} characters of answer"


def openai_errors(url: str) -> str:
    """Checks that refused requests raise the errors of the package."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    request: Fields = {"messages": [{"role": "user", "content": QUESTION}]}
    wrong: list[Fields] = [
        {"model": MODEL, "tools": [TOOL]},
        {"model": MODEL, "messages": [{"role": "user", "content": [IMAGE]}]},
        {"model": MODEL, "extra_body": {"search": {"widht": 3}}},
        {"model": "gpt"},
    ]
    params = [refused_field(partial(client.chat.completions.create, **(request | more))) for more in wrong]
    assert params == ["tools", "messages.0.content", "search.widht", "model"]
    assert refused_field(partial(client.responses.create, model=MODEL, input=QUESTION, tools=[FLAT_TOOL])) == "tools"
    with_format = partial(client.chat.completions.create, **request, model=MODEL, response_format=JSON_FORMAT)
    assert refused_field(with_format) == "response_format"  # the bundled model cannot write it
    return f"refused: {', '.join(params)}"


def refused_field(call: Callable[[], object]) -> str:
    """Returns the field that the server refuses in this call. Raises: AssertionError if it refuses none."""
    import openai

    try:
        call()
    except (openai.BadRequestError, openai.NotFoundError, openai.UnprocessableEntityError) as error:
        return str(error.param)
    raise AssertionError("the server accepted an unsupported field")


def langchain(url: str) -> str:
    """Checks `ChatOpenAI`, complete and as a stream, and that a tool is refused."""
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key=KEY, temperature=0.8, max_retries=0)
    messages = [SystemMessage("You do sums."), HumanMessage(QUESTION)]
    whole = model.invoke(messages)
    streamed = "".join(str(chunk.content) for chunk in model.stream(messages))
    assert whole.content == streamed != ""
    assert whole.usage_metadata["output_token_details"]["reasoning"] > 0
    assert refused_field(lambda: model.bind_tools([TOOL]).invoke(messages)) == "tools"
    return f"{whole.usage_metadata['output_tokens']} tokens; with a tool: refused"


def litellm(url: str) -> str:
    """Checks `completion`, complete and as a stream, with search settings."""
    import litellm as client

    request: Fields = {
        "model": f"openai/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": KEY,
        "messages": [{"role": "user", "content": QUESTION}],
        "extra_body": {"search": {"n": 3}},
    }
    whole = client.completion(**request)
    chunks = [chunk.choices[0].delta for chunk in client.completion(**request, stream=True)]
    assert whole.choices[0].message.content == "".join(delta.content or "" for delta in chunks) != ""
    thoughts = sum(bool(getattr(delta, "reasoning_content", None)) for delta in chunks)
    assert thoughts >= 3
    return f"{whole.usage.completion_tokens} tokens, {thoughts} lines of progress"


def openai_agents(url: str) -> str:
    """Checks OpenAI's Agents SDK: two turns without tools complete, a request with a tool is refused."""
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    model = agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    solver = agents.Agent(name="solver", instructions="You do sums.", model=model)
    first = agents.Runner.run_sync(solver, QUESTION)
    second = agents.Runner.run_sync(solver, [*first.to_input_list(), {"role": "user", "content": "And x4?"}])
    assert first.final_output
    assert second.final_output
    tool = agents.FunctionTool(
        name="add",
        description="adds",
        params_json_schema={"type": "object", "properties": {}},
        on_invoke_tool=_never_called,
    )
    with_tool = agents.Agent(name="with a tool", model=model, tools=[tool])
    assert refused_field(lambda: agents.Runner.run_sync(with_tool, QUESTION)) == "tools"
    return "two turns; with a tool: refused"


async def _never_called(context: object, arguments: str) -> str:
    raise AssertionError("a tool was called")


def lm_eval(url: str) -> str:
    """Checks lm-evaluation-harness: `local-completions` on two problems from a local file."""
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks import TaskManager

    rows = [{"question": QUESTION, "answer": "9"}, {"question": QUESTION.replace("x3", "x2"), "answer": "12"}]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problems.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = ConfigurableTask(
            config={
                "task": "sums",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(file)}, "cache_dir": folder},
                "test_split": "test",
                "output_type": "generate_until",
                "doc_to_text": "Question: {{question}}\nSolution:\n",
                "doc_to_target": "{{answer}}",
                "generation_kwargs": {"until": ["Question:"], "max_gen_toks": 120, "temperature": 1.0},
                "filter_list": [
                    {
                        "name": "boxed",
                        "filter": [
                            {"function": "regex", "regex_pattern": r"boxed\{(\d+)\}"},
                            {"function": "take_first"},
                        ],
                    }
                ],
                "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
            }
        )
        with redirect_stdout(StringIO()):
            results = simple_evaluate(
                model="local-completions",
                model_args={
                    "model": MODEL,
                    "base_url": f"{url}/v1/completions",
                    "tokenizer_backend": None,
                    "tokenized_requests": False,
                    "num_concurrent": 2,
                },
                tasks=[task],
                bootstrap_iters=0,
                task_manager=TaskManager(include_defaults=False),  # reading all of its own tasks takes minutes
            )
    assert results["n-samples"]["sums"]["effective"] == 2
    return f"exact match {results['results']['sums']['exact_match,boxed']:.2f} on 2 problems"


def openai_tools(url: str) -> str:
    """Checks a tool call and its result over both of OpenAI's APIs, complete and streamed."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    request: Fields = {"model": TOOL_MODEL, "tools": [ADD], "extra_body": SMALL}
    calling = client.chat.completions.create(messages=messages, **request).choices[0]
    assert calling.finish_reason == "tool_calls"
    (call,) = calling.message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    answer = client.chat.completions.create(messages=[*messages, calling.message, result], **request).choices[0]
    assert answer.message.content == "The sum is 3."
    chunks = client.chat.completions.create(messages=messages, stream=True, **request)
    deltas = [delta for chunk in chunks for choice in chunk.choices for delta in choice.delta.tool_calls or ()]
    assert [json.loads(delta.function.arguments) for delta in deltas] == [{"a": 1, "b": 2}]

    flat: Fields = {"type": "function", "strict": True, **ADD["function"]}
    request = {"model": TOOL_MODEL, "tools": [flat], "extra_body": SMALL}
    first = client.responses.create(input=QUESTION, **request)
    (item,) = first.output
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
    second = client.responses.create(input=[{"role": "user", "content": QUESTION}, item, output], **request)
    assert second.output_text == "The sum is 3."
    with client.responses.stream(input=QUESTION, **request) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output[0].name == "add"
    return f"4 calls, {len(kinds)} events"


def openai_structured(url: str) -> str:
    """Checks `parse` with a pydantic model over both of OpenAI's APIs."""
    from openai import OpenAI
    from pydantic import BaseModel

    class Count(BaseModel):
        count: int

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    fields: Fields = {"model": TOOL_MODEL, "extra_body": SMALL}
    chat = client.chat.completions.parse(messages=messages, response_format=Count, **fields)
    assert chat.choices[0].message.parsed == Count(count=3)
    response = client.responses.parse(input=QUESTION, text_format=Count, **fields)
    assert response.output_parsed == Count(count=3)
    return "2 models of pydantic"


def langchain_tools(url: str) -> str:
    """Checks LangChain: a bound tool is called, and structured output is an object."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Count(BaseModel):
        """How many there are."""

        count: int

    model = ChatOpenAI(model=TOOL_MODEL, base_url=f"{url}/v1", api_key=KEY, extra_body=SMALL)
    with_tool = model.bind_tools([ADD])
    question = HumanMessage(QUESTION)
    calling = with_tool.invoke([question])
    (call,) = calling.tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 1, "b": 2})
    answer = with_tool.invoke([question, calling, ToolMessage("3", tool_call_id=call["id"])])
    assert answer.content == "The sum is 3."
    assert model.with_structured_output(Count, method="json_schema").invoke(QUESTION) == Count(count=3)
    assert model.with_structured_output(Count, method="function_calling").invoke(QUESTION) == Count(count=3)
    return "a tool call, two structured outputs"


def agents_tools(url: str) -> str:
    """Checks OpenAI's Agents SDK over its default API, Responses: an agent calls a tool and answers, also streamed."""
    import agents
    import openai
    from pydantic import BaseModel

    class Count(BaseModel):
        count: int

    calls: list[tuple[int, int]] = []

    async def add(context: object, arguments: str) -> str:
        given = json.loads(arguments)
        calls.append((given["a"], given["b"]))
        return str(given["a"] + given["b"])

    tool = agents.FunctionTool(
        name="add", description="adds", params_json_schema=ADD["function"]["parameters"], on_invoke_tool=add
    )
    settings = agents.ModelSettings(extra_body=SMALL)
    agents.set_tracing_disabled(True)

    async def run_agents() -> None:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        agents.set_default_openai_client(client, use_for_tracing=False)  # with its default API
        adder = agents.Agent(
            name="adder", instructions="You add.", model=TOOL_MODEL, tools=[tool], model_settings=settings
        )
        assert (await agents.Runner.run(adder, QUESTION)).final_output == "The sum is 3."
        streamed = agents.Runner.run_streamed(adder, QUESTION)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == "The sum is 3."
        counter = agents.Agent(name="counter", model=TOOL_MODEL, output_type=Count, model_settings=settings)
        assert (await agents.Runner.run(counter, QUESTION)).final_output == Count(count=3)

    asyncio.run(run_agents())
    assert calls == [(1, 2)] * 2
    return "two runs with a tool, one with an output type"


class ScriptedModel(BaseHTTPRequestHandler):
    """A server of OpenAI's protocol whose model calls the first tool, says what the tool said, or counts in JSON.

    Every third candidate is wrong: votes must drop it.
    """

    turn = itertools.count()

    def do_GET(self) -> None:
        """Lists the one model."""
        self._send({"object": "list", "data": [{"id": "scripted"}]})

    def do_POST(self) -> None:
        """Generates."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_wrong = next(self.turn) % 3 == 2
        last, tools = body["messages"][-1], body.get("tools")
        message: Fields = {"role": "assistant", "content": "The sum is 3."}
        has_called = any(each["role"] == "assistant" for each in body["messages"])
        endings = [tool for tool in tools or () if tool["function"]["name"] == "final_answer"]
        if tools and last["role"] != "tool" and (endings or not has_called):
            # smolagents shows what a tool said as a user's message, and ends with a tool
            function = (endings if has_called else tools)[0]["function"]
            arguments = {"add": {"a": 1, "b": 2}, "final_answer": {"answer": "3"}}.get(function["name"], {"count": 3})
            text = '{"a": 1' if is_wrong else json.dumps(arguments)
            call = {"id": "x", "type": "function", "function": {"name": function["name"], "arguments": text}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        elif body.get("response_format"):
            message["content"] = "three" if is_wrong else '{"count": 3}'
        finish = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        if body.get("stream"):
            chunk = {"choices": [{"index": 0, "delta": message, "finish_reason": finish}], "usage": usage}
            self._send_data(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")
            return
        self._send({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage})

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    def _send(self, body: object) -> None:
        self._send_data(json.dumps(body).encode(), "application/json")

    def _send_data(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def start_scripted_model() -> Iterator[list[str]]:
    """Starts the scripted model; yields the settings of a server of ours in front of it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield ["engine=openai", f"engine.urls=[http://127.0.0.1:{server.server_port}/v1]", "engine.model=scripted"]
        server.shutdown()


TOOL_CHECKS: dict[str, tuple[str, Check]] = {
    "openai, tools": ("openai", openai_tools),
    "openai, structured": ("openai", openai_structured),
    "langchain, tools": ("langchain_openai", langchain_tools),
    "openai agents, tools": ("agents", agents_tools),
    **FRAMEWORK_CHECKS,
}
"""Checks of a server in front of a model that calls tools, as `CHECKS`."""

CHECKS: dict[str, tuple[str, Check]] = {
    "openai, sync": ("openai", openai_sync),
    "openai, async": ("openai", openai_async),
    "openai, streaming": ("openai", openai_streaming),
    "openai, errors": ("openai", openai_errors),
    "langchain": ("langchain_openai", langchain),
    "litellm": ("litellm", litellm),
    "openai agents": ("agents", openai_agents),
    "lm-eval": ("lm_eval", lm_eval),
}
"""Each check with the package that it needs; it takes the address of the server and returns a summary."""


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("settings", nargs="*", help="settings of scripts/serve.py, where it is started")
    top.add_argument("--url", help="a server that is running")
    top.add_argument("--tools", action="store_true", help="with --url: it stands in front of the scripted model")
    top.add_argument("--python", default=sys.executable, help="interpreter of the environment that has the clients")
    args = top.parse_intermixed_args()
    if args.url:
        return check_all(args.url.rstrip("/"), TOOL_CHECKS if args.tools else CHECKS)

    # here: an environment of the clients need not have this project
    from reason.bench.serving import start_server

    def check_in_environment(url: str, *more: str) -> int:
        return subprocess.run([args.python, __file__, "--url", url, *more], check=False).returncode

    with start_server(*args.settings) as url:
        failed = check_in_environment(url)
    with start_scripted_model() as settings, start_server(*settings) as url:
        return failed | check_in_environment(url, "--tools")


def check_all(url: str, checks: Mapping[str, tuple[str, Check]]) -> int:
    """Runs the checks of all installed clients; returns 1 if any fails."""
    os.environ |= ENVIRONMENT
    failed = False
    for name, (package, check) in checks.items():
        if importlib.util.find_spec(package) is None:
            print(f"not installed  {name}: no module {package}", flush=True)
            continue
        try:
            print(f"ok       {name}: {check(url)}", flush=True)
        except Exception as error:
            failed = True
            print(f"FAILED   {name}: {type(error).__name__}: {error}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
