"""Checks of agent frameworks, each with a plain answer, a tool call and a structured answer where it can.

The server that they get stands in front of the scripted model of check_clients.py. The frameworks pin many packages:
an environment for each, or one for all of them (check_clients.py --python), keeps them apart from ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

MODEL = "majority-16"
SMALL: Any = {"search": {"n": 3}}
QUESTION = "What is 1 + 2?"
ANSWER = "The sum is 3."
KEY = "unused"
COUNT_SCHEMA: Any = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}
COUNT_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "count", "strict": True, "schema": COUNT_SCHEMA}}
ADD_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
START_S = 300

Check = Callable[[str], str]


def smolagents(url: str) -> str:
    """Checks smolagents: its model answers and writes JSON, and its tool-calling agent calls a tool and ends."""
    from smolagents import ChatMessage, OpenAIServerModel, Tool, ToolCallingAgent

    calls: list[tuple[int, int]] = []

    class Add(Tool):  # type: ignore[misc]  # the package is not there for the type checker
        name = "add"
        description = "Adds two numbers."
        inputs = {  # noqa: RUF012  # the framework checks this class attribute
            "a": {"type": "integer", "description": "a number"},
            "b": {"type": "integer", "description": "a number"},
        }
        output_type = "integer"

        def forward(self, a: int, b: int) -> int:
            calls.append((a, b))
            return a + b

    model = OpenAIServerModel(model_id=MODEL, api_base=f"{url}/v1", api_key=KEY, extra_body=SMALL)
    question = [ChatMessage(role="user", content=[{"type": "text", "text": QUESTION}])]
    assert model.generate(question).content == ANSWER
    assert json.loads(model.generate(question, response_format=COUNT_FORMAT).content) == {"count": 3}
    agent = ToolCallingAgent(tools=[Add()], model=model, max_steps=4, verbosity_level=0)
    assert str(agent.run(QUESTION)) == "3"
    assert calls == [(1, 2)]
    return "an answer, an agent with a tool, a structured answer"


def dspy(url: str) -> str:
    """Checks DSPy: an answer, a tool call in the model's own form, and a typed prediction as JSON."""
    import dspy as client

    fields: Any = {"api_base": f"{url}/v1", "api_key": KEY, "cache": False, "extra_body": SMALL}
    model = client.LM(f"openai/{MODEL}", **fields)
    (text,) = model(QUESTION)
    assert (text["text"] if isinstance(text, dict) else text) == ANSWER
    # it does not know that this model takes a schema, and leaves the field out unless it is given
    in_json = client.LM(f"openai/{MODEL}", **fields, response_format=COUNT_FORMAT)
    with client.context(lm=in_json, adapter=client.JSONAdapter()):
        assert client.Predict("question -> count: int")(question=QUESTION).count == 3
    (reply,) = model(QUESTION, tools=[ADD_TOOL])
    (call,) = reply["tool_calls"]
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
    return "an answer, a tool call, a typed prediction"


def inspect(url: str) -> str:
    """Checks Inspect: an evaluation of one sample whose solver calls a tool, and a structured answer."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import Tool, tool
    from inspect_ai.util import JSONSchema

    calls: list[tuple[int, int]] = []

    @tool  # type: ignore[untyped-decorator]  # the package is not there for the type checker
    def add() -> Tool:
        async def execute(a: int, b: int) -> str:
            """Adds two numbers.

            Args:
                a: a number
                b: a number
            """
            calls.append((a, b))
            return str(a + b)

        return execute

    config = GenerateConfig(extra_body=SMALL, max_retries=0)
    model = get_model(f"openai/{MODEL}", base_url=f"{url}/v1", api_key=KEY, config=config, responses_api=False)
    assert asyncio.run(model.generate(QUESTION)).completion == ANSWER
    task = Task(dataset=[Sample(input=QUESTION, target="3")], solver=[use_tools(add()), generate()], scorer=includes())
    with tempfile.TemporaryDirectory() as folder:
        (log,) = eval(task, model=model, log_dir=folder, display="none")
    assert log.status == "success", log.error
    assert calls == [(1, 2)]
    accuracy = log.results.scores[0].metrics["accuracy"].value
    assert accuracy == 1
    count = JSONSchema(type="object", properties={"count": JSONSchema(type="integer")}, required=["count"])
    structured = GenerateConfig(
        extra_body=SMALL, response_schema=ResponseSchema(name="count", json_schema=count), max_retries=0
    )
    model = get_model(f"openai/{MODEL}", base_url=f"{url}/v1", api_key=KEY, config=structured, responses_api=False)
    assert json.loads(asyncio.run(model.generate(QUESTION)).completion) == {"count": 3}
    return "an answer, an evaluation with a tool, a structured answer"


def litellm_proxy(url: str) -> str:
    """Checks LiteLLM's proxy in front of the server: an answer, a tool call and a structured answer through both."""
    from openai import OpenAI

    with start_proxy(url) as proxy:
        client = OpenAI(base_url=proxy, api_key=KEY, max_retries=0)
        ask: Any = {"model": "reason", "messages": [{"role": "user", "content": QUESTION}], "extra_body": SMALL}
        assert client.chat.completions.create(**ask).choices[0].message.content == ANSWER
        called = client.chat.completions.create(**ask, tools=[ADD_TOOL])
        (call,) = called.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
        structured = client.chat.completions.create(**ask, response_format=COUNT_FORMAT)
        assert json.loads(structured.choices[0].message.content) == {"count": 3}
    return "an answer, a tool call, a structured answer"


@contextmanager
def start_proxy(url: str) -> Iterator[str]:
    """Starts LiteLLM's proxy with the server at `url` as its only model; yields its address with the version."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = shutil.which("litellm", path=str(Path(sys.executable).parent))
    assert program is not None, "the command litellm is not there: pip install 'litellm[proxy]'"
    model = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": KEY}
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder, "config.yaml"), Path(folder, "log")
        config.write_text(json.dumps({"model_list": [{"model_name": "reason", "litellm_params": model}]}))
        command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        # only this process reaches the proxy, so that it needs no key
        environment = os.environ | {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)
        try:
            _await_server(f"http://127.0.0.1:{port}/health/liveliness", process, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


def _await_server(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until something answers. Raises: RuntimeError with the end of the log."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urlopen(address, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the proxy did not start: {log.read_text(errors='replace')[-600:]}")


FRAMEWORK_CHECKS: dict[str, tuple[str, Check]] = {
    "smolagents": ("smolagents", smolagents),
    "dspy": ("dspy", dspy),
    "inspect": ("inspect_ai", inspect),
    "litellm proxy": ("litellm", litellm_proxy),
}
"""Each check with the package that it needs, as `TOOL_CHECKS` of check_clients.py."""
