"""The output of a submitted run, from a head that is away for a while."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from aiohttp import web

from tests.parts import REQUIRE_ALL
from vf.cluster import ray_jobs
from vf.cluster.ray_jobs import submit_job
from vf.runtime.errors import InfrastructureError
from vf.testing.fake_server import listening

if not REQUIRE_ALL:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

LINES = ["one\n", "two\n"]
JOB = {"type": "SUBMISSION", "entrypoint": "", "submission_id": "job-1"}


class Head:
    """Takes a job as a cluster's head does, and sends its output.

    Attributes:
        answers: How it answers each request for the output, the last one for ever: ``all`` of it,
            ``part`` of it before the connection breaks, or ``busy``.
        url: Where.
    """

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.url = ""

    async def logs(self, request: web.Request) -> web.StreamResponse:
        how = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if how == "busy":
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for line in LINES[: 1 if how == "part" else None]:
            await socket.send_str(line)
        if how == "part":
            assert request.transport is not None
            request.transport.abort()
        else:
            await socket.close()
        return socket

    async def job(self, request: web.Request) -> web.Response:
        ended = self.answers == ["all"]
        status = {"status": "SUCCEEDED"} if ended else {"status": "RUNNING"}
        return web.json_response({**JOB, **status, "driver_exit_code": 0 if ended else None})

    async def submit(self, request: web.Request) -> web.Response:
        return web.json_response({"job_id": "job-1", "submission_id": "job-1"})

    async def version(self, request: web.Request) -> web.Response:
        import ray

        found = {"version": "4", "ray_version": ray.__version__, "ray_commit": ""}
        return web.json_response({**found, "session_name": ""})

    async def serve(self, ready: threading.Event, ended: asyncio.Event) -> None:
        app = web.Application()
        app.router.add_get("/api/version", self.version)
        app.router.add_post("/api/jobs/", self.submit)
        app.router.add_get("/api/jobs/job-1", self.job)
        app.router.add_get("/api/jobs/job-1/logs/tail", self.logs)
        async with listening(app) as port:
            self.url = f"http://127.0.0.1:{port}"
            ready.set()
            await ended.wait()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setattr(ray_jobs, "RETRY_SECONDS", 0.01)
    made, ready, ended, loop = Head(), threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[made.serve(ready, ended)])
    thread.start()
    assert ready.wait(60)
    yield made
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


def test_output_comes_once_however_often_the_head_is_away(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    head.answers = ["busy", "part", "busy", "all"]
    assert submit_job(head.url, "vf-rl", {}, say=lambda _: None) == 0
    assert capsys.readouterr().out == "".join(LINES)


def test_a_head_that_stays_away_is_an_error_that_names_the_job(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "AWAY_SECONDS", 0.1)
    head.answers = ["busy"]
    with pytest.raises(
        InfrastructureError, match=r"503.*ray job logs --address http\S* --follow job-1"
    ):
        submit_job(head.url, "vf-rl", {}, say=lambda _: None)


def test_output_that_nothing_reads_any_more_is_not_the_heads_fault(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    head.answers = ["all"]
    reading, writing = os.pipe()
    os.close(reading)
    closed = os.fdopen(writing, "w")
    monkeypatch.setattr("sys.stdout", closed)
    with pytest.raises(BrokenPipeError):
        submit_job(head.url, "vf-rl", {}, say=lambda _: None)
    with suppress(BrokenPipeError):
        closed.close()
