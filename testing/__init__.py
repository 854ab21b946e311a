"""What the tests of an environment need, without a model, a container or the network.

from vf.testing import FakeServer, ScriptedModel, ScriptedSandbox, check_sandbox

:class:`ScriptedModel` and :class:`ScriptedSandbox` stand in for a model and a sandbox,
:class:`FakeServer` for an API, and :func:`check_sandbox` tests a sandbox backend of your own.
"""

from __future__ import annotations

from vf.inference.models.scripted_model import ScriptedModel
from vf.sandbox.scripted_sandbox import ScriptedSandbox
from vf.sandbox.selfcheck import CheckResult, check_sandbox
from vf.testing.fake_server import FakeServer
from vf.testing.responses import Request, Response, chat_completion, completion

__all__ = [
    "CheckResult",
    "FakeServer",
    "Request",
    "Response",
    "ScriptedModel",
    "ScriptedSandbox",
    "chat_completion",
    "check_sandbox",
    "completion",
]
