"""Task folders in real containers: phases, verdicts, steps, artifacts, programs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import vf
from tests.bridges.harbor.folders import SCRIPT, MakeTask
from tests.bridges.harbor.playing import SANDBOX, bash, play, record
from vf.environments.sandboxes import spec_of
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError

pytestmark = pytest.mark.usefixtures("containers")


def test_the_oracle_earns_1_and_nothing_earns_0(make_task: MakeTask) -> None:
    solved, idle, typed = play(
        make_task(), "oracle", [""], [bash("echo 42 > answer.txt"), "I wrote it."]
    )
    assert [trace.reward for trace in (solved, idle, typed)] == [1.0, 0.0, 1.0]
    assert record(idle)["tests"]["output"].startswith("grep: answer.txt")
    assert idle.messages[-2].content == "Write the number 42 to /app/answer.txt.\n"
    assert solved.stop_reason is vf.StopReason.TERMINATED


def test_what_was_done_by_the_last_turn_is_verified(make_task: MakeTask) -> None:
    (trace,) = play(make_task(), [bash("echo 42 > answer.txt")], max_turns=1)
    assert (trace.reward, trace.stop_reason) == (1.0, vf.StopReason.MAX_TURNS)


def test_work_of_every_name_is_seen(make_task: MakeTask) -> None:
    text = SCRIPT + "python3 /tests/check.py && echo 1 > /logs/verifier/reward.txt\n"
    check = "import os\nassert os.readlink(b'/app/\\xff') == b'/nowhere'\n"
    path = make_task(files={"tests/test.sh": text, "tests/check.py": check})
    work = "import os; os.symlink('/nowhere', b'\\xff')"
    (trace,) = play(path, [bash(f'python3 -c "{work}"'), ""])
    assert trace.reward == 1.0, record(trace)


def test_an_agent_out_of_time_is_cut_short_and_verified(make_task: MakeTask) -> None:
    path = make_task(toml="[agent]\ntimeout_sec = 0.5")
    (trace,) = play(path, [bash("echo 42 > answer.txt; sleep 1"), bash("rm answer.txt")])
    assert (trace.reward, trace.stop_reason) == (1.0, vf.StopReason.TRUNCATED)


def test_variables_users_and_folders_are_the_tasks(make_task: MakeTask) -> None:
    path = make_task(
        toml="""
