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
