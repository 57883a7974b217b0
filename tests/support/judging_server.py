"""A chat server that writes solutions with answers 0 to 2, and judges that 2 is right and the larger answer better."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import uvicorn
from fastapi import FastAPI

from reason.engines.launcher.server_command import find_free_port


def judge_text(request: str) -> str | None:
    """The verdict that a request asks for; None for a question."""
    answers = [int(digit) for digit in re.findall(r"boxed\{(\d)\}", request)]
    if "former or latter" in request:
        return "Former." if answers[0] > answers[1] else "The latter"
    if "yes or no" in request:
        return "Yes" if answers[-1:] == [2] else "**No**, it is wrong."
    return None


class JudgingServer:
    """Serves one model, `toy`; `requests` has the text of each request, `verdicts` those that ask for one."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.verdicts: list[str] = []
        app = FastAPI()
        app.get("/v1/models")(lambda: {"data": [{"id": "toy"}]})
        app.post("/v1/chat/completions", response_model=None)(self.complete)
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}/v1"
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers the last message, with the request's seed."""
        request = body["messages"][-1]["content"]
        self.requests.append(request)
        text = judge_text(request)
        if text is not None:
            self.verdicts.append(request)
        answer = (body.get("seed") or 0) % 3
        message = {"role": "assistant", "content": text or f"The answer is \\boxed{{{answer}}}."}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
