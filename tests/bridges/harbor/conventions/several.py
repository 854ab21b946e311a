"""Tasks of several containers or steps, and those that reach the network."""

from __future__ import annotations

from tests.bridges.harbor.conventions.writing import DOCKERFILE, SOLVE, pays_if, task

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
TESTS_IMAGE = "FROM vf-sandbox:latest\nCOPY . /tests\nRUN echo only-here > /opt/tests-image\n"
SIDE = """FROM vf-sandbox:latest
RUN mkdir /srv/data && echo from-the-side > /srv/data/word
"""
SERVE = '["python3", "-m", "http.server", "8000", "--directory", "/srv/data"]'
COMPOSE = f"""services:
  main:
    build:
      context: .
    depends_on:
      - side
  side:
    build: ./side
    command: {SERVE}
"""
HEALTHY = f"""services:
  main:
    depends_on:
      side:
        condition: service_healthy
    environment:
      WHERE: http://side:8000/word
  side:
    build:
      context: side
      dockerfile: Dockerfile
    command: {SERVE}
    environment:
      - A=B
    healthcheck:
      test: ["CMD", "python3", "-c", "import socket; socket.create_connection(('localhost', 8000))"]
      interval: 1s
      timeout: 3s
      retries: 10
"""
IMAGE_ONLY = """services:
  main: {}
  side:
    image: vf-sandbox:latest
    command:
      - python3
      - -c
      - |
        import http.server

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"from-the-side")

        http.server.HTTPServer(("", 8000), Handler).serve_forever()
"""
FETCH = """#!/bin/bash
for turn in $(seq 50); do
    python3 -c "import urllib.request as u
print(u.urlopen('{url}', timeout=5).read().decode().strip())" > /app/answer.txt && break
    sleep 0.2
done
"""
FETCHED = pays_if('[ "$(cat /app/answer.txt)" = from-the-side ]')
LOG = """import http.server


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        size = int(self.headers["Content-Length"])
        with open("/srv/log.txt", "ab") as file:
            file.write(self.rfile.read(size))
        self.send_response(200)
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        with open("/srv/log.txt", "rb") as file:
            self.wfile.write(file.read())


http.server.HTTPServer(("", 8000), Handler).serve_forever()
"""
POST = """#!/bin/bash
for turn in $(seq 50); do
    python3 -c "import urllib.request as u
u.urlopen('http://side:8000/', b'done', timeout=5)" && break
    sleep 0.2
done
"""
LOG_COMPOSE = """services:
  main:
    build: .
  side:
    build: side
    command: ["python3", "/srv/log.py"]
"""
LOG_SIDE = "FROM vf-sandbox:latest\nCOPY log.py /srv/log.py\n"


def step(name: str, answer: str, tests: str | None = None) -> dict[str, str]:
    """Return the files of a step whose solution appends to the answer."""
    return {
        f"steps/{name}/instruction.md": f"Append `{answer}` to /app/answer.txt.\n",
        f"steps/{name}/solution/solve.sh": f"#!/bin/bash\necho {answer} >> /app/answer.txt\n",
        f"steps/{name}/tests/test.sh": tests or pays_if(f"grep -qx {answer} /app/answer.txt"),
    }


def steps(toml: str, *parts: dict[str, str], **files: str) -> dict[str, str]:
    """Return the files of a task with steps."""
    found = task(toml)
    for name in ("instruction.md", "tests/test.sh", "solution/solve.sh"):
        del found[name]
    for part in parts:
        found |= part
    return found | files


TWO = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
GATED = TWO.replace('"one"\n', '"one"\nmin_reward = 1.0\n')
BY_KEY = TWO.replace('"one"\n', '"one"\nmin_reward = { reward = 0.5, style = 1.0 }\n')
STYLE = """#!/bin/bash
grep -qx one /app/answer.txt && paid=1
echo "{\\"reward\\": ${paid:-0}, \\"style\\": ${paid:-0}}" > /logs/verifier/reward.json
"""

