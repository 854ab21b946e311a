"""Tasks of one container whose tests run in it."""

from __future__ import annotations

from tests.bridges.harbor.conventions.writing import DOCKERFILE, pays_if, task

FULL = """
source = "somewhere"

[task]
name = "org/single-full"
version = "1.0.0"
description = "Says everything."
authors = [{ name = "Robin Doe", email = "robin@example.com" }]
keywords = ["files", "shell"]

[metadata]
difficulty = "easy"
author_name = "Robin Doe"
expert_time_estimate_min = 1.5
anything = { else = ["too"] }

[verifier]
timeout_sec = 60.0

[agent]
timeout_sec = 60

[environment]
build_timeout_sec = 300.0
cpus = 0.5
memory_mb = 512
storage_mb = 1024
gpus = 0
os = "linux"
"""
OLD = """
[metadata]
tags = ["old"]

[environment]
memory = "1G"
storage = "2G"
cpus = 1
allow_internet = true
"""
JSON = """#!/bin/bash
one=0; two=0
[ -s /app/answer.txt ] && one=1
grep -q done /app/answer.txt && two=1.0
echo "{\\"reward\\": $one, \\"quality\\": $two}" > /logs/verifier/reward.json
"""
BOTH = """#!/bin/bash
echo 0 > /logs/verifier/reward.txt
grep -q done /app/answer.txt && paid=1
echo "{\\"reward\\": ${paid:-0}}" > /logs/verifier/reward.json
"""
PYTHON_TEST = """#!/bin/bash
cd /tests && python3 checks.py
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
CHECKS = """import unittest
from pathlib import Path


class Answer(unittest.TestCase):
    def test_answer(self):
        wanted = (Path(__file__).parent / "data" / "wanted.txt").read_text()
        self.assertEqual(Path("/app/answer.txt").read_text(), wanted)


