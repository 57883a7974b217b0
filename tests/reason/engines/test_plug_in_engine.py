"""An engine of a user is added with two files, a module and a yaml, and solves through every layer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.plug_ins import solve_with_plug_in

MODULE = '''
from dataclasses import dataclass

from decoding.core import Generation, Usage
from decoding.stats import EngineStats
from reason.engines.base import EngineSettings


@dataclass(frozen=True, kw_only=True)
class ParrotSettings(EngineSettings):
    """Repeats `words` for every request."""

    words: str = "I do not know."

    def __post_init__(self):
        if not self.words:
            raise ValueError("words must not be empty, got ''")

    def open_engine(self, checkpoint, *, tokenizer, speculation):
        return Parrot(tokenizer.encode(self.words, add_special_tokens=False), tokenizer.eos_token_id)


class Parrot:
    def __init__(self, tokens, end):
        self._tokens = (*tokens, end)
        self.stats = EngineStats()

    async def generate(self, requests):
        usage = Usage(calls=1, tokens=len(self._tokens))
        zeros = (0.0,) * len(self._tokens)
        return [Generation(tokens=self._tokens, logprobs=zeros, finish="eos", usage=usage) for _ in requests]

    def close(self):
        pass

    def assert_invariants(self):
        pass
'''
OPTION = """
_target_: mine.ParrotSettings
words: "The answer is \\\\boxed{42}."
"""


SETTINGS = ("engine=parrot", "question=6*7?", "search=self_consistency", "search.n=3", "scorer=none")


def solve(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return solve_with_plug_in(folder, MODULE, ("engine/parrot.yaml", OPTION), *SETTINGS, *overrides)


def test_engine_of_two_files_solves(tmp_path: Path) -> None:
    done = solve(tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["engine"] == "parrot"
    assert "42" in done.stdout


def test_wrong_setting_of_the_plug_in_is_one_sentence_with_the_setting(tmp_path: Path) -> None:
    done = solve(tmp_path, "engine.words=''")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "engine.words must not be empty, got ''" in done.stderr


def test_class_without_engine_settings_is_refused(tmp_path: Path) -> None:
    done = solve(tmp_path, "engine._target_=mine.Parrot", "~engine.words", "+engine.tokens=[]", "+engine.end=0")
    assert done.returncode == 2
    assert "engine._target_ must be a subclass of reason.engines.base.EngineSettings" in done.stderr