STEPS = {
    "steps-mean": steps(TWO, step("one", "one"), step("two", "two")),
    "steps-final": steps(
        'multi_step_reward_strategy = "final"\n' + TWO,
        step("one", "one"),
        step("two", "two", pays_if('[ "$(tr "\\n" - < /app/answer.txt)" = one-two- ]')),
    ),
    "steps-min-reward": steps(GATED, step("one", "one"), step("two", "two")),
    "steps-min-reward-by-key": steps(BY_KEY, step("one", "one", STYLE), step("two", "two", STYLE)),
    "steps-files-and-setup": steps(
        TWO,
        step("one", "one"),
        step("two", "two", pays_if("grep -qx two answer.txt && [ -e given -a -e set-up ]")),
        **{"steps/two/workdir/given": "x", "steps/two/workdir/setup.sh": "touch set-up\n"},
    ),
    "steps-shared-tests": steps(
        TWO,
        step("one", "one", "#!/bin/bash\n. /tests/common.sh one\n"),
        step("two", "two", "#!/bin/bash\n. /tests/common.sh two\n"),
        **{"tests/common.sh": pays_if("grep -qx $1 /app/answer.txt")},
    ),
    "steps-user-and-times": steps(
        '[agent]\nuser = "robin"\n'
        + TWO.replace(
            '"two"\n',
            '"two"\nhealthcheck = { command = "true" }\n'
            "[steps.agent]\ntimeout_sec = 30.0\n"
            '[steps.verifier]\ntimeout_sec = 30.0\nenv = { WHO = "robin" }\n',
        ),
        step("one", "one"),
        step("two", "two", pays_if('[ "$(stat -c %U /app/two)" = "$WHO" ]')),
        **{
            "environment/Dockerfile": DOCKERFILE + "RUN useradd robin && chmod 777 /app\n",
            "steps/two/solution/solve.sh": "#!/bin/bash\ntouch /app/two\n",
        },
    ),
}
SEPARATED = {
    "verifier-own-image": task(
        'artifacts = ["/app/answer.txt"]\n' + SEPARATE,
        tests=pays_if('[ -e /opt/tests-image ] && [ "$(cat /app/answer.txt)" = done ]'),
        more={"tests/Dockerfile": TESTS_IMAGE},
    ),
    "verifier-fresh-copy": task(
        'artifacts = ["/app/answer.txt"]\n' + SEPARATE,
        solve=SOLVE + "rm -rf /opt/kept\n",
        dockerfile=DOCKERFILE + "RUN touch /opt/kept\n",
        tests=pays_if('[ -e /opt/kept ] && [ "$(cat /app/answer.txt)" = done ]'),
    ),
    "verifier-environment": task(
        'artifacts = ["/app"]\n[verifier.environment]\ncpus = 1\nmemory_mb = 256\n'
        '[verifier.environment.env]\nWANTED = "done"\n',
        tests=pays_if('[ "$(cat /app/answer.txt)" = "$WANTED" ]'),
        more={"tests/Dockerfile": TESTS_IMAGE},
    ),
    "verifier-logs-artifacts": task(
        SEPARATE,
        solve="#!/bin/bash\nmkdir -p /logs/artifacts/x && echo done > /logs/artifacts/x/y\n",
        tests=pays_if('[ "$(cat /logs/artifacts/x/y)" = done ]'),
        more={"tests/Dockerfile": TESTS_IMAGE},
    ),
    "verifier-artifact-tables": task(
        "artifacts = [\n"
        '    { source = "/app/kept", exclude = ["a.tmp"] },\n'
        '    { source = "/app/answer.txt", destination = "answers/first.txt" },\n]\n' + SEPARATE,
        solve=SOLVE + "mkdir /app/kept && touch /app/kept/a.tmp /app/kept/b\n",
        tests=pays_if('[ "$(ls /app/kept)" = b ] && [ "$(cat /app/answer.txt)" = done ]'),
    ),
    "verifier-collect": task(
        SEPARATE + "[[verifier.collect]]\n"
        'command = "mkdir -p /logs/artifacts; sh /app/program > /logs/artifacts/said"\n'
        "timeout_sec = 20.0\n",
        solve="#!/bin/bash\necho 'echo said by $(id -u)' > /app/program\n",
        tests=pays_if('[ "$(cat /logs/artifacts/said)" = "said by 0" ]'),
    ),
}
COMPOSED = {
    "compose-two-services": task(
        solve=FETCH.format(url="http://side:8000/word"),
        tests=FETCHED,
        more={"environment/docker-compose.yaml": COMPOSE, "environment/side/Dockerfile": SIDE},
    ),
    "compose-healthy": task(
        solve=FETCH.format(url="http://side:8000/word"),
        tests=pays_if(
            '[ "$(cat /app/answer.txt)" = from-the-side ] && [ "$WHERE" = http://side:8000/word ]'
        ),
        more={"environment/docker-compose.yaml": HEALTHY, "environment/side/Dockerfile": SIDE},
    ),
    "compose-image-of-service": task(
        solve=FETCH.format(url="http://side:8000/"),
        tests=FETCHED,
        more={"environment/docker-compose.yaml": IMAGE_ONLY},
    ),
    "compose-collect": task(
        SEPARATE + "[[verifier.collect]]\ncommand = \"mkdir -p /logs/artifacts; python3 -c 'import "
        'urllib.request as u; print(u.urlopen(\\"http://side:8000/\\").read().decode())\''
        ' > /logs/artifacts/seen.txt"\n',
        solve=POST,
        tests=pays_if('[ "$(cat /logs/artifacts/seen.txt)" = done ]'),
        more={
            "environment/docker-compose.yaml": LOG_COMPOSE,
            "environment/side/Dockerfile": LOG_SIDE,
            "environment/side/log.py": LOG,
            "tests/Dockerfile": TESTS_IMAGE,
        },
    ),
}
# The server's address comes from the variable VF_TEST_SERVER, as host:port.
ASK = """#!/bin/bash
python3 -c "import urllib.request as u
print(u.urlopen('http://$SERVER/word', timeout=10).read().decode().strip())" > /app/answer.txt
"""
REFUSED = (
    ASK
    + """
for url in http://$OTHER/word http://192.0.2.7/; do
    python3 -c "import urllib.request as u; u.urlopen('$url', timeout=5)" 2> /dev/null \\
        && echo reached >> /app/answer.txt
done
"""
)
SERVER = '[solution.env]\nSERVER = "${VF_TEST_SERVER}"\n'
NETWORK = {
    "network-allowlist": task(
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["@HOST@"]\n' + SERVER,
        solve=ASK,
        tests=pays_if('[ "$(cat /app/answer.txt)" = from-the-server ]'),
    ),
    "network-agent-only": task(
        '[environment]\nnetwork_mode = "no-network"\n'
        '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["*.example.com", "@HOST@/32"]\n'
        + SERVER
        + 'OTHER = "192.0.2.8"\n[verifier.env]\nSERVER = "${VF_TEST_SERVER}"\n',
        solve=REFUSED,
        tests=pays_if(
            '[ "$(cat /app/answer.txt)" = from-the-server ] && ! python3 -c "import '
            "urllib.request as u; u.urlopen('http://$SERVER/word', timeout=5)\""
        ),
    ),
    "network-none": task(
        '[environment]\nnetwork_mode = "no-network"\n' + SERVER,
        solve='#!/bin/bash\necho done > /app/answer.txt\npython3 -c "import urllib.request as u; '
        "u.urlopen('http://$SERVER/word', timeout=5)\" && echo reached > /app/answer.txt\n",
    ),
}
