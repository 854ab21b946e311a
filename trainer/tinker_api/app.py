"""The Tinker API's HTTP face: a Starlette app that its clients work against."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from vf.inference.embedded.app import problems
from vf.inference.rendering.renderer import Renderer
from vf.inference.request_limits import off_loop
from vf.runtime.errors import ConfigError, EngineError
from vf.runtime.http_door import JSON, Door, Refused
from vf.trainer.tinker_api import requests as api
from vf.trainer.tinker_api.checkpoints import NotFound
from vf.trainer.tinker_api.datums import PassRequest, read_json, read_protobuf
from vf.trainer.tinker_api.keys import HEADER, KeyCheck, Keys
from vf.trainer.tinker_api.protobuf import WireError
from vf.trainer.tinker_api.registry import Registry
from vf.trainer.tinker_api.rest import rest_routes
from vf.trainer.tinker_api.samplers import Samplers
from vf.trainer.tinker_api.training import Training

TINKER_KEY = "tml-"
PROTOBUF = "application/x-protobuf"
MOST_BYTES = 64 * 2**20  # of a body; clients cut theirs at 5 MB
CHECK_SECONDS = 30.0  # between two looks for clients that have vanished
WAIT_SECONDS = 20.0  # in which a request is answered, with its result or without; clients wait 45
# How clients are to behave: send passes in their order and as protocol buffers, and leave
# redirects to the caller, as links to downloads need it.
CLIENT_CONFIG = {
    "parallel_fwdbwd_chunks": False,
    "proto_write_fwdbwd": True,
    "sample_join_sampling_session": True,
    "use_pyqwest_transport": False,
}
REFUSED = {
    "copy_weights": "copying weights between projects",
    "create_custom_loss": "custom losses on the server; clients compute them by themselves",
    "retrieve_futures": "asking for several results at once; clients ask for each",
    "save_weights_external": "saving in other formats; download the checkpoint as a PEFT folder",
    "whoami": "accounts",
    "audit": "an audit log",
    "billing/usage/events": "billing",
    "billing/usage/checkpoints/current": "billing",
    "auth/apikey/me": "accounts",
    "sessions/search": "searching for sessions",
    "mint/checkpoints/interpolate": "interpolating checkpoints",
    "mint/forward_backward_reverse_kl": "MinT's reverse KL; forward_backward_custom can compute it",
}

B = TypeVar("B", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]


def build_app(
    registry: Registry, renderer: Renderer, key: str | None, host: str, openai: ASGIApp
) -> Starlette:
    """Return the ASGI app.

    Args:
        registry: The models and sessions to serve.
        renderer: The model's.
        key: The API key that clients must send; None to require none.
        host: The address that it listens on.
        openai: Answers all other paths.
    """
    keys = Keys(key)
    routes = _Routes(registry, renderer, keys)
    posts: dict[str, Handler] = {
        "auth/token": routes.token,
        "client/config": routes.client_config,
        "client/dynamic_config": routes.dynamic_config,
        "create_session": routes.create_session,
        "session_heartbeat": routes.heartbeat,
        "telemetry": routes.telemetry,
        "create_model": routes.create_model,
        "get_info": routes.get_info,
        "unload_model": routes.unload_model,
        "forward": routes.forward,
        "forward_backward": routes.forward_backward,
        "optim_step": routes.optim_step,
        "save_weights": routes.save_weights,
        "save_weights_for_sampler": routes.save_for_sampler,
        "load_weights": routes.load_weights,
        "create_sampling_session": routes.create_sampler,
        "join_sampling_session": routes.join_sampler,
        "asample": routes.sample,
        "retrieve_future": routes.retrieve,
        "cancel_future": routes.cancel,
        "sessions/{session}/finish": routes.finish,
    }
    gets: dict[str, Handler] = {
        "healthz": routes.health,
        "get_server_capabilities": routes.capabilities,
        "samplers/{sampler}": routes.sampler,
        "sessions/{session}": routes.session,
        "sessions": routes.sessions,
    }
    prefix = "/api/v1/"
    table = [Route("/metrics", guarded(routes.metrics))]
    table += [Route(prefix + path, guarded(own), methods=["POST"]) for path, own in posts.items()]
    table += [Route(prefix + path, guarded(own)) for path, own in gets.items()]
    table += rest_routes(registry.checkpoints, keys, prefix, guarded)
    methods = ["GET", "POST", "PUT", "DELETE"]
    table += [
        Route(prefix + path, guarded(_refusing(what)), methods=methods)
        for path, what in REFUSED.items()
    ]
    table.append(Route(prefix + "{path:path}", guarded(_unknown), methods=methods))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(_end_silent(registry))
        yield
        task.cancel()

    return Starlette(
        lifespan=lifespan,
        middleware=[
            Middleware(Door, host=host, most=MOST_BYTES, kinds=(JSON, PROTOBUF), drained=True),
            Middleware(KeyCheck, keys=keys),
        ],
        routes=[*table, Mount("/", openai)],
    )


def guarded(handler: Handler) -> Handler:
    """Turn what a handler raises into errors that clients show at once."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Refused as error:
            return _error(str(error), error.status)
        except NotFound as error:
            return _error(str(error), 404)
        except ValidationError as error:
            return _error(problems(error), 422)
        except (ConfigError, WireError) as error:
            return _error(str(error), 400)
        except EngineError as error:
            return _error(str(error), 503)

    return answer


