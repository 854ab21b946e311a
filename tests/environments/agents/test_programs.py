"""A program as an agent: what it is given, what is recorded, and what its ends are worth."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.environments.agents.programs import ASK, PYTHON, TASK, agent, code, leftovers, play, run
from tests.waiting import Clock, until
from vf.environments.agents import left_behind, process
from vf.runtime.own_deadline import own_deadline


@pytest.fixture(autouse=True)
def own_temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give programs a temporary folder in which nothing may be left."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("programs")))
    yield
    assert leftovers() == set()


def test_a_program_is_run_and_its_output_scored() -> None:
    trace = run("print(ask('What is 2 + 2?'))")
    assert trace.error is None
    assert [m.content for m in trace.messages] == ["What is 2 + 2?", "4"]
    assert trace.info["output"] == "4\n"
    assert trace.info["program"] == {"exit_code": 0, "stderr": ""}
    assert (trace.stop_reason, trace.reward) == (vf.StopReason.TERMINATED, 1.0)


def test_what_a_program_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "mine")
    monkeypatch.setenv("OPENAI_ORG_ID", "mine")
    trace = run(
        """
ask()
print(json.dumps({
    "environ": dict(os.environ),
    "task": json.load(open(os.environ["VF_TASK"])),
    "files": os.listdir("."),
    "home": os.listdir(os.environ["HOME"]),
    "stdin": sys.stdin.read(),
    "arguments": sys.argv[1:],
}))""",
        env={"EXTRA": "1"},
    )
    given = json.loads(trace.info["output"])
    environ = given["environ"]
    assert given["task"] == {"id": "t", "prompt": "What is 2 + 2?", "info": {"level": 1}}
    assert (given["files"], given["home"], given["stdin"]) == ([], [], "")
    assert environ["OPENAI_BASE_URL"] == environ["ANTHROPIC_BASE_URL"] + "/v1"
    assert environ["OPENAI_API_KEY"] == environ["ANTHROPIC_API_KEY"]
    assert (environ["VF_MODEL"], environ["EXTRA"]) == ("policy", "1")
    assert not {"SECRET_KEY", "OPENAI_ORG_ID", "VF_REWARD_KEY", "VF_REWARD_URL"} & set(environ)
    assert environ["HOME"] != str(Path.home())


def test_placeholders_are_replaced_in_arguments() -> None:
    words = ["{prompt}", "{task}", "{url}|{root}|{key}|{model}", "{{prompt}}", "{print $1}", "{}"]
    text = """
