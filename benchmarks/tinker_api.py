"""The training loop of MinT's documents against a server of the Tinker API: ours, and skyrl-tx.

    python benchmarks/tinker_api.py --steps 8 --rounds 3

Both serve the same model on this machine, by turns, to the same program
(`tests/trainer/tinker_api/seed_loop.py`): 64 samples of 16 tokens a step, and a gradient of them.
A step's seconds are those after the first, which compiles and warms up; all figures are medians.
With them alternate several clients of our server at once. Then what a call costs beside computing,
and how far losses differ that both servers return for the same data.

vf-rl's client is the SDK of `make tinker-sdks`. skyrl-tx 0.3.0 lacks routes that this asks
for, and has an environment of its own, with the last SDK that it serves:

    python -m venv ~/.cache/vf-rl/skyrl-tx
    ~/.cache/vf-rl/skyrl-tx/bin/pip install 'skyrl-tx[tinker]==0.3.0' 'jax<1' 'flax>=0.12.2' \
optax tinker==0.9.0
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from harness import missing, parse, print_result, say

ROOT = Path(__file__).parents[1]
CACHE = Path("~/.cache/vf-rl").expanduser()
SDKS = Path(os.environ.get("VF_TINKER_SDKS", CACHE / "tinker-sdks"))
LOOP = ROOT / "tests/trainer/tinker_api/seed_loop.py"
READY = 600.0  # seconds in which a server must answer
CALLS = 40  # of which the median is taken
IDS = [5, 9, 17, 33, 65, 129, 257, 6, 10, 18]


@contextmanager
def running(command: list[str], log: Path, ready: Callable[[], str | None]) -> Iterator[str]:
    """Run a server until the block ends; yield its URL."""
    with log.open("w") as file:
        path = f"{log.parent}:{os.environ['PATH']}"
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            cwd=log.parent,
            env=os.environ | {"PATH": path, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        )
    try:
        deadline = time.monotonic() + READY
        while (url := ready()) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} does not serve:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


@contextmanager
def ours(model: str, folder: Path) -> Iterator[str]:
    """Run our server."""
    log = folder / "ours.log"
    options = ["serve", model, "--train", "--port", "0", "--folder", str(folder / "runs")]

    def ready() -> str | None:
        found = re.search(r"URL\s+(http\S+)", log.read_text())
        return None if found is None else found[1]

    with running([sys.executable, "-m", "vf.trainer.commands.main", *options], log, ready) as url:
        yield url


@contextmanager
def skyrl(python: Path, model: Path, folder: Path) -> Iterator[str]:
    """Run skyrl-tx, which starts its engine with `uv`; its environment is there already."""
    uv = folder / "uv"
    uv.write_text(f'#!/bin/sh\nwhile [ "$1" != -m ]; do shift; done\nexec {python} "$@"\n')
    uv.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    settings = json.dumps({"max_lora_adapters": 8, "max_lora_rank": 16})
    options = ["--base-model", str(model), "--backend-config", settings]
    options += ["--checkpoints-base", str(folder / "checkpoints")]
    options += ["--database-url", f"sqlite:///{folder}/tinker.db"]
    options += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2]]

    def ready() -> str | None:
        try:
            return url if httpx.get(f"{url}/api/v1/healthz").is_success else None
        except httpx.TransportError:
            return None

    command = [str(python), "-m", "tx.tinker.api", *options]
    with running(command, folder / "skyrl.log", ready):
        yield url


def for_skyrl(model: str, folder: Path) -> Path:
    """Return a copy of a model that transformers 4, which skyrl-tx needs, can load."""
    from vf.inference.model_files import resolve_model

    copy = folder / "model"
    shutil.copytree(resolve_model(model), copy)
    for name, change in (
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("config.json", {"dtype": "float32"}),  # as ours computes on a CPU
    ):
        body = json.loads((copy / name).read_text()) | change
        body |= {k: v for k, v in (body.get("rope_parameters") or {}).items() if k == "rope_theta"}
        (copy / name).write_text(json.dumps(body))
    return copy


def loops(python: Path, url: str, model: str, steps: int, clients: int = 1) -> float:
    """Run clients at once; return the seconds of a step, the first not counted."""
    command = [str(python), "-W", "ignore", str(LOOP), "tinker", url, model, str(steps), "0"]
    processes = [
        subprocess.Popen(
            command, cwd="/", env={"OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE
        )
        for _ in range(clients)
    ]
    taken = []
    for process in processes:
        text, _ = process.communicate()
        ends = [float(second) for second in re.findall(r"step \d+: .*?, ([\d.]+) s", text)]
        if len(ends) != steps:
            raise SystemExit(f"a client of {url} failed:\n{text}")
        taken.append((ends[-1] - ends[0]) / (steps - 1))
    return statistics.mean(taken)


class Http:
    """A client of the calls that all versions of the API have, in JSON."""

    def __init__(self, url: str, model: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v1/", timeout=600.0)
        session = self.post("create_session", {"tags": [], "sdk_version": "0.9.0"})["session_id"]
        lora = {"rank": 8, "seed": 1, "train_unembed": False}
        body = {"session_id": session, "model_seq_id": 0, "base_model": model, "lora_config": lora}
        self.model = self.done("create_model", body)["model_id"]

    def post(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401
        """Post, until there is an answer."""
        while (answer := self._http.post(path, json=body)).status_code == 408:
            pass
        return answer.raise_for_status().json()

    def done(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401
        """Return the result of a request."""
        begun = self.post(path, body)
        return self.post("retrieve_future", {"request_id": begun["request_id"]})

    def pass_(self, loss: str, **inputs: list[float]) -> Any:  # noqa: ANN401
        """Run forward and backward on one sequence."""
        given = {name: {"data": data, "dtype": "float32"} for name, data in inputs.items()}
        given["target_tokens"] = {"data": IDS[1:], "dtype": "int64"}
        chunks = [{"type": "encoded_text", "tokens": IDS[:-1]}]
        datum = {"model_input": {"chunks": chunks}, "loss_fn_inputs": given}
        body = {"data": [datum], "loss_fn": loss}
        return self.done(
            "forward_backward", {"model_id": self.model, "forward_backward_input": body}
        )

    def step(self) -> None:
        """Take an optimizer step of 0."""
        adam = {"learning_rate": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
        self.done("optim_step", {"model_id": self.model, "adam_params": adam})


def logprobs(client: Http) -> list[float]:
    """Return the log-probabilities of a sequence's targets."""
    weights = [1.0] * (len(IDS) - 1)
    [output] = client.pass_("cross_entropy", weights=weights)["loss_fn_outputs"]
    values: list[float] = output["logprobs"]["data"]
    return values


