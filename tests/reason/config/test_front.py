"""`search=auto` takes the measured search that is most accurate within the budget, and says why, or what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from reason import ConfigError
from reason.build import from_config
from reason.config.compose import compose_settings, load_option
from reason.config.front import AutoSearch, FrontEntry, choose_search, read_front, write_front
from reason.runs.resume import hash_settings
from reason.settings.validate import validate_settings
from tests.support.paths import ROOT

ROW = FrontEntry(
    search="ets", settings=("search.penalty=2",), width=16, samples=16.5, tokens=1800.0, seconds=1.5, kept_kv=300.0,
    accuracy=0.5, low=0.4, high=0.6, problems=200, task="synthetic", model="bundled", thinking=False, scorer="prm",
    source="report.md",
)  # fmt: skip
BUDGET = AutoSearch(n=16, tokens=None, thinking=False, scorer="prm", model="bundled", task="synthetic", given={})

row_lists = st.lists(
    st.builds(
        lambda **changes: replace(ROW, **changes),
        samples=st.floats(1, 300),
        tokens=st.floats(100, 30_000),
        accuracy=st.floats(0, 1),
        thinking=st.booleans(),
        scorer=st.sampled_from(["prm", "judge", None]),
        model=st.sampled_from(["bundled", "other"]),
    ),
    min_size=1,
    max_size=12,
)


@given(row_lists, st.integers(1, 256), st.one_of(st.none(), st.integers(100, 30_000)), st.sampled_from(["prm", "none"]))
def test_chosen_search_fits_and_nothing_that_counts_is_more_accurate(
    rows: list[FrontEntry], n: int, tokens: int | None, scorer: str
) -> None:
    budget = replace(BUDGET, n=n, tokens=tokens, scorer=scorer)
    try:
        chosen, _ = choose_search(rows, budget)
    except ConfigError:
        fitting = [r for r in rows if not r.thinking and (scorer != "none" or r.scorer is None)]
        alike = [r for r in fitting if r.scorer == scorer] or fitting
        assert not any(budget.affords(r) for r in alike if r.model == "bundled")
        return
    assert not chosen.thinking
    assert chosen.samples <= 1.1 * n
    assert tokens is None or chosen.tokens <= tokens
    assert scorer != "none" or chosen.scorer is None
    like_it = [r for r in rows if (r.thinking, r.scorer, r.model) == (False, chosen.scorer, chosen.model)]
    assert all(r.accuracy <= chosen.accuracy for r in like_it if budget.affords(r))


def test_table_that_was_written_is_read_again(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, settings=("step=fixed_length", "search.note=a b"), scorer=None, thinking=True)]
    write_front(tmp_path / "new" / "front.yaml", rows)
    assert read_front(tmp_path / "new" / "front.yaml") == rows


def build_row(search: str, width: int, scorer: str | None, model: str, task: str) -> FrontEntry:
    return replace(ROW, search=search, width=width, scorer=scorer, model=model, task=task)


some_names = st.sampled_from(["one", "other"])
measured_rows = st.builds(
    build_row, some_names, st.integers(1, 9), st.sampled_from(["prm", None]), some_names, some_names
)


@given(st.lists(st.lists(measured_rows, min_size=1, max_size=5), min_size=2, max_size=4))
def test_rows_of_another_origin_stay_in_a_table(tables: list[list[FrontEntry]]) -> None:
    with TemporaryDirectory() as folder:
        for rows in tables:
            write_front(Path(folder, "front.yaml"), rows)
        left = read_front(Path(folder, "front.yaml"))
    origins = {(row.model, row.scorer, row.task): rows for rows in tables for row in rows}  # the last table with it
    for origin, rows in origins.items():
        assert [row for row in left if row.origin == origin] == [row for row in rows if row.origin == origin]
    assert {row.origin for row in left} == set(origins)


def test_broken_table_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "front.yaml").write_text("mine: 1\n")
    with pytest.raises(ConfigError, match="it has no list `searches`"):
        write_front(tmp_path / "front.yaml", [ROW])
    assert (tmp_path / "front.yaml").read_text() == "mine: 1\n"


def test_table_of_the_package_composes_to_searches_that_exist() -> None:
    rows = read_front(None)
    assert {row.thinking for row in rows} == {True, False}
    for row in rows:
        model = "model=thinker" if row.thinking else "model=bundled"
        scorer = [] if row.scorer is None or "scorer" in " ".join(row.settings) else [f"scorer={row.scorer}"]
        plan = validate_settings(*compose_settings([model, *scorer, *row.overrides]))
        assert plan.names["search"] == row.search


def test_settings_are_those_of_the_chosen_search_and_say_why(tmp_path: Path) -> None:
    write_front(tmp_path / "front.yaml", [ROW, replace(ROW, search="dvts", settings=(), width=4, samples=4.0)])
    settings, choices = compose_settings(["search=auto", f"search.front={tmp_path / 'front.yaml'}", "seed=3"])
    plain, plain_choices = compose_settings(["search=ets", "search.n=16", "search.penalty=2", "seed=3"])
    assert choices == plain_choices
    choice: dict[str, Any] = settings.pop("auto")
    assert settings == plain
    assert choice["search"] == "ets search.penalty=2 search.n=16"
    assert "0.500 (0.400 to 0.600) right with 1,800 tokens" in choice["why"]
    assert hash_settings(settings | {"auto": choice}) == hash_settings(plain)
    few = compose_settings(["search=auto", f"search.front={tmp_path / 'front.yaml'}", "search.n=5"])[0]
    assert few["search"]["n"] == 4


def test_run_without_scores_gets_the_vote_of_the_package_and_one_with_scores_does_not() -> None:
    """The vote was measured on data of its own, on which no search with scores is in the table."""
    server = ["engine=openai", "engine.model=m", "search=auto"]
    for overrides in (server, ["search=auto", "scorer=none"]):
        settings, choices = compose_settings(overrides)
        assert (choices["search"], settings["search"]["n"]) == ("self_consistency", 16)
        assert "benchmarks/aime_bundled.json" in settings["auto"]["why"]
        validate_settings(settings, choices)
    for task in ([], ["+task=synthetic_aime"]):
        assert compose_settings(["search=auto", *task])[1]["search"] != "self_consistency"


def test_vote_of_the_package_has_the_figures_of_its_report() -> None:
    (row,) = [row for row in read_front(None) if row.source.endswith(".json")]
    report = json.loads((ROOT / row.source).read_text(encoding="utf-8"))
    vote = report["metrics"][f"maj@{row.width}"]
    assert row.accuracy == pytest.approx(vote["value"], abs=1e-4)
    assert (row.high - row.low) / 2 == pytest.approx(1.96 * vote["stderr"], abs=1e-4)
    assert row.tokens == pytest.approx(report["spent"]["tokens"] / report["problems"], abs=0.1)


def test_runs_without_scores_are_refused_where_all_searches_need_them(tmp_path: Path) -> None:
    write_front(tmp_path / "front.yaml", [ROW])
    with pytest.raises(ConfigError, match="scorer=none gives no scores, and all that were measured with a model that"):
        compose_settings(["search=auto", "scorer=none", f"search.front={tmp_path / 'front.yaml'}"])


def test_sentence_says_where_the_run_is_another_one() -> None:
    assert "yours" not in choose_search([ROW], BUDGET)[1]
    why = choose_search([ROW], replace(BUDGET, scorer="judge", task="aime"))[1]
    assert why.endswith("(report.md); yours is scorer=judge, task=aime, so measure your own with --write-front")


def test_setting_that_the_user_gave_rules_out_searches_with_another_value() -> None:
    other = replace(ROW, settings=("search.penalty=1",), accuracy=0.3)
    assert choose_search([ROW, other], replace(BUDGET, given={"search.penalty": "1"}))[0] == other


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["scorer=none", "search.n=4"], "self_consistency search.n=16, needs 1,198 tokens, 16.0 solutions"),
        (
            ["search.n=2"],
            r"the cheapest of \d+ that would fit, .* needs 4\d\d tokens, .* and the budget is 2 solutions",
        ),
        (["budget.tokens=100"], "and the budget is 100 tokens"),
        (["search.n=0"], "search.n must be an int >= 1 or null, got 0"),
        (["search.front=3"], "search.front must be the path of a file, got 3"),
        (["search.front=/no/such/file"], "search.front: /no/such/file is no table of measured searches"),
    ],
)
def test_budget_without_a_search_is_refused_with_what_is_missing(overrides: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        compose_settings(["search=auto", *overrides])


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"width": 16', '"width": "wide"', "width of ets must be int, got 'wide'"),
        ('"width": 16, ', "", "a search has the fields"),
        ('"search.penalty=2"', '"penalty"', "settings of ets must be NAME=VALUE, got penalty"),
        ("searches:", "found:", "it has no list `searches`"),
        ("searches:", "searches: {", "is no table of measured searches"),
    ],
)
def test_broken_table_is_refused(tmp_path: Path, old: str, new: str, error: str) -> None:
    file = tmp_path / "front.yaml"
    write_front(file, [ROW])
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=error):
        read_front(file)


def test_composed_settings_with_auto_left_in_them_are_refused() -> None:
    config = compose_settings([])[0] | {"search": load_option("search", "auto") | {"sampling": {}}}
    with pytest.raises(ConfigError, match="search=auto chooses from settings as they are typed"):
        from_config(OmegaConf.create(config))