ask()
print(json.dumps([sys.argv[1:], {name: os.environ[name] for name in (
    "VF_TASK", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY")}]))"""
    trace = play(agent([*code(text), *words]))
    arguments, environ = json.loads(trace.info["output"])
    url, root, key = (
        environ[name] for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY")
    )
    assert arguments == [
        "What is 2 + 2?",
        environ["VF_TASK"],
        f"{url}|{root}|{key}|policy",
        "{prompt}",
        "{print $1}",
        "{}",
    ]


def test_a_file_of_the_working_directory_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_agent.py").write_text(f"{ASK}\nprint(ask())")
    monkeypatch.chdir(tmp_path)
    environment = agent([*PYTHON, "my_agent.py"])
    monkeypatch.chdir("/")
    assert play(environment).reward == 1.0


def test_a_folder_is_copied_for_each_rollout(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "words.txt").write_text("some words")
    (tmp_path / "code" / "__pycache__").mkdir()
    (tmp_path / "code" / "main.py").write_text(
        f"{ASK}\nask()\nprint(sorted(os.listdir()))\nopen('words.txt', 'a').write('!')\n"
    )
    environment = agent([*PYTHON, "main.py"], folder=tmp_path / "code")
    for _ in range(2):
        assert play(environment).info["output"] == "['main.py', 'words.txt']\n"
    assert (tmp_path / "code" / "words.txt").read_text() == "some words"


def test_a_crash_before_the_first_answer_is_a_failure_and_says_why() -> None:
    trace = run("sys.exit('no such option')")
    assert trace.error is not None
    assert (trace.error.boundary, trace.reward) == ("environment", None)
    assert "exit code 1, after: no such option" in trace.error.message
    assert trace.info["program"] == {"exit_code": 1, "stderr": "no such option\n"}


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", 137), ("1 / 0", 1)],
)
def test_a_crash_after_an_answer_is_the_agents_own(ending: str, exit_code: int) -> None:
    text = f"print(ask(), flush=True)\n{ending}"
    trace = run(text)
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.TERMINATED)
    assert trace.info["program"]["exit_code"] == exit_code
    assert trace.reward == 1.0  # the rubric decides its value
    failed = run(text, crash="failed")
    assert failed.error is not None
    assert f"exit code {exit_code}" in failed.error.message


def test_a_program_that_never_asks_is_a_failure() -> None:
    trace = run("print('4')")
    assert trace.error is not None
    assert "ended before it had an answer" in trace.error.message


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_stopped_and_scored() -> None:
    trace = run("print(ask(), flush=True)\nsignal.pause()", timeout=3.0)
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.TRUNCATED)
    assert trace.info["program"] == {"exit_code": None, "stderr": ""}
    assert trace.reward == 1.0  # what it had written by then counts


def test_the_models_time_is_not_the_programs(clock: Clock) -> None:
    async def slow(messages: list[vf.Message]) -> str:
        with own_deadline():
            await clock.skip(1000.0)
        return "4"

    trace = run("print(ask())", vf.ScriptedModel(slow), timeout=100.0)
    assert (trace.error, trace.reward) == (None, 1.0)


def test_a_budget_stops_a_program() -> None:
    text = "while True:\n    try: ask()\n    except OSError: signal.pause()"
    trace = run(text, max_turns=3)
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.MAX_TURNS)
    assert len(trace.turns) == 3


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_without_end_does_not_fill_the_memory(stream: str) -> None:
    text = f"""
ask()
piece = b"x" * 2**20
for _ in range(64):
    sys.{stream}.buffer.write(piece)
sys.{stream}.buffer.write(b"\\xffend")"""
    trace = run(text)
    kept = trace.info["output"] if stream == "stdout" else trace.info["program"]["stderr"]
    assert kept.endswith("x\ufffdend")
    assert len(kept) <= max(process.MOST_STDOUT, process.MOST_STDERR)
    if stream == "stdout":
        assert trace.info["program"]["stdout_bytes"] == 64 * 2**20 + 4


def test_a_program_may_close_its_streams() -> None:
    trace = run("answer = ask()\nos.close(1)\nos.close(2)\nask(answer)\nos._exit(0)")
    assert (trace.error, len(trace.turns)) == (None, 2)


FILES = """
ask()
os.makedirs("out/deep")
open("report.md", "w").write("done")
open("out/deep/a.json", "w").write("{}")
open("out/b.json", "wb").write(b"\\xff")
open("out/large.json", "w").write("x" * 200_000)
open("other.txt", "w").write("not asked for")
os.symlink("/etc/passwd", "out/link.json")
os.symlink("/etc", "out/folder")
os.mkfifo("out/pipe.json")
os.chmod("out/deep", 0)
"""


def test_files_are_collected_bounded_and_without_following_links() -> None:
    seen: list[dict[str, str]] = []

    def outcome(trace: vf.Trace) -> float:
        seen.append(trace.info["files"])
        return 1.0

    trace = run(
        FILES, collect=["report.md", "out/**/*.json", "out/folder/*"], rubric=vf.Rubric(outcome)
    )
    assert trace.error is None
    files = trace.info["files"]
    assert set(files) >= {"out/b.json", "out/large.json", "report.md"}
    assert set(files) <= {"out/b.json", "out/large.json", "report.md", "out/deep/a.json"}
    assert (files["report.md"], files["out/b.json"]) == ("done", "\ufffd")
    assert len(files["out/large.json"]) < left_behind.MOST_BYTES + 100
    assert seen == [files]


SCORE = """
import json, os, urllib.request
task = json.load(open(os.environ["VF_TASK"]))
right = open(os.environ["VF_OUTPUT"]).read().strip() == task["answer"]
assert os.path.exists("work.txt")
assert "OPENAI_API_KEY" not in os.environ
urllib.request.urlopen(urllib.request.Request(
    os.environ["VF_REWARD_URL"], json.dumps({"reward": 0.75 * right}).encode(),
    {"Authorization": "Bearer " + os.environ["VF_REWARD_KEY"]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "signal.pause()"])
def test_a_second_program_scores_what_the_first_has_left(ending: str) -> None:
    text = f"open('work.txt', 'w').write('!')\nprint(ask(), flush=True)\n{ending}"
    score = [*PYTHON, "-c", SCORE]
    trace = run(text, score_command=score, rubric=None, timeout=3.0 if ending else 60.0)
    assert (trace.error, trace.reward) == (None, 0.75)
    assert trace.truncated == bool(ending)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "why"),
    [("1 / 0", "exit code 1, after: "), ("open('pipe').read()", "it took too long")],
)
def test_no_program_goes_unscored_by_what_it_leaves_to_its_scorer(scores: str, why: str) -> None:
    text = "ask()\nos.mkfifo('pipe')"
    trace = run(text, score_command=[*PYTHON, "-c", scores], rubric=None, timeout=3.0)
    assert (trace.error, trace.reward) == (None, 0.0)
    assert trace.info["program"]["score_command"].startswith(why)
    assert trace.score is not None
    assert trace.score.metrics == {"reported": 0.0}


async def test_a_cancelled_rollout_leaves_nothing() -> None:
    environment = agent(code("ask()\nsignal.pause()"))
    work = asyncio.create_task(vf.rollout(environment, TASK, vf.ScriptedModel(["4"])))
    await until(leftovers)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        ([], {}, r"env\.args\.command is empty"),
        ([" "], {}, r"env\.args\.command is empty"),
        ("python my_agent.py", {}, r"env\.args\.command must be a list of texts"),
        (["agent", "{promt}"], {}, r"no placeholder \{promt\}.*Did you mean 'prompt'"),
        (["no-such-agent"], {}, r"env\.args\.command: there is no program 'no-such-agent'"),
        (["./no-such-agent"], {}, r"env\.args\.command: there is no program"),
        (["python", "no_such_agent.py"], {}, r"env\.args\.command: there is no file .*agent\.py"),
        (["true"], {"tasks": "no.jsonl"}, r"env\.args\.tasks: there is no file .*no\.jsonl"),
        (["true"], {"folder": "no"}, r"env\.args\.folder: there is no folder .*no"),
        (["true"], {"collect": ["/etc/*"]}, r"env\.args\.collect: '/etc/\*' does not lie in"),
        (["true"], {"collect": ["../*"]}, r"env\.args\.collect: '\.\./\*' does not lie in"),
        (["true"], {"env": {"N": 1}}, r"env\.args\.env\.N must be a text"),
        (["true"], {"env": ["N"]}, r"env\.args\.env must be a table of texts"),
        (["true"], {"env": {"N=M": "1"}}, r"env\.args\.env: 'N=M' cannot be the name"),
        (["true", "a\0"], {}, r"env\.args\.command must be a list of texts without NUL"),
        (["true"], {"collect": 5}, r"env\.args\.collect must be a list of texts"),
        (["true"], {"sandbox": "dokcer"}, r"env\.args\.sandbox: there is no sandbox 'dokcer'"),
        (["true"], {"crash": "no"}, r"crash must be"),
        (["true"], {"rubric": "nowhere:rubric"}, r"env\.args\.rubric 'nowhere:rubric'"),
        (["true"], {"rubric": "rubric"}, r"env\.args\.rubric = 'rubric' must be 'module:name'"),
        (["true"], {"rubric": "./no.py:x"}, r"env\.args\.rubric .*there is no file .*no\.py"),
        (["true"], {"score_command": ["no-such"]}, r"env\.args\.score_command: there is no"),
    ],
)
def test_mistakes_are_named_before_anything_starts(
    command: Any, settings: dict[str, Any], said: str
) -> None:
    def check() -> None:
        asyncio.run(agent(command, **settings).check())

    with pytest.raises(vf.ConfigError, match=said):
        check()


def test_a_rubric_in_a_file_is_a_rubric_or_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scoring_for_programs.py").write_text(
        "import vf\ndef half(trace):\n    return 0.5\nrubric = vf.Rubric(outcome=half)\n"
    )
    for reference in ("scoring_for_programs:rubric", f"{tmp_path}/scoring_for_programs.py:half"):
        assert run("ask()", rubric=reference).reward == 0.5


def test_a_name_that_is_not_text_is_collected_under_one_that_is() -> None:
    trace = run("ask()\nopen(b'\\xff.md', 'w').write('!')", collect=["*.md"])
    assert trace.info["files"] == {"?.md": "!"}
    assert vf.Trace.from_json(trace.to_json()).info["files"] == {"?.md": "!"}
