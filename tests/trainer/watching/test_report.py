"""The report: what is in it, that no text of it is markup, and that it stays cheap."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.traces.agents import delegated
from tests.traces.view.material import ATTACK, hostile, research
from tests.trainer.configs import configured
from tests.viewer.pages import events_of
from vf.traces.trace import Failure
from vf.trainer.preflight import preflight
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.watching import conversations
from vf.trainer.watching.alarms import ringing
from vf.trainer.watching.conversations import choose, render
from vf.trainer.watching.page_details import AboutFolders
from vf.trainer.watching.report import Report, write_report

TIMES = {"generate": 6.0, "environment": 1.0, "train": 2.0, "wait": 1.0}


@pytest.fixture(scope="module")
def plan() -> Plan:
    args = {"max_seq_len": 512, "max_prompt_len": 256, "max_steps": 20}
    return preflight(configured(args))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "the-run")
    made.traces.mkdir(parents=True)
    made.write_config('model = "tiny"\n[env]\nid = "calculator"\n')
    return made


def line(step: int, **more: float) -> Metrics:
    times = {f"time/{part}": seconds for part, seconds in TIMES.items()}
    return {
        "step": step,
        "reward/mean": 0.5 + step / 1000,
        "loss": -0.01 * step,
        "kl_sample_train_v1": 0.002,
        "success_rate": 0.25,
        "time/total": 10.0,
        **times,
        **more,
    }


def fill(folder: RunFolder, steps: int) -> None:
    """Write the metrics and traces of a run."""
    lines = [{"step": 0, "eval/reward/mean": 0.125}]
    lines += [line(step) for step in range(1, steps)]
    lines += [line(steps, **{"eval/reward/mean": 0.875, "alarm/kl": 1.0, "metric/words": 3.0})]
    lines[-1] |= {"eval/pass@1": 0.5, "eval/pass@2": 0.625, "eval/pass@16": 0.75}
    folder.metrics.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with folder.step_traces(steps) as store:
        for index in range(6):
            store.append(research(index))
        lost = research(7)
        lost.score, lost.error = None, Failure("sandbox", "Gone", "the container is gone", "")
        store.append(lost)
    with folder.eval_traces(steps) as store:
        store.append(research(40))


def words(page: str) -> str:
    """Return what is read on a page, without its markup and style."""
    body = page.split("</style>")[1]
    return " ".join(re.sub(r"<[^>]*>", " ", body.split("<script")[0]).split())


def test_the_report_says_what_a_run_did(folder: RunFolder, plan: Plan) -> None:
    fill(folder, 12)
    write_report(folder, plan)
    page = folder.report.read_bytes()
    [run] = events_of(page)["run"]
    assert run["columns"]["eval/reward/mean"][0] == 0.125
    assert run["columns"]["eval/reward/mean"][-1] == 0.875
    assert run["columns"]["eval/pass@16"][-1] == 0.75
    assert run["max_steps"] == 20
    assert run["settings"]["trainer.args.max_seq_len"] == 512
    assert run["advice"][0] == "Generating takes 60% of a step's 10 s."
    assert any('inference.engine = "vllm" generates faster' in text for text in run["advice"])
    [alarm] = run["alarms"]
    assert alarm.startswith("kl, in step 12: sampler and learner disagree")
    assert ["environment", "calculator: 2000 train tasks, 64 held out, 1 tools"] in run["plan"]
    said = words(page.decode())
    assert "Of step 12 best 1.000 river-0" in said
    assert "failed no reward river-1" in said
    assert "Held out, after step 12 best 0.000 river-10" in said
    assert [path.name for path in folder.path.iterdir() if path.name.endswith(".tmp")] == []


def test_a_run_that_has_not_begun_and_old_lines_have_reports_too(
    folder: RunFolder, plan: Plan
) -> None:
    write_report(folder, plan)
    [run] = events_of(folder.report.read_bytes())["run"]
    assert run["columns"] == {}
    old: list[Any] = [
        {"step": 1, "reward/mean": 0.5, "loss": None, "time/generate": 2.0, "time/train": 1.0},
        {"step": 2, "tokens/trained": 0},
    ]
    folder.metrics.write_text("".join(json.dumps(each) + "\n" for each in old) + '{"step": 3, "rew')
    write_report(folder, plan)
    [run] = events_of(folder.report.read_bytes())["run"]
    assert run["advice"][0].startswith("Generating takes 67% of a step")
    assert run["columns"]["loss"] == [None, None]


def test_nothing_that_was_said_becomes_markup(folder: RunFolder, plan: Plan) -> None:
    fill(folder, 3)
    folder.append_metrics(line(4, **{f"metric/{ATTACK}": 1.0, f"alarm/{ATTACK}": 1.0}))
    folder.step_traces(4).path.write_bytes(b"no trace\n" + hostile().to_json() + b"\n")
    write_report(folder, plan)
    page = folder.report.read_text()
    style, after = page.split("</style>")
    body, script = after.split("<script>")
    for tag in ("img", "iframe", "link", "object", "a"):
        assert f"<{tag}" not in re.sub(r"<article", "", body)
    assert body.count("<script") == 1  # the data
    assert page.count("</script>") == 2
    assert not set("\u202e\u200b\x1b\u2028") & set(body)
    assert body.count("&lt;script&gt;window.pwned=1&lt;/script&gt;") > 8
    for kind, text in (("style", style.split("<style>")[1]), ("script", script.split("</scr")[0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert len(page) < 400_000  # one of its messages has 3,000,000 characters
    assert "[2,996,000 characters left]" in body


def test_best_median_worst_and_a_failed_one_are_chosen(folder: RunFolder) -> None:
    def scored(index: int, reward: float | None) -> vf.Trace:
        trace = research(index)
        assert trace.score is not None
        trace.id, trace.score.reward = f"id-{index}", reward
        return trace

    lost = scored(9, None)
    lost.error = Failure("model", "Gone", "it is gone", "")
    traces = [
        scored(0, 0.5),
        lost,
        scored(1, 0.25),
        scored(2, 1.0),
        scored(3, 0.0),
        scored(4, 0.75),
    ]
    with folder.step_traces(1) as store:
        for trace in traces:
            store.append(trace)
    found = [(name, trace.id) for name, trace in choose(store.path)]
    assert found == [("best", "id-2"), ("median", "id-0"), ("worst", "id-3"), ("failed", "id-9")]
    with folder.step_traces(2) as store:
        store.append(scored(0, 0.5))
        store.append(scored(1, 0.5))
    assert [name for name, _ in choose(store.path)] == ["best", "worst"]
    assert choose(folder.step_traces(3).path) == []


def test_of_a_large_file_the_beginning_is_read(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "READ_BYTES", 3 * len(research().to_json()) - 100)
    with folder.step_traces(1) as store:
        for index in (1, 2, 4, 5, 0):  # the last has the best reward
            store.append(research(index))
    assert [trace.reward for _, trace in choose(store.path)] == [0.63, 0.0, 0.0]


def test_of_a_long_conversation_both_ends_are_shown() -> None:
    trace = research()
    trace.messages += [vf.Message("user", f"message {index}") for index in range(92)]
    shown = words("</style>" + render([("best", trace)]))
    assert "message 11" in shown
    assert "60 messages between, not shown here" in shown
    assert "message 12 " not in shown
    assert "message 71 " not in shown
    assert "message 72" in shown
    assert "message 91" in shown


def test_an_agents_conversations_are_shown_with_why_they_began() -> None:
    shown = words("</style>" + render([("best", delegated())]))
    assert "3 conversations" in shown
    assert "conversation 2 of 3, conversation: the first message differs" in shown
    helper = shown[shown.index("conversation 2 of") : shown.index("conversation 3 of")]
    assert "search ok 0 s" in helper
    assert "[noted]" in helper


def test_alarms_tell_how_often_and_when() -> None:
    lines: list[Any] = [
        {"step": 1, "alarm/kl": 1.0, "alarm/length": -0.5, "alarm/new": 1.0},
        {"step": 2, "alarm/kl": 1.0, "alarm/length": -0.9, "alarm/errors": None},
    ]
    said = ringing(lines)
    assert [text.split(":")[0].split(".")[0] for text in said] == [
        "kl, in 2 steps, last in step 2",
        "length, in step 2",
        "new, in step 1",
    ]
    assert ringing([]) == []


def test_it_is_written_seldom_and_at_the_end(
    folder: RunFolder, plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    fill(folder, 2)
    report = Report(folder, plan)
    assert report.update()
    assert not report.update()
    folder.append_metrics(line(3))
    assert report.update(final=True)
    [run] = events_of(folder.report.read_bytes())["run"]
    assert run["columns"]["step"][-1] == 3
    folder.report.unlink()
    folder.report.mkdir()  # it cannot be replaced now
    (folder.report / "in-the-way").touch()
    with caplog.at_level(logging.WARNING):
        assert not report.update(final=True)
        assert not report.update(final=True)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the report cannot be written"
    ]


def test_settings_are_read_from_the_folder_without_secrets(folder: RunFolder) -> None:
    folder.write_config('model = "tiny"\n[env]\nid = "calculator"\nargs = { api_key = "x" }\n')
    about = AboutFolders()
    known = about(folder.path, [])
    assert known["settings"]["env.args.api_key"] == "(hidden)"
    assert known["settings"]["model"] == "tiny"
    other = RunFolder(folder.path / "of-another-version")
    other.traces.mkdir(parents=True)
    other.write_config('model = "tiny"\nnothing_like_it = 1\n')
    known = about(other.path, [{"step": 1, "alarm/kl": 1.0}])
    assert "nothing_like_it" in known["problem"]
    assert len(known["alarms"]) == 1
    assert about(folder.path / "nowhere", []) == {}
