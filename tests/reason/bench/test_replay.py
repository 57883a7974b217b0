"""Replay of drafters on recorded texts: the counts, the feedback, and the format of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from decoding.core import SamplingParams
from decoding.speculation.draft import Draft, SamplingRecord
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, Drafter, DraftPlan, Feedback
from reason.bench.accepted_paths import AcceptedPathSource, learn_accepted_paths
from reason.bench.replay import (
    DRAFTERS,
    EncodedProblem,
    RecordedProblem,
    encode_recordings,
    read_recordings,
    recorded_feedback,
    replay_drafter,
    replay_problems,
    replay_text,
    validate_names,
)
from reason.config.compose import compose_settings, list_options
from reason.engines.speculation import validate_speculation
from tests.support.paths import ROOT

TEXT = tuple(b"the cat sat on the mat, and then the dog sat on the cat")


@pytest.mark.parametrize("name", DRAFTERS)
def test_replay_commits_every_token_once(name: str) -> None:
    drafter = TreeDrafter(AcceptedPathSource(DRAFTERS[name]()), draw="likely")
    steps = list(replay_text(drafter, (1, 2), TEXT, group="g", request=1, n=8))
    assert sum(steps) == len(TEXT)
    assert min(steps) >= 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_replay_of_a_repeated_text_accepts_more_drafts(name: str) -> None:
    row = replay_drafter(name, [EncodedProblem((1, 2), (TEXT, TEXT, TEXT))], nodes=16)
    first, second, third = row["by_trajectory"]
    assert row["tokens"] == 3 * len(TEXT)
    if name == "prompt_lookup":  # knows its own text alone
        assert first == second == third > 1
    else:
        assert second > first
    if name in ("stand", "published_stand", "suffix"):
        assert third > 4


LOOKUPS = [
    name
    for name in list_options("speculation")
    if name != "off" and not validate_speculation(compose_settings([f"speculation={name}"])[0]).loads_a_model
]


def make_drafter(name: str) -> Drafter:
    return validate_speculation(compose_settings([f"speculation={name}"])[0]).make_speculation(None, "").drafter


@pytest.mark.parametrize("name", LOOKUPS)
def test_every_drafter_without_a_model_replays_and_accepts_what_was_written_before(name: str) -> None:
    row = replay_problems(name, make_drafter(name), [EncodedProblem((1, 2), (TEXT, TEXT, TEXT))], nodes=16)
    assert row["tokens"] == 3 * len(TEXT)
    assert row["by_trajectory"][2] > 1.3


@pytest.mark.parametrize("name", LOOKUPS)
def test_what_follows_a_rejected_token_teaches_no_drafter(name: str) -> None:
    """A recording does not have it: drafts afterwards are those of the accepted path alone."""
    proposed = []
    for draft, path in ((Draft((9, 7, 9), (-1, -1, 1)), (1,)), (Draft((7,), (-1,)), (0,))):
        drafter = learn_accepted_paths(make_drafter(name))
        list(replay_text(drafter, (1, 2), (9, 3, 9, 3, 9, 3), group="g", request=1, n=4))  # what follows a 9
        branch = Branch(2, "g", (1, 5, 6), 1, SamplingParams(), 9)
        drafter.observe([recorded_feedback(branch, draft, path, (7, 8), drafter.feedback_k)])
        later = Branch(3, "g", (1, 3, 9), 1, SamplingParams(), 9)
        proposed.append(drafter.propose([later], DraftPlan((8,), 8))[0].tokens)
    assert proposed[0] == proposed[1]
    assert -1 not in proposed[0]
    assert 3 in proposed[0] or name == "prompt_lookup"  # which learns nothing


class ReadingStand(Stand):
    """Reads hidden states."""

    reads_hidden = True


def test_drafter_that_reads_hidden_states_is_refused() -> None:
    with pytest.raises(ValueError, match="reads the target's hidden states, and recorded texts have none"):
        replay_problems("reading", TreeDrafter(ReadingStand()), [EncodedProblem((1,), (TEXT,))], nodes=4)


def test_replay_counts_trajectories_by_number_and_problems_apart() -> None:
    both = replay_drafter(
        "published_stand", [EncodedProblem((1,), (TEXT,)), EncodedProblem((2,), (TEXT, TEXT))], nodes=8
    )
    alone = replay_drafter("published_stand", [EncodedProblem((1,), (TEXT,))], nodes=8)
    assert len(both["by_trajectory"]) == 2
    assert both["by_trajectory"][0] == pytest.approx(alone["by_trajectory"][0], rel=0.2)  # no table of the other's


def test_replay_drafts_nothing_beyond_the_end_and_accepts_empty_texts() -> None:
    row = replay_drafter("stand", [EncodedProblem((1, 2), ((), (5,), (5, 6), (5, 6)))], nodes=8)
    assert row["by_trajectory"][:2] == [0.0, 1.0]
    assert row["tokens"] == 5


class Listening(Stand):
    """Stores its feedback."""

    received: Sequence[Feedback] = ()

    def observe(self, feedback: Sequence[Feedback]) -> None:
        object.__setattr__(self, "received", feedback)


def test_accepted_path_source_gets_accepted_nodes_alone_with_their_rows() -> None:
    source = Listening()
    draft = Draft(
        (5, 6, 9), (-1, -1, 1), (0.5, 0.4, 0.3), (0, 1, 2), SamplingRecord("likely", {-1: (0, 1), 1: (2,)}, {})
    )
    ids = np.arange(40).reshape(4, 10)
    branch = Branch(1, "g", (1,), 1, SamplingParams(), 9)
    AcceptedPathSource(source).observe([Feedback(branch, draft, (1, 2), ids, ids.astype(np.float32))])
    (accepted,) = source.received
    assert (accepted.draft.tokens, accepted.draft.parents, accepted.accepted_nodes) == ((6, 9), (-1, 0), (0, 1))
    assert accepted.top_tokens()[0][:, 0].tolist() == [0, 20, 30]


def test_replay_feedback_gives_the_recorded_token_all_probability() -> None:
    class Spy(TreeDrafter):
        def observe(self, feedback: Sequence[Feedback]) -> None:
            feedback_seen.extend(feedback)

    feedback_seen: list[Feedback] = []
    drafter = Spy(Stand(), draw="likely")
    list(replay_text(drafter, (1,), (7, 8), group="g", request=1, n=4))
    assert [each.branch.tokens for each in feedback_seen] == [(1,), (1, 7)]
    ids, logprobs = feedback_seen[0].top_tokens()
    assert ids[0, 0] == 7
    assert np.exp(logprobs).sum() == 1
    assert drafter.propose([feedback_seen[0].branch], DraftPlan((4,), 4)) is not None


@pytest.mark.parametrize("keys", [("problem", "samples"), ("question", "completions"), ("prompt", "solutions")])
def test_recordings_are_read_under_every_usual_field_name(tmp_path: Path, keys: tuple[str, str]) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps({keys[0]: "ab", keys[1]: ["c", "dd"], "id": 3}) + "\n\n")
    assert read_recordings(file) == [RecordedProblem("ab", ("c", "dd"))]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", r"traces.jsonl:2: not valid JSON"),
        ("[1]", r"traces.jsonl:2: must be an object with problem or question or prompt, got list"),
        ('{"text": "x"}', r"traces.jsonl:2: must be an object with problem or question or prompt, got text"),
        (
            '{"problem": "x"}',
            r"traces.jsonl:2: must be an object with samples or completions or solutions, got problem",
        ),
        ('{"problem": 5, "samples": ["a"]}', r"traces.jsonl:2: the problem must be a text, got 5"),
        ('{"problem": "x", "samples": "a"}', r"traces.jsonl:2: the samples must be a list of texts, got a"),
        ('{"problem": "x", "samples": []}', r"traces.jsonl:2: the samples must be a list of texts, got \[\]"),
    ],
)
def test_invalid_line_of_a_recording_is_named_with_the_required_fields(
    tmp_path: Path, line: str, complaint: str
) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text('{"problem": "x", "samples": ["a"]}\n' + line + "\n")
    with pytest.raises(ValueError, match=complaint):
        read_recordings(file)


def test_an_empty_file_and_an_unknown_drafter_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no lines"):
        read_recordings(tmp_path / "empty.jsonl")
    with pytest.raises(ValueError, match=r"drafters must be from stand, .*; got parrot"):
        validate_names(("parrot",))


def test_recorded_texts_become_ids_of_the_tokenizer() -> None:
    (recording,) = encode_recordings([RecordedProblem("ab", ("", "ab ab"))], "bundled:target")
    assert recording.samples[0] == ()
    assert recording.samples[1][: len(recording.prompt)] == recording.prompt
    with pytest.raises(ValueError, match="bundled:parrot"):
        encode_recordings([], "bundled:parrot")


def script(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "bench" / "replay.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_replay_script_prints_tables_and_ends_with_json(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps({"problem": "What is 1+1?", "samples": ["1+1 is 2, so 2."] * 3}) + "\n")
    arguments = [str(file), "--nodes", "4,8", "--drafters", "stand,suffix", "--out", "report.md"]
    try:
        import matplotlib  # noqa: F401

        arguments += ["--plot", "plot.png"]
    except ImportError:
        pass
    done = script(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [(row["nodes"], row["drafter"]) for row in result["rows"]] == [
        (4, "stand"), (4, "suffix"), (8, "stand"), (8, "suffix"),
    ]  # fmt: skip
    assert all(len(row["by_trajectory"]) == 3 for row in result["rows"])
    report = (tmp_path / "report.md").read_text()
    assert "has no probabilities" in report
    assert (tmp_path / "plot.png").exists() == ("![plot.png](plot.png)" in report) == ("--plot" in arguments)


def test_replay_script_reports_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "traces.jsonl").write_text('{"text": "x"}\n')
    done = script("traces.jsonl", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("traces.jsonl:1: must be an object with problem")
