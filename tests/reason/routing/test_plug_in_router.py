"""A router of a user is added with two files, a module and a yaml, and routes through every layer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.plug_ins import solve_with_plug_in

MODULE = '''
from dataclasses import dataclass

from decoding.validation import require_count
from reason.routing.base import RoutingDecision, StatelessRouter


@dataclass(frozen=True, kw_only=True)
class LengthRouter(StatelessRouter):
    """The target model writes steps whose proposal has more than `most` tokens."""

    most: int = 30

    def __post_init__(self):
        require_count("most", self.most)

    async def choose_author(self, context):
        length = len(context.small_step.tokens)
        return RoutingDecision("target" if length > self.most else "draft", float(length))


class ScoreRouter(LengthRouter):
    needs_scorer = True
'''
OPTION = ("router/mine.yaml", "_target_: mine.LengthRouter\nmost: 30\n")
QUESTION = "question='x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.'"
SETTINGS = ("router=mine", QUESTION, "search.n=2", "speculation=off")


def test_router_of_two_files_routes(tmp_path: Path) -> None:
    done = solve_with_plug_in(tmp_path, MODULE, OPTION, *SETTINGS, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["router"] == "mine"
    (trees,) = (tmp_path / "run").glob("trees*")
    text = "".join(file.read_text() for file in ([trees] if trees.is_file() else sorted(trees.iterdir())))
    assert '"draft"' in text
    assert '"target"' in text


def test_wrong_setting_of_the_plug_in_is_one_sentence_with_the_setting(tmp_path: Path) -> None:
    done = solve_with_plug_in(tmp_path, MODULE, OPTION, *SETTINGS, "router.most=-1")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "router.most must be an int >= 0, got -1" in done.stderr


def test_needed_scores_are_checked_by_the_class_attribute_of_the_router(tmp_path: Path) -> None:
    settings = ("router._target_=mine.ScoreRouter", "scorer=none", "search=self_consistency")
    done = solve_with_plug_in(tmp_path, MODULE, OPTION, *SETTINGS, *settings)
    assert done.returncode == 2
    assert "this router reads scores and scorer=none gives none" in done.stderr