def loss_gaps(ours: Http, theirs: Http) -> dict[str, float]:
    """Return the largest relative differences of what two servers return for the same data.

    Each token's loss is asked for alone, by its weight. The ratios are on both sides of where PPO
    clips, for each sign of the advantage.
    """
    own, other = logprobs(ours), logprobs(theirs)
    count = len(own)
    inputs = {
        "logprobs": [x + (-1) ** place * 0.05 * place for place, x in enumerate(own)],
        "advantages": [(-1) ** (place // 2) * 0.3 * (place + 1) for place in range(count)],
    }

    def loss(client: Http, name: str, token: int) -> float:
        weights = [float(token == place) for place in range(count)]
        result = client.pass_(name, weights=weights, **inputs)
        each = result["loss_fn_outputs"][0].get("elementwise_loss")
        return float(result["metrics"]["loss:sum"] if each is None else sum(each["data"]))

    found = {"logprobs": max(abs(x / y - 1) for x, y in zip(own, other, strict=True))}
    for name in ("importance_sampling", "ppo"):
        found[name] = max(
            abs(loss(ours, name, token) / loss(theirs, name, token) - 1) for token in range(count)
        )
    return found


def medians(*calls: Callable[[], object]) -> list[float]:
    """Return the milliseconds that calls take, which alternate."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(CALLS):
        for call, own in zip(calls, taken, strict=True):
            begun = time.perf_counter()
            call()
            own.append(1e3 * (time.perf_counter() - begun))
    return [statistics.median(own) for own in taken]


def in_process(model: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the same pass and step without a server."""
    import numpy as np

    from vf.inference.model_files import Checkpoint, find_model
    from vf.trainer.tinker_api.adapter import Adapter, AdapterShape
    from vf.trainer.tinker_api.datums import Datum
    from vf.trainer.tinker_api.losses import find_loss
    from vf.trainer.tinker_api.passes import Passes
    from vf.trainer.tinker_api.requests import AdamParams

    module = Checkpoint(find_model(model, model)).load().requires_grad_(False)
    passes, adapter = Passes(module, 256), Adapter(module, AdapterShape(8, train_unembed=False))
    ids = np.asarray(IDS)
    datum = Datum(ids[:-1], ids[1:], {"weights": np.ones(len(ids) - 1, np.float32)})
    loss, unmoved = find_loss("cross_entropy"), AdamParams.model_validate({"learning_rate": 0.0})

    def both() -> None:
        passes.run(adapter.live, [datum], loss, {}, gradient=True)
        adapter.take_gradient(keep=True)

    return both, lambda: adapter.step(unmoved)


def main() -> None:
    """Run the contenders by turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="tiny, or a folder (default: tiny)")
    parser.add_argument("--steps", type=int, default=8, help="steps of a loop")
    parser.add_argument("--rounds", type=int, default=3, help="loops of each server, by turns")
    parser.add_argument("--tenants", type=int, default=4, help="clients at once")
    parser.add_argument("--sdk", type=Path, default=SDKS / "tinker/bin/python")
    parser.add_argument("--peer", type=Path, default=CACHE / "skyrl-tx/bin/python")
    args = parse(parser, steps=2, rounds=1, tenants=2)
    if not args.sdk.exists():
        missing("the SDK of the Tinker API: make tinker-sdks")
    more: dict[str, Any] = {"model": args.model}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {"ours": (args.sdk, stack.enter_context(ours(args.model, folder)), args.model)}
        if args.peer.exists() and not args.smoke:
            copy = for_skyrl(args.model, folder)
            url = stack.enter_context(skyrl(args.peer, copy, folder))
            servers["skyrl-tx"] = args.peer, url, str(copy)
        else:
            print(f"skyrl-tx is not installed in {args.peer}, or not for --smoke", file=sys.stderr)
        many = f"{args.tenants} clients at once"
        runs = [(name, *server, 1) for name, server in servers.items()]
        runs.append((many, *servers["ours"], args.tenants))
        taken: dict[str, list[float]] = {name: [] for name, *_ in runs}
        for number in range(args.rounds):
            for name, python, url, model, clients in runs:
                taken[name].append(loops(python, url, model, args.steps, clients))
                say(f"round {number}, {name}: {taken[name][-1]:.3f} s a step")
        typical = {name: statistics.median(values) for name, values in taken.items()}
        cost = typical[many] / typical["ours"]
        say(f"{many}: {cost:.2f} x one")
        _, url, model = servers["ours"]
        client = Http(url, model)
        own_pass, own_step = in_process(args.model)
        weights = [1.0] * (len(IDS) - 1)
        pass_ms = medians(lambda: client.pass_("cross_entropy", weights=weights), own_pass)
        step_ms = medians(client.step, own_step)
        more |= {
            "seconds_a_step": typical,
            "tenants_cost": cost,
            "ms_a_pass": pass_ms,
            "ms_an_optim_step": step_ms,
        }
        say(f"ms a call, served and in process: pass {pass_ms}, optimizer's step {step_ms}")
        if "skyrl-tx" in servers:
            _, url, model = servers["skyrl-tx"]
            more["loss_gaps"] = loss_gaps(client, Http(url, model))
            say(f"largest differences from skyrl-tx: {more['loss_gaps']}")
    ratio = typical["skyrl-tx"] / typical["ours"] if "skyrl-tx" in typical else None
    print_result(args, "tinker_api", ratio=ratio, target=3.0, **more)


if __name__ == "__main__":
    main()
