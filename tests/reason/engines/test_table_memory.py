"""`speculation.remember`: a run begins with what earlier ones have learned, and a wrong folder ends it early."""

from __future__ import annotations

from pathlib import Path

import pytest

import reason
from reason import ConfigError
from reason.config.compose import compose_settings
from reason.engines.speculation import validate_speculation

SETTINGS = ("search=self_consistency", "search.n=2", "controller=fixed", "controller.nodes=4", "engine.kv_mib=64")
QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


def tokens_per_forward(*settings: str) -> float:
    with reason.load(*SETTINGS, *settings) as solver:
        solution = solver.solve(QUESTION)
    return solution.usage.tokens / solution.usage.forwards


def test_second_run_drafts_better_and_leaves_one_table(tmp_path: Path) -> None:
    remember = f"speculation.remember={tmp_path / 'tables'}"
    first = tokens_per_forward(remember)
    (before,) = (tmp_path / "tables").iterdir()
    second = tokens_per_forward(remember, "seed=1")
    (after,) = (tmp_path / "tables").iterdir()
    assert before != after
    assert second > 1.3 * first
    assert second > 1.3 * tokens_per_forward("seed=1")


def test_remembered_table_does_not_change_the_text(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        with reason.load(*SETTINGS, f"speculation.remember={tmp_path}") as solver:
            texts.append(solver.solve(QUESTION).tree.to_dict())
    assert texts[0] == texts[1]


def test_foreign_and_broken_tables_end_the_run_and_stay_where_they_are(tmp_path: Path) -> None:
    tokens_per_forward(f"speculation.remember={tmp_path}")
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    with pytest.raises(ConfigError, match=r"^speculation\.remember: .* was learned with another model: target,"):
        tokens_per_forward(f"speculation.remember={tmp_path}", "model=thinker", "scorer=none")
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ConfigError, match=r"^speculation\.remember: .* is broken: .*; remove the file"):
        tokens_per_forward(f"speculation.remember={tmp_path}")
    assert [other.name for other in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["speculation.remember_decay=0", "speculation.remember=x"], r"^speculation\.remember_decay must be .* got 0"),
        (["speculation.remember={file}"], r"^speculation\.remember must be a folder, .* is a file$"),
        (
            ["speculation=suffix", "+speculation.remember=x"],
            r"^speculation\.remember keeps an n-gram table, and SuffixDecoding has none; choose speculation=stand$",
        ),
    ],
)
def test_wrong_setting_is_named_before_a_model_loads(tmp_path: Path, settings: list[str], message: str) -> None:
    file = tmp_path / "file"
    file.touch()
    config, _ = compose_settings([setting.format(file=file) for setting in settings])
    with pytest.raises(ConfigError, match=message):
        validate_speculation(config)
