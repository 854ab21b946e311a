"""Is it a sandbox? Hold any backend to the contract, from the command line or from Python::

results = await check_sandbox(MySandbox, groups=["files", "timeouts"])
assert all(result.outcome != "failed" for result in results)
"""

from __future__ import annotations

from vf.sandbox.selfcheck.check import CheckResult
from vf.sandbox.selfcheck.command import main
from vf.sandbox.selfcheck.run import check_sandbox, group_names

__all__ = ["CheckResult", "check_sandbox", "group_names", "main"]
