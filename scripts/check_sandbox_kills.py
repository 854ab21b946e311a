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
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from killing import PATIENCE, KilledEvaluation, repeat, wait_until
from own_dockerd import Dockerd

import vf
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.hardening import DEFAULT_IMAGE
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


class Run(KilledEvaluation):
    """One evaluation in a folder, in containers of an engine of its own."""

    def __init__(self, folder: Path, dockerd: Dockerd, url: str, tasks: int) -> None:
        # Its home has the cache that says which images are there.
        environ = {"DOCKER_HOST": str(dockerd.address), "HOME": str(dockerd.folder)}
        super().__init__(folder, tasks, environ)
        self.dockerd = dockerd
        folder.mkdir()
        (folder / "kills_env.py").write_text(ENVIRONMENT)
        (folder / "eval.toml").write_text(
            f'output = "evals"\nmax_concurrent = 8\n[[models]]\nmodel = "script"\n'
            f'base_url = "{url}"\n[[environments]]\nid = "./kills_env.py"\n'
            f'[environments.args]\ntasks = {tasks}\nbuild = "{dockerd.folder}/context"\n'
        )

    def kill_part(self, part: str, rng: random.Random) -> bool:
        """Kill something; return whether there was anything to kill."""
        if part == "client":
            self.kill()
            self.start_evaluation()
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
    run.start_evaluation()
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
                killed[part] += run.kill_part(part, rng)
            if run.ended():
                run.start_evaluation()
        wait_until(run.ended, "the evaluation ends")
        hold(run, scored)
        # What a killed client has left is removed by the next one to start.
        run.start_evaluation()
        wait_until(run.ended, "the finished evaluation is looked at")
        wait_until(lambda: dockerd.holds() == before, f"only {before} is left")
    except AssertionError as error:
        said = (run.folder / "log").read_text("utf-8", "replace")[-2000:]
        raise AssertionError(f"{error}; left: {dockerd.holds()}; log: {said}") from None
    finally:
        run.kill()
    failed = sum(trace.error is not None for trace in run.traces())
    counts = ", ".join(f"{count} x {part}" for part, count in sorted(killed.items()) if count)
    return f"{EPISODES} episodes, killed {counts or 'nothing'}; {failed} failures on the way"


def earned(trace: vf.Trace) -> bool:
    """Return whether a trace's secret was read from its container."""
    outputs = [m.content.strip() for m in trace.messages if m.role == "tool"]
    return outputs == [secret_of(trace.task.id)]


def hold(run: Run, before: dict[str, bytes]) -> None:
    """Check that each episode is there once, and that none is blamed for a kill."""
    for trace in run.hold(before, earned):
        if trace.error is None:
            assert earned(trace), f"blamed for a kill: {trace.id}"
            assert trace.reward, f"no reward for what was earned: {trace.id}"
    run.hold_whole()


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
    times = -(-args.episodes // EPISODES)
    with opened() as (dockerd, url):
        first = Run(dockerd.folder / "first", dockerd, url, 8)  # makes what lasts: kit and image
        first.start_evaluation()
        wait_until(first.ended, "the first evaluation ends")
        hold(first, {})
        before = dockerd.holds()
        assert not before["containers"], before
        assert before["networks"] == ["host", "none"], before
        assert [name for name in before["images"] if name.startswith(BUILT)], before
        return repeat(
            "sandbox_kills",
            range(args.seed, args.seed + times),
            lambda seed: check(seed, dockerd, url, before),
            episodes=times * EPISODES,
        )


if __name__ == "__main__":
    sys.exit(main())
