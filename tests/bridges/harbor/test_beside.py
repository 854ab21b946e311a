"""What runs beside a task's container, and its way out, are in the trace."""

from __future__ import annotations

import pytest

from tests.bridges.harbor.folders import SCRIPT, MakeTask
from tests.bridges.harbor.playing import bash, play, record

COMPOSE = """
services:
  main: {image: "vf-sandbox:latest", depends_on: {side: {condition: service_healthy}}}
  side:
    image: vf-sandbox:latest
    command: [python3, -u, -m, http.server, "8000"]
    healthcheck:
      test: python3 -c "import socket; socket.create_connection(('127.0.0.1', 8000))"
      interval: 200ms
"""
ASK = """python3 -c "
import urllib.request as u
print(len(u.urlopen('http://side:8000/?$WORD').read()) > 0)
try: u.urlopen('http://192.0.2.7:81/')
except OSError as error: print(error)
" > /app/answer.txt"""


@pytest.mark.usefixtures("containers")
def test_services_logs_and_refused_hosts_are_recorded(make_task: MakeTask) -> None:
    path = make_task(
        toml='[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["vf.example"]',
        files={
            "environment/docker-compose.yaml": COMPOSE,
            "tests/test.sh": SCRIPT
            + "grep -q True /app/answer.txt && echo 1 > /logs/verifier/reward.txt\n",
        },
    )
    (trace,) = play(
        path, [bash(f"mkdir -p /app; WORD=plum; {ASK}; cat /app/answer.txt"), ""], network="task"
    )
    assert trace.reward == 1.0
    assert "GET /?plum" in record(trace)["services"]["side"]
    assert record(trace)["network"]["refused"] == {"192.0.2.7:81": 1}


SERVES = """
  {name}:
    image: vf-sandbox:latest
    command: [sh, -c, "echo {word} > /tmp/index.html && exec python3 -m http.server -d /tmp 8000"]
    healthcheck:
      test: python3 -c "import socket; socket.create_connection(('127.0.0.1', 8000))"
      interval: 200ms
"""
TWO = """
services:
  main:
    image: vf-sandbox:latest
    user: "0"
    depends_on: {judge: {condition: service_healthy}, decoy: {condition: service_healthy}}
""" + "".join(SERVES.format(name=name, word=word) for name, word in (("judge", 0), ("decoy", 1)))
HEAR = """python3 -c "import urllib.request as u; print(u.urlopen('http://judge:8000/').read())" """
RENAME = """
address=$(getent hosts decoy | cut -d ' ' -f 1)
sed "/judge/d" /etc/hosts > /tmp/hosts; echo "$address judge" >> /tmp/hosts
cat /tmp/hosts > /etc/hosts
echo 'hosts: files' > /etc/nsswitch.conf; echo 'multi on' > /etc/host.conf
echo 'nameserver 192.0.2.1' > /etc/resolv.conf; echo decoy > /etc/hostname
echo "judge $address" > ~/.hosts; echo 'HOSTALIASES=~/.hosts' >> /etc/environment
"""


@pytest.mark.usefixtures("containers")
def test_no_service_is_taken_for_another_when_hosts_were_renamed(make_task: MakeTask) -> None:
    path = make_task(
        files={
            "environment/docker-compose.yaml": TWO,
            "environment/Dockerfile": None,
            "tests/test.sh": f"{SCRIPT}{HEAR} | tr -dc 01 > /logs/verifier/reward.txt\n",
        }
    )
    script = [bash(f"{RENAME}{HEAR}"), ""]
    (trace,) = play(path, script, network="task")
    heard = next(message for message in trace.messages if message.role == "tool")
    assert "1" in heard.content, heard  # the agent itself is deceived
    put_back = {"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/hostname"}
    assert put_back <= {*record(trace)["put_back"]}
    assert record(trace)["rewards"] == {"reward": 0.0}


# Whatever the tests find in memory, they take for what they, or their programs, have put there.
LEAVE = """
git init -q /tmp/repo; git -C /tmp/repo config core.fsmonitor /tmp/pay
printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /tmp/pay; chmod 755 /tmp/pay
for folder in /tmp /dev/shm /dev/mqueue /cache; do echo left > "$folder/left"; done
mkdir -p /tmp/deep/er; touch /tmp/deep/er/file; chmod 000 /tmp/deep
"""
FIND = f"""{SCRIPT}echo 0 > /logs/verifier/reward.txt
git init -q /tmp/repo && git -C /tmp/repo status -s > /dev/null
ls -A /cache /dev/shm /dev/mqueue; ls -A /tmp
"""


@pytest.mark.usefixtures("containers")
def test_nothing_is_left_in_memory_beside_services(make_task: MakeTask) -> None:
    path = make_task(
        files={
            "environment/docker-compose.yaml": COMPOSE.replace(
                "main: {", 'main: {user: "0", tmpfs: [/cache], '
            ),
            "environment/Dockerfile": None,
            "tests/test.sh": FIND,
        }
    )
    (trace,) = play(path, [bash(LEAVE), ""])
    assert record(trace)["rewards"] == {"reward": 0.0}
    shown = record(trace)["tests"]["output"].split()
    assert shown == ["/cache:", "/dev/mqueue:", "/dev/shm:", "repo"]