unittest.main()
"""
HEALTH = """
[environment.healthcheck]
command = "n=$(cat /tmp/n || echo 0); echo $((n + 1)) > /tmp/n; [ $n -ge 2 ]"
interval_sec = 0.1
timeout_sec = 5.0
retries = 5
"""
GRACE = """
[environment.healthcheck]
command = "echo x >> /tmp/n; [ $(wc -l < /tmp/n) -gt 6 ] && touch /app/healthy"
interval_sec = 0.1
start_period_sec = 30.0
start_interval_sec = 0.1
retries = 1
"""
STAGES = """ARG BASE=vf-sandbox:latest
FROM $BASE AS maker
RUN mkdir /made && echo secret-word > /made/word
FROM vf-sandbox:latest
ARG NAME=answer
ENV ANSWER=/app/$NAME.txt
COPY --from=maker /made /opt/made
COPY data/ /opt/data/
WORKDIR /app
"""
USERS = DOCKERFILE + "RUN useradd -m -u 4321 robin && chmod 777 /app\n"

SINGLE = {
    "single-minimal": task(),
    "single-full": task(FULL),
    "single-schema-1.0": task(version='schema_version = "1.0"'),
    "single-schema-1.1": task(version='schema_version = "1.1"'),
    "single-schema-1.3": task(version='schema_version = "1.3"'),
    "single-older-names": task(OLD, version='version = "1.0"'),
    "single-comments": task(
        "# canary\n", more={"instruction.md": "<!-- canary GUID x -->\n\nWrite it.\n"}
    ),
    "single-empty-dockerfile": task(
        dockerfile="FROM vf-sandbox:latest\n",
        solve="#!/bin/bash\nmkdir -p /app && echo done > /app/answer.txt\n",
    ),
    "single-build-stages": task(
        dockerfile=STAGES,
        solve="#!/bin/bash\ncat /opt/made/word /opt/data/part > $ANSWER\n",
        tests=pays_if('[ "$(cat /app/answer.txt | tr "\\n" -)" = secret-word-two- ]'),
        more={
            "environment/data/part": "two\n",
            "environment/data/ignored.log": "not copied\n",
            "environment/.dockerignore": "**/*.log\n",
        },
    ),
    "single-tests-with-files": task(
        tests=PYTHON_TEST, more={"tests/checks.py": CHECKS, "tests/data/wanted.txt": "done\n"}
    ),
    "single-solution-with-files": task(
        solve='#!/bin/sh\ncp "$(dirname "$0")/files/answer.txt" /app/answer.txt\n',
        more={"solution/files/answer.txt": "done\n"},
    ),
    "single-script-without-mode": task(tests=pays_if().removeprefix("#!/bin/bash\n")),
    "reward-json": task(tests=JSON),
    "reward-json-over-text": task(tests=BOTH),
    "reward-late-exit-code": task(tests=pays_if() + "exit 3\n"),
    "prebuilt-image": task(
        '[environment]\ndocker_image = "vf-sandbox:latest"\n',
        dockerfile=None,
        solve="#!/bin/bash\nmkdir -p /app && echo done > /app/answer.txt\n",
        more={"environment/README": "Nothing is built.\n"},
    ),
    "healthcheck": task(HEALTH, tests=pays_if('[ "$(cat /tmp/n)" = 3 ] && [ -s /app/answer.txt ]')),
    "healthcheck-grace": task(
        GRACE, tests=pays_if("[ -e /app/healthy ] && [ -s /app/answer.txt ]")
    ),
    "user-image": task(
        dockerfile=USERS + "USER robin\n",
        tests=pays_if('[ "$(stat -c %U /app/answer.txt)" = robin ]'),
    ),
    "user-agent": task(
        '[agent]\nuser = "robin"\n[verifier]\nuser = "root"\n',
        dockerfile=USERS,
        solve="#!/bin/bash\nid -un > /app/answer.txt\n",
        tests=pays_if('[ "$(cat /app/answer.txt)-$(id -un)" = robin-root ]'),
    ),
    "user-number": task(
        "[agent]\nuser = 4321\n",
        dockerfile=USERS,
        solve="#!/bin/bash\nid -u > /app/answer.txt\n",
        tests=pays_if('[ "$(cat /app/answer.txt)" = 4321 ]'),
    ),
    "user-verifier": task(
        '[verifier]\nuser = "robin"\n',
        dockerfile=USERS,
        solve="#!/bin/bash\necho done > /app/answer.txt; chmod 644 /app/answer.txt\n",
        tests=pays_if('[ "$(id -un)" = robin ] && [ "$(cat /app/answer.txt)" = done ]'),
    ),
    "workdir": task(
        '[environment]\nworkdir = "/opt/work"\n',
        dockerfile=DOCKERFILE + "RUN mkdir -p /opt/work\n",
        solve="#!/bin/bash\npwd > answer.txt\n",
        tests=pays_if('[ "$(cat /opt/work/answer.txt)" = /opt/work ] && [ "$PWD" = /opt/work ]'),
    ),
    "workdir-of-image": task(
        solve="#!/bin/bash\necho done > answer.txt\n",
        tests=pays_if('[ "$PWD" = /app ] && [ "$(cat answer.txt)" = done ]'),
    ),
    "env": task(
        '[environment.env]\nGREETING = "hello ${NAME}"\nNAME = "${VF_TEST_UNSET:-world}"\n'.replace(
            "hello ${NAME}", "${VF_TEST_UNSET:-hello}"
        )
        + '[solution.env]\nWORD = "done"\n[verifier.env]\nWANTED = "done hello world"\n',
        solve='#!/bin/bash\necho "$WORD $GREETING $NAME" > /app/answer.txt\n',
        tests=pays_if('[ -n "$WANTED" ] && [ "$(cat /app/answer.txt)" = "$WANTED" ]'),
    ),
    "env-of-image": task(
        dockerfile=DOCKERFILE + 'ENV WORD="two words" PATH=/opt/bin:$PATH\n'
        'RUN mkdir /opt/bin && printf "#!/bin/sh\\necho tool \\$WORD" > /opt/bin/tool'
        " && chmod +x /opt/bin/tool\n",
        solve="#!/bin/bash\ntool > /app/answer.txt\n",
        tests=pays_if('[ "$(cat /app/answer.txt)" = "tool two words" ]'),
    ),
}
