"""Sandboxes for the tests of environments that run code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import pytest

from vf.environments.sandbox_source import OpenSandbox
from vf.sandbox.contract import Sandbox
from vf.sandbox.local import UnsafeLocalSandbox

T = TypeVar("T")
InSandbox = Callable[[Callable[[Sandbox], Coroutine[Any, Any, T]]], T]


@pytest.fixture
def open_local() -> OpenSandbox:
    """Open unprotected sandboxes, for code that the tests hold themselves."""

    def open_one() -> AbstractAsyncContextManager[Sandbox]:
        return UnsafeLocalSandbox(unsafe_local=True)

    return open_one


@pytest.fixture
def in_sandbox(open_local: OpenSandbox) -> InSandbox[Any]:
    """Run something in an unprotected sandbox."""

    def run(work: Callable[[Sandbox], Coroutine[Any, Any, Any]]) -> Any:
        async def inside() -> Any:
            async with open_local() as sandbox:
                return await work(sandbox)

        return asyncio.run(inside())

    return run
