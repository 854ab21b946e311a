"""More requests than the limit of open files allows, on either side: they wait, and none fails."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from typing import Any

import pytest

from vf.testing import FakeServer, Request, Response, completion

SCRIPT = [sys.executable, "-m", "tests.inference.many_requests"]
COUNT = 1000


def limited() -> dict[str, Any]:
    """Return the arguments of a process that may open 256 files, and no more."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))}


@pytest.mark.slow
def test_a_client_queues_what_its_open_files_do_not_allow_and_reports_it_once() -> None:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.1)
        return completion([5])

    async def main() -> tuple[bytes, bytes]:
        async with FakeServer(answer) as server:
            process = await asyncio.create_subprocess_exec(
                *(*SCRIPT, "ask", server.base_url, str(COUNT)), stdout=-1, stderr=-1, **limited()
            )
            return await asyncio.wait_for(process.communicate(), 120)

    out, said = asyncio.run(main())
    assert json.loads(out) == {"answered": COUNT}
    assert said.decode().count("the rest wait: the limit of open files is 256") == 1


@pytest.mark.slow
def test_a_server_survives_more_clients_than_its_open_files_allow() -> None:
    with subprocess.Popen(
        [*SCRIPT, "serve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **limited()
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            url = server.stdout.readline().strip()
            for count in (COUNT // 2, 1):  # and serves on
                asked = subprocess.run(
                    [*SCRIPT, "ask", url, str(count)], capture_output=True, text=True, timeout=120
                )
                assert json.loads(asked.stdout) == {"answered": count}
        finally:
            server.kill()
        assert "Too many open files" not in server.stderr.read()
