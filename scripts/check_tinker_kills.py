"""Kill servers of the Tinker API under a training loop, and see that nothing saved is another.

    python scripts/check_tinker_kills.py --kills 30 --seed 0

A client trains an adapter of the tiny model on a server in a process of its own, saves it after
each step, and sends every request twice. SIGKILL goes to the server at a moment that a seeded draw
chooses, from the loop's first request on; then the server is started again on the same folder, and
the loop continues from the last save that was answered. Each save that was answered must be there,
the last one with the same log-probabilities; and at the end, all must be those of a server that was
never killed, bit for bit: a step that was lost or taken twice would show.

Prints a line for each kill, and ends with 1 if anything was lost or differs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.trainer.tinker_api.api_client import ApiClient, datum, running_api
from tests.trainer.tinker_api.test_kills import reached
from tests.trainer.tinker_api.test_training_requests import IDS
from vf.runtime.command import DONE, FAILED

SECONDS = 2.0  # in which a kill comes, from the loop's first request on
Saved = tuple[str, Any]  # a checkpoint's path, and the log-probabilities there, after each step


# Its children need not import everything again.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["tests.trainer.tinker_api.api_client"])


def serve(folder: Path, pipe: Connection) -> None:
    """Serve until the process is killed; the URL goes through the pipe."""
    with running_api(folder) as api:
        pipe.send(str(api.http.base_url))
        threading.Event().wait()


@contextmanager
def served(folder: Path) -> Iterator[tuple[Any, ApiClient]]:
    """Run a server; yield its process and a client."""
    ours, theirs = CHILDREN.Pipe()
    process = CHILDREN.Process(target=serve, args=(folder, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        with httpx.Client(base_url=ours.recv(), timeout=600) as http:
            yield process, ApiClient(SimpleNamespace(), http)  # type: ignore[arg-type]
    finally:
        process.kill()
        process.join()


def twice(api: ApiClient, path: str, model: str, /, **body: Any) -> Any:
    """Begin a request, repeat it, and return its result."""
    begun = api.begin(path, model, **body)
    api.numbers[model] -= 1
    assert api.begin(path, model, **body) == begun, "a repeated request is another"
    return api.result(begun)


def step(api: ApiClient, model: str, number: int) -> Saved:
    """Take a step and save."""
    given = {"data": [datum(IDS)], "loss_fn": "cross_entropy"}
    twice(api, "forward_backward", model, forward_backward_input=given)
    twice(api, "optim_step", model, adam_params={"learning_rate": 0.01 / (1 + number)})
    path = twice(api, "save_weights", model, path=f"step-{number}")["path"]
    return path, reached(api, model)


def resume(api: ApiClient, saved: list[Saved]) -> str:
    """Return the model of the last save, or a new one; see that all that was saved is there."""
    for path, _ in saved:
        assert api.post("weights_info", {"tinker_path": path})["lora_rank"] == 4, f"lost: {path}"
    if not saved:
        return api.model()
    path, expected = saved[-1]
    body = {"session_id": api.session(), "model_seq_id": 0, "optimizer": True, "path": path}
    model: str = api.done("load_weights", body)["model_id"]
    assert reached(api, model) == expected, f"differs: {path}"
    return model


def main() -> int:
    """Check, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    args = parser.parse_args()
    rng, saved = random.Random(args.seed), list[Saved]()
    with tempfile.TemporaryDirectory() as root:
        for number in range(args.kills):
            with served(Path(root) / "killed") as (process, api):
                model = resume(api, saved)
                delay = rng.uniform(0.0, SECONDS)
                killer = threading.Timer(delay, process.kill)
                killer.start()
                try:
                    while True:
                        saved.append(step(api, model, len(saved)))
                except httpx.TransportError:
                    killer.join()
            print(f"kill {number + 1} after {delay:.2f} s: {len(saved)} steps saved", flush=True)
        with served(Path(root) / "killed") as (_, api):
            resume(api, saved)
        with served(Path(root) / "left alone") as (_, api):
            model = api.model()
            alone = [step(api, model, number)[1] for number in range(len(saved))]
    differ = [path for (path, own), other in zip(saved, alone, strict=True) if own != other]
    print(f"{args.kills} kills, {len(saved)} steps; differs: {', '.join(differ) or 'nothing'}")
    return FAILED if differ else DONE


if __name__ == "__main__":
    sys.exit(main())
