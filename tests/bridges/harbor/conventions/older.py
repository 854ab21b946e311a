"""Tasks in Terminal-Bench's older format."""

from __future__ import annotations

from tests.bridges.harbor.conventions.writing import DOCKERFILE

YAML = """instruction: |-
  Write `done` to /app/answer.txt.
author_name: Robin Doe
author_email: robin@example.com
difficulty: easy
category: file-operations
tags:
  - files
parser_name: pytest
max_agent_timeout_sec: 60
max_test_timeout_sec: 60
run_tests_in_same_shell: false
expert_time_estimate_min: 1
junior_time_estimate_min: 2
"""
COMPOSE = """services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
"""
TWO_SERVICES = (
    COMPOSE
    + """    depends_on:
      - side
  side:
    image: vf-sandbox:latest
    command: ["python3", "-m", "http.server", "8000", "--directory", "/etc"]
"""
)
RUN = """#!/bin/bash
python3 "$TEST_DIR/test_outputs.py"
"""
# Prints what pytest prints; pytest itself is not in the image.
TESTS = """import sys
import traceback


def test_answer():
    assert open("/app/answer.txt").read().strip() == "done"


def test_nothing_else():
    pass


failed = []
tests = [test_answer, test_nothing_else]
for test in tests:
    try:
        test()
    except Exception:
        traceback.print_exc()
        failed.append(test)
print("=" * 27, "short test summary info", "=" * 28)
for test in tests:
    print("FAILED" if test in failed else "PASSED", f"test_outputs.py::{test.__name__}")
print("=" * 30, f"{len(failed)} failed, {len(tests) - len(failed)} passed in 0.01s", "=" * 30)
sys.exit(bool(failed))
"""
FETCH = """#!/bin/bash
for turn in $(seq 50); do
    python3 -c "import urllib.request as u; u.urlopen('http://side:8000/hostname', timeout=5)" \\
        && echo done > /app/answer.txt && break
    sleep 0.2
done
"""


def older(**files: str) -> dict[str, str]:
    """Return the files of a task."""
    return {
        "task.yaml": YAML,
        "Dockerfile": DOCKERFILE,
        "docker-compose.yaml": COMPOSE,
        "run-tests.sh": RUN,
        "tests/test_outputs.py": TESTS,
        "solution.sh": "#!/bin/bash\necho done > /app/answer.txt\n",
        **files,
    }


OLDER = {
    "older-one-service": older(),
    "older-two-services": older(**{"docker-compose.yaml": TWO_SERVICES, "solution.sh": FETCH}),
    "older-defaults": older(
        **{
            "task.yaml": "instruction: Write done to answer.txt.\n",
            "solution.sh": "echo done > answer.txt\n",
        }
    ),
    "older-files-of-tests": older(
        **{
            "run-tests.sh": "cp $TEST_DIR/words /tmp/words && python3 $TEST_DIR/test_outputs.py\n",
            "tests/words": "done\n",
            "tests/test_outputs.py": TESTS.replace(
                '== "done"', '== open("/tmp/words").read().strip()'
            ),
        }
    ),
}
