"""Kill containers, evaluations and the engine at random, and see that nothing is left or made up.

    python scripts/check_sandbox_kills.py --episodes 1000 --seed 0

A Docker engine of its own runs in a network namespace of its own. On it, evaluations of small
episodes run one after the other, in containers of several kinds: read-only, writable, from an image
that a task brings, with a side service in a network, and one that takes snapshots. Meanwhile
SIGKILL goes, at random moments, to a container, to the evaluation (where the sandboxes' client is),
or to the engine: with everything that it runs, or alone. An evaluation that was killed is resumed;
a killed engine starts again.

After each evaluation:

- every episode has been scored once, and what had been scored before a kill is unchanged;
- no episode has a reward that did not read its secret from its container, and every one that did
  has it; none is blamed for a kill, so every episode that did not fail has read it;
- the engine holds no container, network, volume or image that it did not hold before.

Needs root, and the image of `vf-rl sandbox build`. Prints a line for each evaluation, with the seed
that repeats it, and ends with 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from own_dockerd import PATIENCE, Dockerd, wait_until

import vf
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.profile import DEFAULT_IMAGE
from vf.sandbox.images.builds import REPOSITORY as BUILT

EPISODES = 50  # of one evaluation
MOST_KILLS = 8  # in one evaluation
PARTS = {"container": 6, "client": 2, "engine": 1, "engine alone": 1}

ENVIRONMENT = """
import hashlib
from pathlib import Path

import vf
from vf.sandbox.spec import Build, SandboxSpec

KINDS = ["plain", "writable", "built", "snapshot", "composed"]


def secret(task):
    return hashlib.sha256(task.id.encode()).hexdigest()


def told(trace):
    return float(trace.reply.strip() == secret(trace.task))


class Kills(vf.Environment):
    max_turns = 2
    timeout = 120.0
    rubric = vf.Rubric(outcome=told)

    def __init__(self, tasks: int, build: str) -> None:
        self.count, self.build = tasks, Path(build)
        source = vf.sandbox_source({"backend": "docker", "pool": 3, "max_containers": 12})
        self.tools = [vf.BashTool(source)]

    def tasks(self, split):
        for n in range(self.count):
            yield vf.Task(f"t{n}", "cat secret; sleep 0.2", info={"kind": KINDS[n % len(KINDS)]})

    def sandbox_spec(self, task):
        match task.info["kind"]:
            case "plain":
                return None
            case "built":
                return SandboxSpec(build=Build(self.build))
            case "composed":
                return SandboxSpec(compose=self.build / "compose.yaml")
        return SandboxSpec(writable=True, workdir="/root")

    def reset(self, task):
        self.sandbox.write("secret", secret(task))
        if task.info["kind"] == "snapshot":
            self.sandbox.prepare = lambda sandbox: sandbox.snapshot()
        return self.first_messages(task)
"""


def secret_of(task: str) -> str:
    """Return what lies in a task's container, and nowhere else that a model sees."""
    return hashlib.sha256(task.encode()).hexdigest()


COMPOSE = f"""\
services:
  main:
    image: {DEFAULT_IMAGE}
  side:
    image: {DEFAULT_IMAGE}
    command: ["sleep", "600"]
"""