async def read(request: Request, kind: type[B]) -> B:
    """Return a request's body.

    Raises:
        ValidationError: If it is not of that kind.
    """
    raw = await request.body()
    return await off_loop(len(raw), lambda: kind.model_validate_json(raw))


class _Routes:
    def __init__(self, registry: Registry, renderer: Renderer, keys: Keys) -> None:
        self.registry, self.keys = registry, keys
        self.training, self.sampling = Training(registry), Samplers(registry, renderer)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.registry.metrics())

    async def capabilities(self, request: Request) -> Response:
        model = {
            "model_name": self.registry.names[0],
            "max_context_length": self.registry.limits.longest,
            "trainable": True,
            "sampleable": True,
        }
        return JSONResponse({"supported_models": [model]})

    async def client_config(self, request: Request) -> Response:
        await read(request, api.ClientConfig)
        # Clients send keys of another kind than Tinker's only in exchange for a token.
        exchanged = not request.headers.get(HEADER, TINKER_KEY).startswith(TINKER_KEY)
        return JSONResponse(CLIENT_CONFIG | {"pjwt_auth_enabled": exchanged})

    async def token(self, request: Request) -> Response:
        return JSONResponse({"jwt": self.keys.token()})

    async def dynamic_config(self, request: Request) -> Response:
        await read(request, api.ClientConfig)
        return JSONResponse({"sample_cancel_enabled": True})

    async def telemetry(self, request: Request) -> Response:
        return JSONResponse({"status": "accepted"})

    async def create_session(self, request: Request) -> Response:
        session = self.registry.create_session(await read(request, api.CreateSession))
        return JSONResponse({"type": "create_session", "session_id": session.id})

    async def heartbeat(self, request: Request) -> Response:
        self.registry.session((await read(request, api.Heartbeat)).session_id)
        return JSONResponse({"type": "session_heartbeat"})

    async def finish(self, request: Request) -> Response:
        self.registry.end_session(request.path_params["session"])
        return JSONResponse({})

    async def session(self, request: Request) -> Response:
        session = self.registry.session(request.path_params["session"])
        tenants, samplers = self.registry.tenants.values(), self.registry.samplers.values()
        return JSONResponse(
            {
                "training_run_ids": [t.id for t in tenants if t.session == session.id],
                "sampler_ids": [s.id for s in samplers if s.session == session.id],
                "user_metadata": session.user_metadata,
                "display_name": session.display_name,
            }
        )

    async def sessions(self, request: Request) -> Response:
        return JSONResponse({"sessions": [*self.registry.sessions]})

    async def create_model(self, request: Request) -> Response:
        return _future(self.training.create_model(await read(request, api.CreateModel)))

    async def get_info(self, request: Request) -> Response:
        tenant = self.registry.tenant((await read(request, api.OneModel)).model_id)
        tokenizer = self.registry.names[-1]  # a folder, where the model is one
        model = {"arch": None, "model_name": tokenizer, "tokenizer_id": tokenizer}
        return JSONResponse(
            {
                "type": "get_info",
                "model_data": model,
                "model_id": tenant.id,
                "is_lora": True,
                "lora_rank": tenant.shape.rank,
                "model_name": self.registry.names[0],
            }
        )

    async def unload_model(self, request: Request) -> Response:
        return _future(self.training.unload((await read(request, api.OneModel)).model_id))

    async def forward(self, request: Request) -> Response:
        return await self._pass(request, forward=True)

    async def forward_backward(self, request: Request) -> Response:
        return await self._pass(request, forward=False)

    async def _pass(self, request: Request, *, forward: bool) -> Response:
        raw = await request.body()
        protobuf = request.headers.get("content-type", "").startswith(PROTOBUF)
        limits = self.registry.limits

        def parse() -> PassRequest:
            if protobuf:
                return read_protobuf(raw, limits)
            return read_json(raw, limits, forward=forward)

        return _future(self.training.run_pass(await off_loop(len(raw), parse)))

    async def optim_step(self, request: Request) -> Response:
        return _future(self.training.optim_step(await read(request, api.OptimStep)))

    async def save_weights(self, request: Request) -> Response:
        return _future(self.training.save(await read(request, api.SaveWeights)))

    async def save_for_sampler(self, request: Request) -> Response:
        return _future(self.training.save(await read(request, api.SaveForSampler)))

    async def load_weights(self, request: Request) -> Response:
        return _future(self.training.load(await read(request, api.LoadWeights)))

    async def create_sampler(self, request: Request) -> Response:
        sampler = self.sampling.create_sampler(await read(request, api.CreateSampler))
        body = {"type": "create_sampling_session", "sampling_session_id": sampler.id}
        return JSONResponse(body)

    async def join_sampler(self, request: Request) -> Response:
        sampler = self.registry.sampler((await read(request, api.JoinSampler)).sampling_session_id)
        sampler.clients += 1
        return JSONResponse({"type": "join_sampling_session", "client_counter": sampler.clients})

    async def sampler(self, request: Request) -> Response:
        sampler = self.registry.sampler(request.path_params["sampler"])
        path = None if sampler.path is None else str(sampler.path)
        base = self.registry.names[-1]
        return JSONResponse({"sampler_id": sampler.id, "base_model": base, "model_path": path})

    async def sample(self, request: Request) -> Response:
        body = await read(request, api.Sample)
        request_id = self.sampling.sample(body)
        ids = [f"{request_id}:{index}" for index in range(body.num_samples)]
        return JSONResponse({"request_id": request_id, "sample_sequence_ids": ids})

    async def retrieve(self, request: Request) -> Response:
        request_id = (await read(request, api.Retrieve)).request_id
        result = await self.registry.futures.result(request_id, WAIT_SECONDS)
        if result is None:
            body = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(body, status_code=408)
        if PROTOBUF in request.headers.get("accept", ""):
            message = await asyncio.to_thread(result.protobuf)
            if message is not None:
                return Response(message, media_type=PROTOBUF)
        return JSONResponse(await asyncio.to_thread(result.json))

    async def cancel(self, request: Request) -> Response:
        self.registry.futures.cancel((await read(request, api.Retrieve)).request_id)
        return JSONResponse({})


async def _end_silent(registry: Registry) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        registry.end_silent()


def _refusing(what: str) -> Handler:
    async def refuse(request: Request) -> Response:
        raise Refused(f"this server does not offer {what}", 404)

    return refuse


async def _unknown(request: Request) -> Response:
    raise Refused(f"this server has no {request.method} {request.url.path}", 404)


def _future(request_id: str) -> Response:
    model_id = request_id.rpartition(":")[0]
    return JSONResponse({"request_id": request_id, "model_id": model_id})


def _error(message: str, status: int) -> Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return JSONResponse(body, status_code=status)