[environment]
workdir = "/srv"
env = { KIND = "fruit", SECRET = "${VF_TEST_SECRET:-none}" }
[agent]
user = "www-data"
[verifier]
env = { SEED = "7" }
""",
        files={
            "tests/test.sh": SCRIPT + 'echo "$KIND $SEED $(id -un) $PWD" > /logs/artifacts/seen\n'
            '[ "$(cat /logs/agent/who)" = "www-data /srv fruit none" ] && r=1 || r=0\n'
            'echo "{\\"reward\\": $r, \\"files\\": 3}" > /logs/verifier/reward.json\n'
            "cat /logs/artifacts/seen\n",
        },
    )
    (trace,) = play(
        path, [bash('echo "$(id -un) $PWD $KIND $SECRET" > /logs/agent/who; ls -ld /tests'), ""]
    )
    assert record(trace)["tests"]["output"] == "fruit 7 root /srv\n"
    assert record(trace)["rewards"] == {"reward": 1.0, "files": 3.0}
    assert trace.score is not None
    assert trace.score.metrics["files"] == 3.0


def test_changes_can_be_a_tasks_point(make_task: MakeTask) -> None:
    files = {"tests/test.sh": SCRIPT + "greet | grep -q hi && echo 1 > /logs/verifier/reward.txt\n"}
    attack = [
        bash(
            "printf '#!/bin/sh\\ntrue\\n' > /usr/bin/grep; printf '#!/bin/sh\\necho hi\\n' "
            "> /usr/bin/greet; chmod +x /usr/bin/greet"
        ),
        "",
    ]
    path = make_task(files=files)
    (trace,) = play(path, attack, keep_changes=["task"])
    assert (trace.reward, record(trace)["kept"]) == (1.0, ["/"])
    (trace,) = play(path, attack)
    assert trace.reward == 0.0


def test_what_runs_can_be_kept_for_tests_that_need_it(make_task: MakeTask) -> None:
    files = {
        "tests/test.sh": SCRIPT + "grep -qs sleep /proc/[0-9]*/comm && r=1 || r=0\n"
        "echo $r > /logs/verifier/reward.txt\n"
    }
    serve = [bash("setsid sleep 60 > /dev/null 2>&1 &"), ""]
    path = make_task(files=files)
    (ended,) = play(path, serve)
    (kept,) = play(path, serve, keep_running=["t*"])
    assert (ended.reward, kept.reward) == (0.0, 1.0)
    assert record(ended)["tests_in"] == "a fresh container"
    assert record(kept)["tests_in"] == "the agent's container"


def test_the_tests_container_takes_the_place_of_the_agents(make_task: MakeTask) -> None:
    path = make_task(toml='[[verifier.collect]]\ncommand = "cat answer.txt"\n')
    one = {"pool": 1, "concurrency": 1, "max_containers": 1}
    environment = vf.make(f"harbor:{path}", sandbox=one)
    (task,) = environment.tasks("eval")

    async def run() -> list[vf.Trace]:
        lines = [bash("echo 42 > answer.txt"), ""]
        models = [vf.ScriptedModel(lines) for _ in range(3)]
        return await asyncio.gather(*(vf.rollout(environment, task, each) for each in models))

    assert [trace.reward for trace in asyncio.run(run())] == [1.0] * 3


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("true", "the tests wrote neither reward.txt nor reward.json"),
        ("echo yes > /logs/verifier/reward.txt", "reward.txt holds no number: 'yes\\n'"),
        ("echo [ > /logs/verifier/reward.json", "reward.json is not JSON"),
        ("echo 1 > /logs/verifier/reward.txt; sleep 9", "the tests did not end: it took longer"),
        ("tail -c 3000000 /dev/zero > /logs/verifier/reward.txt", "cannot be read"),
    ],
)
def test_tests_that_say_nothing_are_worth_nothing(
    make_task: MakeTask, test: str, said: str
) -> None:
    path = make_task(toml="[verifier]\ntimeout_sec = 1", files={"tests/test.sh": SCRIPT + test})
    (trace,) = play(path, "oracle")
    assert said in record(trace)["problem"]
    assert trace.reward == 0.0


def test_a_container_that_never_gets_ready_is_a_failure(make_task: MakeTask) -> None:
    path = make_task(
        toml='[environment.healthcheck]\ncommand = "echo no >&2; false"\nretries = 2\n'
        "interval_sec = 0.01"
    )
    (trace,) = play(path, "oracle")
    assert trace.error is not None
    assert trace.error.boundary == "environment"
    assert "its health check failed: exit code 1, after: no" in trace.error.message


STEPS = """
artifacts = ["/app/log"]
[[steps]]
name = "one"
min_reward = 1.0
[[steps]]
name = "two"
[steps.healthcheck]
command = "test -f two.txt"
"""
STEP_FILES = {
    "instruction.md": None,
    "tests/test.sh": None,
    "solution/solve.sh": None,
    "steps/one/instruction.md": "Write 1.",
    "steps/one/tests/test.sh": SCRIPT + "cat answer.txt > /logs/verifier/reward.txt\n",
    "steps/one/solution/solve.sh": SCRIPT + "echo 1 > answer.txt\n",
    "steps/two/instruction.md": "Write what the new file says.",
    "steps/two/workdir/setup.sh": "echo 0.5 > two.txt\n",
    "steps/two/tests/test.sh": SCRIPT + "cp answer.txt /logs/verifier/reward.txt; date > log\n",
    "steps/two/solution/solve.sh": SCRIPT + "cp two.txt answer.txt\n",
}


def test_steps_follow_each_other_in_one_container(make_task: MakeTask) -> None:
    solved, typed, failed = play(
        make_task(toml=STEPS, files=STEP_FILES),
        "oracle",
        [
            bash("echo 1 > answer.txt"),
            "The first is done.",
            bash("ls /tests /logs/verifier; cp two.txt answer.txt"),
            "The second is done.",
        ],
        ["Nothing.", "Never asked."],
    )
    assert [trace.reward for trace in (solved, typed, failed)] == [0.75, 0.75, 0.0]
    told = [message.content for message in typed.messages if message.role == "user"]
    assert told == ["Write 1.", "Write what the new file says."]
    (seen,) = [m.content for m in typed.messages if m.role == "tool" and "/logs" in m.content]
    assert "test.sh" not in seen
    assert list(record(failed)["steps"]) == ["one"]


def test_tests_with_a_container_of_their_own_get_only_the_artifacts(
    make_task: MakeTask, tmp_path: Path
) -> None:
    path = make_task(
        toml="""
