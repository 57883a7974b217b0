"""A server that writes solutions with answers 0 to 2, and judges that 2 is right and the larger answer better."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI

from tests.support.app_server import AppServer


def judge_text(request: str) -> str | None:
    """The verdict that a request asks for; None for a question."""
    answers = [int(digit) for digit in re.findall(r"boxed\{(\d)\}", request)]
    if "former or latter" in request:
        return "Former." if answers[0] > answers[1] else "The latter"
    if "yes or no" in request:
        return "Yes" if answers[-1:] == [2] else "**No**, it is wrong."
    return None


class JudgingServer(AppServer):
    """Serves one model, `toy`; `requests` has the text of each request, `verdicts` those that ask for one."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.verdicts: list[str] = []
        app = FastAPI()
        app.get("/v1/models")(lambda: {"data": [{"id": "toy"}]})
        app.post("/v1/chat/completions", response_model=None)(self.complete)
        app.post("/v1/completions", response_model=None)(self.complete_text)
        super().__init__(app)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers the last message, with the request's seed."""
        message = {"role": "assistant", "content": self._answer(body["messages"][-1]["content"], body)}
        return self._reply({"message": message})

    def complete_text(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers a text, as if it were a message."""
        return self._reply({"text": self._answer(body["prompt"], body), "stop_reason": None})

    def _answer(self, request: str, body: dict[str, Any]) -> str:
        self.requests.append(request)
        text = judge_text(request)
        if text is not None:
            self.verdicts.append(request)
        return text or f"The answer is \\boxed{{{(body.get('seed') or 0) % 3}}}."

    def _reply(self, choice: dict[str, Any]) -> dict[str, Any]:
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return {"choices": [{"index": 0, "finish_reason": "stop"} | choice], "usage": usage}
