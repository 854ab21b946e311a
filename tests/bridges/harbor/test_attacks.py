"""What a policy does in its container to be paid for nothing, and what happens to it."""

from __future__ import annotations

import pytest

from tests.bridges.harbor.folders import SCRIPT, MakeTask
from tests.bridges.harbor.playing import bash, play, record
from vf.bridges.harbor.work import Work
from vf.sandbox.audit import Auditable

pytestmark = pytest.mark.usefixtures("containers")

PAY = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
# Tests that count on what the image brings: a shell, cat and python3.
COUNTING = SCRIPT + (
    "cat answer.txt | python3 -c 'import json; print(json.loads(input()))' | grep -qx 42 && r=1 "
    "|| r=0\necho $r > /logs/verifier/reward.txt\n"
)

ATTACKS = {
    "reward file written early": PAY,
    "background writer": f"setsid sh -c 'while :; do {PAY}; sleep 0.01; done' >/dev/null 2>&1 &",
    "reward folder that cannot be written": "rm -rf /logs; ln -s /dev/null /logs",
    "tests there before": f"mkdir /tests; printf '#!/bin/sh\\n{PAY}\\n' > /tests/test.sh",
    "another python first on PATH": "printf '#!/bin/sh\\necho 42\\n' > /usr/local/bin/python3; "
    "chmod +x /usr/local/bin/python3",
    "the shell is a program of its own": "printf '#!/usr/bin/python3\\nimport os\\n"
    'os.makedirs("/logs/verifier", exist_ok=True)\\n'
    'open("/logs/verifier/reward.txt", "w").write("1")'
    "\\n' > /tmp/sh; chmod +x /tmp/sh; cp /tmp/sh /usr/bin/dash",
    "every tool is another one": "printf '#!/bin/sh\\necho 42\\n' > /tmp/x; chmod +x /tmp/x; "
    "for f in grep cat rm mkdir chmod mv; do cp /tmp/x /usr/bin/$f; done; cp /tmp/x /usr/bin/cp",
    "interpreter start-up": "echo 'print(42); import os; os._exit(0)' > "
    "/usr/lib/python3/dist-packages/sitecustomize.py",
    "a module of the interpreter's": "echo 'loads = lambda _: 42' > "
    "/usr/lib/python3.11/json/__init__.py",
    "a compiled module": "mkdir -p /usr/lib/python3.11/json/__pycache__; cd /tmp; "
    "echo 'loads = lambda _: 42' > j.py; python3 -m py_compile j.py; python3 -c \"import os; "
    "s = os.stat('/usr/lib/python3.11/json/__init__.py'); "
    "d = bytearray(open('/tmp/__pycache__/j.cpython-311.pyc', 'rb').read()); "
    "d[8:16] = int(s.st_mtime).to_bytes(4, 'little') + s.st_size.to_bytes(4, 'little'); "
    "open('/usr/lib/python3.11/json/__pycache__/__init__.cpython-311.pyc', 'wb').write(d)\"",
    "a folder replaced by a link": "cp -r /usr/lib/python3.11 /evil; "
    "echo 'loads = lambda _: 42' > /evil/json/__init__.py; rm -r /usr/lib/python3.11; "
    "ln -s /evil /usr/lib/python3.11",
    "user's packages behind a link": "mkdir -p /evil ~/.local/lib/python3.11; "
    "echo 'print(42); import os; os._exit(0)' > /evil/usercustomize.py; "
    "ln -s /evil ~/.local/lib/python3.11/site-packages",
    "a preloaded library": "echo /evil.so > /etc/ld.so.preload",
    "no memory left": "tail /dev/zero",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_attack_is_paid(make_task: MakeTask, attack: str) -> None:
    path = make_task(files={"tests/test.sh": COUNTING})
    (trace,) = play(path, [bash("echo 41 > answer.txt"), bash(attack), "Done."])
    assert record(trace)["reward"] == 0.0
    assert trace.reward == 0.0


HONEST = (
    "cp /bin/true /usr/bin/grep; rm /usr/bin/python3 /usr/bin/cat; "
    "echo 1 > /usr/lib/python3/dist-packages/x.pth; touch /usr/bin/z; rm /usr/bin/z; "
    "echo 42 > answer.txt; ln -s loop loop"
)


def test_honest_work_counts_whatever_became_of_the_image(make_task: MakeTask) -> None:
    (trace,) = play(make_task(files={"tests/test.sh": COUNTING}), [bash(HONEST), "Done."])
    assert trace.reward == 1.0
    assert record(trace)["tests_in"] == "a fresh container"
    assert record(trace)["kept"] == ["/app", "/logs"]


def test_a_container_in_which_the_agent_ran_nothing_is_not_replaced(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []

    async def take(work: Work, sandbox: Auditable) -> None:
        copied.append(work.paths)
        await take_it(work, sandbox)

    take_it = Work.take
    monkeypatch.setattr(Work, "take", take)
    idle, used, solved = play(make_task(), ["Done."], [bash("true"), "Done."], "oracle")
    assert [trace.reward for trace in (idle, used, solved)] == [0.0, 0.0, 1.0]
    assert copied == [("/app", "/logs")] * 2
    assert record(idle)["kept"] == record(used)["kept"]


def test_what_was_put_back_in_the_agents_container_is_recorded(make_task: MakeTask) -> None:
    path = make_task(files={"tests/test.sh": COUNTING})
    (trace,) = play(path, [bash(HONEST), "Done."], keep_running=["*"])
    found = record(trace)
    assert found["put_back"] == ["/usr/bin/cat", "/usr/bin/grep", "/usr/bin/python3"]
    assert found["removed"] == ["/usr/lib/python3/dist-packages/x.pth"]
    assert trace.reward == 1.0


def test_hosts_are_called_as_before_where_the_agents_container_is_needed(
    make_task: MakeTask,
) -> None:
    look = "head -n 99 /etc/hosts /etc/resolv.conf; grep -c evil /etc/hostname\n"
    path = make_task(files={"tests/test.sh": look + COUNTING})
    work = "echo 42 > answer.txt"
    rename = (
        "echo evil > /etc/hostname; chmod 000 /etc/hostname; rm -f /etc/hosts; "
        "echo evil > evil; ln -s $PWD/evil /etc/hosts; echo evil >> /etc/resolv.conf"
    )
    idle, renamed = play(
        path, [bash(work), ""], [bash(f"{work}; {rename}"), ""], keep_running=["*"]
    )
    assert "put_back" not in record(idle)
    assert record(renamed)["put_back"] == ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"]
    assert record(renamed)["tests"]["output"] == record(idle)["tests"]["output"]
    assert (idle.reward, renamed.reward) == (1.0, 1.0)


PUT_BACK = (
    "every tool is another one",
    "a compiled module",
    "a folder replaced by a link",
    "user's packages behind a link",
    "a preloaded library",
)


@pytest.mark.parametrize("name", PUT_BACK)
def test_no_attack_is_paid_where_the_agents_container_is_needed(
    make_task: MakeTask, name: str
) -> None:
    path = make_task(files={"tests/test.sh": COUNTING})
    script = [bash("echo 41 > answer.txt"), bash(ATTACKS[name]), "Done."]
    (trace,) = play(path, script, keep_running=["*"])
    assert (record(trace)["reward"], trace.reward) == (0.0, 0.0)