artifacts = [{ source = "/app/out", exclude = ["cache"] }, "/app/missing"]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "mkdir -p /logs/artifacts && wc -c < out/answer.txt > /logs/artifacts/size"
[[verifier.collect]]
command = "exit 3"
""",
        files={
            "tests/Dockerfile": "FROM vf-sandbox:latest\nUSER root\nWORKDIR /\n"
            "COPY test.sh /tests/test.sh\n",
            "tests/test.sh": SCRIPT
            + "[ ! -e /app/secret ] && [ ! -e /app/out/cache ] && grep -qx 42 /app/out/answer.txt"
            " && [ $(cat /logs/artifacts/size) = 3 ] && r=1 || r=0\n"
            "echo $r > /logs/verifier/reward.txt\n",
            "solution/solve.sh": SCRIPT + "mkdir -p out/cache; echo 42 > out/answer.txt; "
            "touch secret out/cache/x\n",
        },
    )
    kept = tmp_path / "kept"
    solved, idle = play(path, "oracle", [""], kept=kept)
    assert (solved.reward, idle.reward) == (1.0, 0.0)
    (folder,) = {Path(record(solved)["artifacts"])}
    assert (folder / "app/out/answer.txt").read_text() == "42\n"
    assert not (folder / "app/out/cache").exists()
    listed = json.loads((folder / "manifest.json").read_text())
    assert [(each["source"], "problem" in each) for each in listed] == [
        ("/logs/artifacts", False),
        ("/app/out", False),
        ("/app/missing", True),
    ]
    assert record(solved)["collect"] == ["exit 3: exit code 3"]


def test_terminal_benchs_tests_are_judged_by_what_pytest_prints(make_task: MakeTask) -> None:
    gone = dict.fromkeys(
        [
            "task.toml",
            "instruction.md",
            "environment/Dockerfile",
            "tests/test.sh",
            "solution/solve.sh",
        ]
    )
    path = make_task(
        files=gone
        | {
            "task.yaml": "instruction: Write 42 to answer.txt.\nparser_name: pytest\n",
            "Dockerfile": "FROM vf-sandbox:latest\nUSER root\nWORKDIR /app\n",
            "tests/check.py": "print('=== short test summary info ===')\n"
            "right = open('answer.txt').read() == '42\\n'\n"
            "print('PASSED' if right else 'FAILED', 'check.py::it')\n",
            "run-tests.sh": "#!/bin/bash\npython3 $TEST_DIR/check.py\n",
            "solution.sh": "#!/bin/bash\necho 42 > answer.txt\n",
        }
    )
    solved, wrong, idle = play(path, "oracle", [bash("echo 1 > answer.txt"), ""], [""])
    assert [trace.reward for trace in (solved, wrong, idle)] == [1.0, 0.0, 0.0]
    assert "printed no summary of pytest's" not in record(wrong).get("problem", "")


def test_arguments_and_splits(make_task: MakeTask, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_task("a").parent
    for number in range(9):
        make_task(f"t{number}")
    asking = vf.make(f"harbor:{folder}")
    assert len(list(asking.tasks("eval"))) == 10
    with pytest.raises(ConfigError, match="nothing says which tasks are for training"):
        list(asking.tasks("train"))
    split = vf.make(f"harbor:{folder}", held_out=0.4)
    train, held = ({task.id for task in split.tasks(name)} for name in ("train", "eval"))
    assert train | held == {task.id for task in asking.tasks("eval")}
    assert not train & held
    assert 0 < len(held) < 10
    wrong = {
        "network": "all",
        "held_out": 2.0,
        "bash_timeout": 0,
        "agent_timeout": 0,
        "folder": "x",
    }
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=rf"env\.args\.{name}"):
            vf.make(f"harbor:{folder}", **{name: value})
    asyncio.run(call(asking.check))
    assert "10 of 10 tasks ask for a network" in caplog.text


def test_a_variable_of_this_machine_is_only_taken_over_where_it_is_named(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VF_TEST_SECRET", "42")
    path = make_task(
        toml='[environment]\nenv = { ANSWER = "${VF_TEST_SECRET}" }',
        files={"solution/solve.sh": SCRIPT + "echo $ANSWER > answer.txt\n"},
    )
    environment = vf.make(f"harbor:{path}")
    (task,) = environment.tasks("eval")
    with pytest.raises(ConfigError, match=r"environment\.env\.ANSWER asks for .* VF_TEST_SECRET"):
        spec_of(environment, task)
    (trace,) = play(path, "oracle", host_env=["VF_TEST_SECRET"])
    assert trace.reward == 1.0


AGENT = """\
import json, os, urllib.request
said = {"model": "policy", "messages": [{"role": "user", "content": "What?"}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
           "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, json.dumps(said).encode(), headers)
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("answer.txt", "w").write(answer + chr(10))
print(json.load(open(os.environ["VF_TASK"]))["prompt"], answer, os.getcwd())
"""


def test_a_program_works_inside_the_tasks_container(make_task: MakeTask, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "work.py").write_text(AGENT)
    path = make_task(
        toml=STEPS.replace("[steps.healthcheck]\ncommand", "[metadata]\nx"), files=STEP_FILES
    )
    command = ["python", "work.py"]

    async def run() -> list[vf.Trace]:
        environment = vf.make(f"harbor:{path}", command=command, folder=str(agent), sandbox=SANDBOX)
        (task,) = environment.tasks("eval")
        models = [vf.ScriptedModel(["1", "0.5"]), vf.ScriptedModel(["0"])]
        return [await vf.rollout(environment, task, model) for model in models]

    both, first = asyncio.run(run())
    assert (both.reward, first.reward) == (0.75, 0.0)
    assert both.info["output"] == "Write what the new file says. 0.5 /app\n"
    assert list(record(first)["steps"]) == ["one"]
