"""Random checkpoints and two problems in the layouts of the hub, for every experiment on a paper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.prm_cases import save_qwen, save_rlhflow, save_skywork
from tests.support.tiny_writer import save_writer

CHAT = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Then that. {% endif %}"
)


class Checkpoints(NamedTuple):
    """Folders of a chat model, of reward models by the option of `scorer`, and of a file of problems by task."""

    writer: Path
    rewards: Mapping[str, Path]
    problems: Mapping[str, Path]


def save_checkpoints(home: Path) -> Checkpoints:
    writer = save_writer(home / "writer")
    file = writer / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": CHAT}))
    save = {"rlhflow_prm": save_rlhflow, "qwen_prm": save_qwen, "skywork_prm": save_skywork}
    for name, save_reward in save.items():
        save_reward(home / name)
    rows = [{"problem": f"{i} + 1 = ?", "question": f"{i} + 1 = ?", "answer": str(i + 1)} for i in range(3)]
    (home / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    choices = [{"question": f"{i}?", "choices": ["1", "2", "3", "4"], "answer": "A"} for i in range(3)]
    (home / "choices.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in choices))
    sums = home / "sums.jsonl"
    return Checkpoints(
        writer,
        {name: home / name for name in save},
        {"math500": sums, "aime": sums, "gpqa": home / "choices.jsonl"},
    )
