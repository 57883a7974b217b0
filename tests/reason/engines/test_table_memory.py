"""`speculation.remember`: a run begins with what earlier ones have learned, and a wrong folder ends it early."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import reason
from reason import ConfigError
from reason.config.compose import compose_settings
from reason.engines.speculation import validate_speculation
from reason.models.checkpoint import find_model

SETTINGS = ("search=self_consistency", "search.n=2", "controller=fixed", "controller.nodes=4", "engine.kv_mib=64")
QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


def tokens_per_forward(*settings: str) -> float:
    with reason.load(*SETTINGS, *settings) as solver:
        solution = solver.solve(QUESTION)
    return solution.usage.tokens / solution.usage.forwards


def tables_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_second_run_drafts_better_and_leaves_what_it_has_learned(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    remember = f"speculation.remember={folder}"
    first = tokens_per_forward(remember)
    (before,) = tables_of(folder)
    data = before.read_bytes()
    second = tokens_per_forward(remember, "seed=1")
    assert second > 1.3 * first
    assert second > 1.3 * tokens_per_forward("seed=1")
    assert len(tables_of(folder)) == 2
    assert before.read_bytes() == data
    tokens_per_forward(remember, "seed=2")  # makes one of both, and leaves its own
    assert len(tables_of(folder)) == 2
    assert not before.exists()


def test_run_saves_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a killed one leaves something."""
    monkeypatch.setattr("reason.engines.speculation.SAVING_S", 0.0)
    with reason.load(*SETTINGS, f"speculation.remember={tmp_path}") as solver:
        solver.solve(QUESTION)
        (file,) = tables_of(tmp_path)
        before = file.read_bytes()
        solver.solve(QUESTION.replace("3", "4"))
        assert file.read_bytes() != before
    assert tables_of(tmp_path) == [file]


def test_weights_are_compared_and_not_the_names_of_folders(tmp_path: Path) -> None:
    """The checkpoints of a training run all have the same name."""
    folders = [tmp_path / step / "hf" for step in ("1", "2")]
    for folder in folders:
        shutil.copytree(find_model("bundled:target").source, folder)
    weights = bytearray((folders[1] / "model.safetensors").read_bytes())
    for at in range(len(weights) // 2, len(weights), 2000):  # the lowest bit of every thousandth weight
        weights[at - at % 2] ^= 1
    (folders[1] / "model.safetensors").write_bytes(weights)
    remember = f"speculation.remember={tmp_path / 'tables'}"
    tokens_per_forward(remember, f"model.path={folders[0]}")
    tokens_per_forward(remember, f"model.path={folders[0]}")
    with pytest.raises(ConfigError, match=r"was learned with another model: hf with .*, and here it is hf with"):
        tokens_per_forward(remember, f"model.path={folders[1]}")
    tokens_per_forward(remember, f"model.path={folders[1]}", "speculation.remember_decay=0.5")


def test_remembered_table_does_not_change_the_text(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        with reason.load(*SETTINGS, f"speculation.remember={tmp_path}") as solver:
            texts.append(solver.solve(QUESTION).tree.to_dict())
    assert texts[0] == texts[1]


def test_foreign_and_broken_tables_end_the_run_and_stay_where_they_are(tmp_path: Path) -> None:
    tokens_per_forward(f"speculation.remember={tmp_path}")
    (file,) = tables_of(tmp_path)
    data = file.read_bytes()
    with pytest.raises(ConfigError, match=r"^speculation\.remember: .* was learned with another model: target "):
        tokens_per_forward(f"speculation.remember={tmp_path}", "model=thinker", "scorer=none")
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ConfigError, match=r"^speculation\.remember: .* is broken: .*; remove the file"):
        tokens_per_forward(f"speculation.remember={tmp_path}")
    assert tables_of(tmp_path) == [file]


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
