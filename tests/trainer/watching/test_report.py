"""The report: what is in it, that it stays cheap, and how it looks in a real browser."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, find_chromium

import vf
from tests.traces.agents import delegated
from tests.traces.view.material import ATTACK, TRICKS, hostile, research
from vf.traces.trace import Failure
from vf.trainer.preflight import preflight
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.load_config import parse_config
from vf.trainer.watching import conversations
from vf.trainer.watching.charts import Axis, Series, figure, short, thin
from vf.trainer.watching.conversations import choose, render
from vf.trainer.watching.curves import ringing
from vf.trainer.watching.report import Report, write_report

TIMES = {"generate": 6.0, "environment": 1.0, "train": 2.0, "wait": 1.0}


@pytest.fixture(scope="module")
def plan() -> Plan:
    args = {"max_seq_len": 512, "max_prompt_len": 256, "max_steps": 20}
    config, _ = parse_config(
        {"model": "tiny", "env": {"id": "calculator"}, "trainer": {"args": args}}
    )
    return preflight(config)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "the-run")
    made.traces.mkdir(parents=True)
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
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_report_says_what_a_run_did(folder: RunFolder, plan: Plan) -> None:
    fill(folder, 12)
    write_report(folder, plan)
    page = folder.report.read_text()
    said = words(page)
    assert "0.125 → 0.875 held-out reward, after step 12" in said
    assert "Generating takes 60% of a step&#x27;s 10 s. (Over the last 11 steps.)" in said
    assert "inference.args.max_requests = 32 of up to 64" in said
    assert "kl, in step 12: sampler and learner disagree" in said
    assert "KL of sampler and learner v1 0.002 alarm at ±0.01" in said
    assert "Success rate" in said
    assert "Held out: pass@k k = 1 50 % k = 2 62 % k = 16 75 %" in said
    assert "Staleness" not in said  # this run has no such metric
    assert "metric/words 3" in said
    assert "Of step 12 best 1.000 river-0" in said
    assert "failed no reward river-1" in said
    assert "Held out, after step 12 best 0.000 river-10" in said
    assert "environment calculator: 2000 train tasks, 64 held out" in said
    assert "max_seq_len = 512" in said
    assert [path.name for path in folder.path.iterdir() if path.suffix == ".tmp"] == []


def test_a_run_that_has_not_begun_and_old_lines_have_reports_too(
    folder: RunFolder, plan: Plan
) -> None:
    write_report(folder, plan)
    assert "No step has ended yet." in words(folder.report.read_text())
    old: list[Any] = [
        {"step": 1, "reward/mean": 0.5, "loss": None, "time/generate": 2.0, "time/train": 1.0},
        {"step": 2, "tokens/trained": 0},
    ]
    folder.metrics.write_text("".join(json.dumps(each) + "\n" for each in old) + '{"step": 3, "rew')
    write_report(folder, plan)
    said = words(folder.report.read_text())
    assert "Generating takes 67% of a step" in said
    assert "Loss" not in said


def test_a_component_that_was_never_finite_is_left_out(folder: RunFolder, plan: Plan) -> None:
    folder.append_metrics({**line(1), "metric/words": math.nan, "metric/lines": 2.0})
    write_report(folder, plan)
    said = words(folder.report.read_text())
    assert "metric/lines 2" in said
    assert "Components of the score" in said


def test_nothing_that_was_said_becomes_markup(folder: RunFolder, plan: Plan) -> None:
    fill(folder, 3)
    folder.append_metrics(line(4, **{f"metric/{ATTACK}": 1.0, f"alarm/{ATTACK}": 1.0}))
    folder.step_traces(4).path.write_bytes(b"no trace\n" + hostile().to_json() + b"\n")
    write_report(folder, plan)
    page = folder.report.read_text()
    for tag in ("script", "img", "iframe", "link", "object", "a"):
        assert f"<{tag}" not in re.sub(r"<article", "", page)
    assert page.count("<style>") == 1
    assert not set("\u202e\u200b\x1b\u2028") & set(page)
    assert page.count("&lt;script&gt;window.pwned=1&lt;/script&gt;") > 10
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page
    assert not re.search(r"https?://|url\(|@import", style)
    tags = [re.sub(r'"[^"]*"', "", tag) for tag in re.findall(r"<[^>]*>", page.replace(style, ""))]
    assert [tag for tag in tags if re.search(r"\b(src|href|style|on\w+)\s*=", tag)] == []
    assert len(page) < 400_000  # one of its messages has 3,000,000 characters
    assert "[2,996,000 characters left]" in page


def test_a_long_run_is_thinned_and_nothing_of_it_lost() -> None:
    points = [(float(step), float(step % 7 == 3)) for step in range(10_000)]
    thinned = thin(points)
    assert 200 < len(thinned) <= 240
    assert sum(mean for _, mean, _, _ in thinned) / len(thinned) == pytest.approx(1 / 7, rel=0.01)
    assert {(low, high) for _, _, low, high in thinned} == {(0.0, 1.0)}  # no peak is hidden
    assert thin(points[:3]) == [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0)]
    assert thin([]) == []
    drawn = figure("title", [Series("", points)], Axis(short), 10_000, wide=False)
    assert len(drawn) < 20_000


def test_points_stand_where_they_belong() -> None:
    series = [Series("held out", [(0, 0.0), (50, 0.5), (100, 1.0)], dotted=True)]
    drawn = figure(
        "title", series, Axis(short, low=0, high=2, lines={1.5: "limit"}), 100, wide=True
    )
    assert 'class="curve k0 dashed" d="M0.0,400.0L500.0,300.0L1000.0,200.0"' in drawn
    assert 'class="limit" d="M0.0,100.0H1000"' in drawn
    assert "<title>step 50: 0.5</title>" in drawn
    assert re.findall(r"<span>([\d.]+)</span>", drawn)[:5] == ["2", "1.5", "1", "0.5", "0"]
    flat = figure("title", [Series("", [(1, 3.0), (2, 3.0)])], Axis(short), 2, wide=False)
    assert 'd="M500.0,200.0L1000.0,200.0"' in flat


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
    assert "Step 3 of 20" in words(folder.report.read_text())
    folder.report.unlink()
    folder.report.mkdir()  # it cannot be replaced now
    (folder.report / "in-the-way").touch()
    with caplog.at_level(logging.WARNING):
        assert not report.update(final=True)
        assert not report.update(final=True)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the report cannot be written"
    ]


@pytest.mark.browser
def test_in_a_browser_nothing_runs_is_fetched_or_cut_off(folder: RunFolder, plan: Plan) -> None:
    fill(folder, 12)
    with folder.step_traces(12) as store:
        bad = hostile()
        assert bad.score is not None
        bad.score.reward = 1.0
        bad.messages[2].content = f"{TRICKS} {'x' * 3000}"
        store.append(bad)
    write_report(folder, plan)

    async def look() -> None:
        async with chromium(str(find_chromium())) as tab:
            for scheme, dark in (("light", False), ("dark", True)):
                features = [{"name": "prefers-color-scheme", "value": scheme}]
                await tab.send("Emulation.setEmulatedMedia", features=features)
                await tab.open(folder.report.as_uri())
                await tab.until("document.querySelectorAll('details').length > 5")
                await tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = 1)")
                colours = await tab.evaluate(
                    "[getComputedStyle(document.body).backgroundColor,"
                    "getComputedStyle(document.querySelector('.curve')).stroke]"
                )
                back, curve = (sum(map(int, re.findall(r"\d+", each)[:3])) for each in colours)
                assert (back < 200) is dark
                assert (curve > 400) is dark
                for width in (360, 768, 1440):
                    await tab.size(width, 900)
                    root = "document.documentElement"
                    over = f"{root}.scrollWidth - {root}.clientWidth"
                    assert await tab.evaluate(over) == 0, width
                    drawn = "[...document.querySelectorAll('.plot svg')].map(s => s.clientHeight)"
                    assert min(await tab.evaluate(drawn)) > 50
            assert await tab.evaluate("window.pwned === undefined")
            assert await tab.evaluate("document.querySelectorAll('script, img').length") == 0
            assert tab.errors == []
            assert {url.split(":")[0] for url in tab.requests} == {"file"}

    asyncio.run(look())
