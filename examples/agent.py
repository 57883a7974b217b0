"""An agent on the openai package, unmodified: it asks, and asks again with more search where the answer is not trusted.

reason serve                                             in another terminal
python examples/agent.py                                 or: python examples/agent.py http://HOST:PORT/v1
"""

import sys

from openai import OpenAI

PRESETS = ("best-of-4", "beam-16")  # from cheap to expensive; the next one is used if the answer is not trusted


def ask(client: OpenAI, question: str) -> str:
    """Returns the text of the first search whose answer is trusted, else of the last."""
    text = ""
    for preset in PRESETS:
        completion = client.chat.completions.create(
            model=preset, messages=[{"role": "user", "content": question}], extra_body={"timeout": 60}
        )
        text = completion.choices[0].message.content or ""
        search = (completion.model_extra or {})["search"]
        tokens = completion.usage.completion_tokens if completion.usage else 0
        print(f"{preset}: score {search['score']}, votes {search['votes']}, {tokens} tokens")
        if search["is_trusted"]:
            break
    return text


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    client = OpenAI(base_url=url, api_key="unused")
    for first in (3, 7):
        rule = "Each next term is 5 times the one before plus 8, modulo 19."
        print(ask(client, f"x0 = {first}. {rule} Find x3."))


if __name__ == "__main__":
    main()
