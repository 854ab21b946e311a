"""Training runs and checkpoints over HTTP: lists, expiry, deletion, and downloads."""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from vf.runtime.http_door import Refused
from vf.trainer.tinker_api import requests as api
from vf.trainer.tinker_api.checkpoints import KINDS, CheckpointPath, Checkpoints, check_name, when
from vf.trainer.tinker_api.keys import SIGNATURE, Keys

Handler = Callable[[Request], Awaitable[Response]]
LINK_SECONDS = 900.0  # that clients may count on a download's link
MOST_LISTED = 1000


def rest_routes(
    store: Checkpoints, keys: Keys, prefix: str, guarded: Callable[[Handler], Handler]
) -> list[Route]:
    """Return the routes.

    Args:
        store: The checkpoints that they serve.
        keys: Sign links.
        prefix: The beginning of their paths.
        guarded: Turns what a handler raises into answers.
    """
    routes = _Rest(store, keys)
    run = prefix + "training_runs/{run}"
    checkpoint = run + "/checkpoints/{kind}/{name}"
    table: list[tuple[str, str, Handler]] = [
        ("GET", prefix + "training_runs", routes.runs),
        ("GET", run, routes.run),
        ("GET", run + "/checkpoints", routes.of_run),
        ("GET", prefix + "checkpoints", routes.checkpoints),
        ("DELETE", checkpoint, routes.delete),
        ("PUT", checkpoint + "/ttl", routes.expire),
        ("GET", checkpoint + "/archive", routes.archive),
        ("GET", checkpoint + "/archive.tar", routes.download),
        ("POST", prefix + "weights_info", routes.weights_info),
    ]
    return [Route(path, guarded(own), methods=[method]) for method, path, own in table] + [
        Route(f"{checkpoint}/publish", guarded(_unpublished), methods=["POST", "DELETE"])
    ]


class _Rest:
    def __init__(self, store: Checkpoints, keys: Keys) -> None:
        self.store, self.keys = store, keys

    async def runs(self, request: Request) -> Response:
        every = [self._described(run, about) for run, about in self.store.runs().items()]
        every.sort(key=lambda run: str(run["last_request_time"]), reverse=True)
        shown, cursor = _page(request, every)
        return JSONResponse({"training_runs": shown, "cursor": cursor})

    async def run(self, request: Request) -> Response:
        run = request.path_params["run"]
        if (about := self.store.runs().get(run)) is None:
            raise Refused(f"training run {run[:200]!r}: there is no such run", 404)
        return JSONResponse(self._described(run, about))

    async def of_run(self, request: Request) -> Response:
        run = request.path_params["run"]
        check_name(run, "training_run_id")
        return JSONResponse({"checkpoints": self.store.listed(run)})

    async def checkpoints(self, request: Request) -> Response:
        shown, cursor = _page(request, self.store.listed())
        return JSONResponse({"checkpoints": shown, "cursor": cursor})

    async def delete(self, request: Request) -> Response:
        self.store.delete(_path(request))
        return Response(status_code=204)

    async def expire(self, request: Request) -> Response:
        body = api.Expiry.model_validate_json(await request.body())
        self.store.expire(_path(request), body.ttl_seconds)
        return Response(status_code=204)

    async def archive(self, request: Request) -> Response:
        self.store.info(_path(request))
        path = request.url.path + ".tar"
        link = request.url.replace(path=path, query=f"{SIGNATURE}={self.keys.sign(path)}")
        expires = formatdate(time.time() + LINK_SECONDS, usegmt=True)
        return RedirectResponse(str(link), 302, {"Expires": expires})

    async def download(self, request: Request) -> Response:
        files = self.store.files(_path(request))

        def pack() -> bytes:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as tar:
                for file in files:
                    tar.add(file, file.name)
                tar.addfile(tarfile.TarInfo("checkpoint_complete"))
            return buffer.getvalue()

        return Response(await asyncio.to_thread(pack), media_type="application/x-tar")

    async def weights_info(self, request: Request) -> Response:
        body = api.WeightsInfo.model_validate_json(await request.body())
        info = self.store.info(CheckpointPath.parse(body.tinker_path))
        shape = {name: info.shape[name] for name in ("train_attn", "train_mlp", "train_unembed")}
        model = {"base_model": info.base_model, "is_lora": True, "lora_rank": info.shape["rank"]}
        return JSONResponse(model | shape)

    def _described(self, run: str, about: dict[str, Any]) -> dict[str, Any]:
        checkpoints = self.store.listed(run)
        last = {
            kind: next((one for one in checkpoints if one["checkpoint_type"] == kind), None)
            for kind in KINDS.values()
        }
        return {
            "training_run_id": run,
            "base_model": about["base_model"],
            "model_owner": "local",
            "is_lora": True,
            "lora_rank": about["shape"]["rank"],
            "last_request_time": checkpoints[0]["time"] if checkpoints else when(about["created"]),
            "last_checkpoint": last["training"],
            "last_sampler_checkpoint": last["sampler"],
            "user_metadata": about["user_metadata"],
        }


def _path(request: Request) -> CheckpointPath:
    part = request.path_params
    return CheckpointPath.parse(f"tinker://{part['run']}/{part['kind']}/{part['name']}")


def _page(request: Request, every: list[dict[str, Any]]) -> tuple[list[Any], dict[str, int]]:
    """Return the part of a list that a request asks for, and which it is."""
    limit, offset = (
        _count(request, name, default) for name, default in (("limit", 20), ("offset", 0))
    )
    cursor = {"offset": offset, "limit": limit, "total_count": len(every)}
    return every[offset : offset + limit], cursor


def _count(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise Refused(f"{name} = {text[:100]!r}: must be a whole number", 422)
    return min(int(text), MOST_LISTED) if name == "limit" else int(text)


async def _unpublished(request: Request) -> Response:
    raise Refused("this server does not offer publishing checkpoints", 404)