class Model(BaseHTTPRequestHandler):
    """A model that runs the command that its prompt is, and says what that printed."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a chat completion."""
        try:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        except ValueError:  # from a client that was killed in the middle of it
            return
        last = asked["messages"][-1]
        message: dict[str, Any] = {"role": "assistant", "content": last["content"]}
        if last["role"] == "user":
            arguments = json.dumps({"command": last["content"]})
            function = {"name": "bash", "arguments": arguments}
            message["content"] = None
            message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]
        reason = "tool_calls" if "tool_calls" in message else "stop"
        body = {
            "id": "a",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Serves the model, also to clients that are killed."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that is gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Run:
    """One evaluation in a folder."""

    def __init__(self, folder: Path, dockerd: Dockerd, url: str, tasks: int) -> None:
        self.folder, self.dockerd, self.tasks = folder, dockerd, tasks
        folder.mkdir()
        (folder / "kills_env.py").write_text(ENVIRONMENT)
        (folder / "eval.toml").write_text(
            f'output = "evals"\nmax_concurrent = 8\n[[models]]\nmodel = "script"\n'
            f'base_url = "{url}"\n[[environments]]\nid = "./kills_env.py"\n'
            f'[environments.args]\ntasks = {tasks}\nbuild = "{dockerd.folder}/context"\n'
        )
        self.client: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, or resume, the evaluation."""
        environ = os.environ | {
            "DOCKER_HOST": str(self.dockerd.address),
            "OPENAI_API_KEY": "none",
            "HOME": str(self.dockerd.folder),  # whose cache says which images are there
        }
        code = "import sys; from vf.trainer.commands.main import main; sys.exit(main())"
        with (self.folder / "log").open("ab") as log:
            self.client = subprocess.Popen(
                [sys.executable, "-c", code, "eval", "eval.toml"],
                cwd=self.folder,
                env=environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ended(self) -> bool:
        """Return whether the evaluation has ended."""
        return self.client is not None and self.client.poll() is not None

    def traces(self) -> list[vf.Trace]:
        """Return the whole lines of the traces' file."""
        files = list(self.folder.rglob("traces.jsonl"))
        lines = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
        return [vf.Trace.from_json(line) for line in lines if line]

    def scored(self) -> dict[str, bytes]:
        """Return what has been scored, by id."""
        return {t.id: t.to_json() for t in self.traces() if t.error is None}

    def kill(self, part: str, rng: random.Random) -> bool:
        """Kill something; return whether there was anything to kill."""
        if part == "client":
            assert self.client is not None
            self.client.kill()
            self.client.wait()
            self.start()
        elif part.startswith("engine"):
            self.dockerd.kill(alone=part == "engine alone")
            time.sleep(rng.uniform(0.0, 1.0))
            self.dockerd.start()
        else:
            with self.dockerd.connected() as engine:
                running = engine.call_now("containers")
                if not running:
                    return False
                with contextlib.suppress(Exception):  # it may have ended by now
                    engine.call_now("kill", rng.choice(running)["Id"])
        return True


def check(seed: int, dockerd: Dockerd, url: str, before: dict[str, list[str]]) -> str:
    """Run one evaluation under kills, and return what was killed.

    Raises:
        AssertionError: Something did not hold.
    """
    rng = random.Random(seed)
    killed: Counter[str] = Counter()
    run = Run(dockerd.folder / f"run-{seed}", dockerd, url, EPISODES)
    scored: dict[str, bytes] = {}
    run.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while len(run.scored()) < EPISODES:
            assert time.monotonic() < deadline, f"no episode was scored for {PATIENCE:g} s"
            time.sleep(rng.uniform(0.1, 3.0))
            if (found := run.scored()).keys() - scored.keys():
                deadline = time.monotonic() + PATIENCE
            scored |= found
            if sum(killed.values()) < MOST_KILLS and run.traces():
                part = rng.choices([*PARTS], [*PARTS.values()])[0]
                killed[part] += run.kill(part, rng)
            if run.ended():
                run.start()
        wait_until(run.ended, "the evaluation ends")
        hold(run, scored)
        # What a killed client has left is removed by the next one to start.
        run.start()
        wait_until(run.ended, "the finished evaluation is looked at")
        wait_until(lambda: dockerd.holds() == before, f"only {before} is left")
    except AssertionError as error:
        said = (run.folder / "log").read_text("utf-8", "replace")[-2000:]
        raise AssertionError(f"{error}; left: {dockerd.holds()}; log: {said}") from None
    finally:
        if run.client is not None:
            run.client.kill()
            run.client.wait()
    failed = sum(trace.error is not None for trace in run.traces())
    counts = ", ".join(f"{count} x {part}" for part, count in sorted(killed.items()) if count)
    return f"{EPISODES} episodes, killed {counts or 'nothing'}; {failed} failures on the way"


def hold(run: Run, before: dict[str, bytes]) -> None:
    """Check that each episode is there once, with the reward that it has earned."""
    traces = run.traces()
    now = {trace.id: trace.to_json() for trace in traces}
    for id, line in before.items():
        assert now.get(id) == line, f"lost or changed: {id}"
    for trace in traces:
        assert trace.error is None or trace.reward is None, f"a failure has a reward: {trace.id}"
        outputs = [m.content.strip() for m in trace.messages if m.role == "tool"]
        earned = trace.error is None and outputs == [secret_of(trace.task.id)]
        assert bool(trace.reward) == earned, f"reward {trace.reward} for {outputs}: {trace.id}"
        assert earned or trace.error is not None, f"blamed for a kill: {outputs}: {trace.id}"
    tasks = Counter(trace.task.id for trace in traces if trace.error is None)
    assert tasks == Counter(f"t{n}" for n in range(run.tasks)), f"each task once, not {tasks}"


@contextlib.contextmanager
def opened() -> Iterator[tuple[Dockerd, str]]:
    """Start the engine, with the default image in it, and the model."""
    folder = Path(tempfile.mkdtemp(prefix="vf-kills-"))
    server = Server(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "context").mkdir()
    (folder / "context" / "Dockerfile").write_text(f"FROM {DEFAULT_IMAGE}\nWORKDIR /work\n")
    (folder / "context" / "compose.yaml").write_text(COMPOSE)
    dockerd = Dockerd(folder)
    try:
        with dockerd.connected() as own, contextlib.closing(Engine.connect()) as engine:
            own.copy_image(DEFAULT_IMAGE, engine)
        yield dockerd, f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        dockerd.kill(alone=False)
        server.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run the checks and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    times, bad = -(-args.episodes // EPISODES), 0
    began = time.monotonic()
    with opened() as (dockerd, url):
        first = Run(dockerd.folder / "first", dockerd, url, 8)  # makes what lasts: kit and image
        first.start()
        wait_until(first.ended, "the first evaluation ends")
        hold(first, {})
        before = dockerd.holds()
        assert not before["containers"], before
        assert before["networks"] == ["host", "none"], before
        assert [name for name in before["images"] if name.startswith(BUILT)], before
        for seed in range(args.seed, args.seed + times):
            try:
                print(f"seed {seed}: {check(seed, dockerd, url, before)}", flush=True)
            except AssertionError as error:
                bad += 1
                print(f"seed {seed}: FAILED: {error}", flush=True)
    seconds = round(time.monotonic() - began)
    found = {"check": "sandbox_kills", "episodes": times * EPISODES, "failed": bad}
    print(json.dumps(found | {"seconds": seconds}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
