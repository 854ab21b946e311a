"""A server that speaks the protocol by hand, and does in it what it is told to do wrong.

python odd_server.py '{"tools": [...], "pages": 2, "result": {...}, "hang": "initialize"}'

Without a result it counts its calls.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

counted: list[Any] = []


def answer(method: str, params: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request, or an ``error``."""
    if method == told.get("hang"):
        signal.pause()
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        }
    if method == "tools/list":
        tools, pages = told.get("tools", []), told.get("pages", 1)
        page = int((params or {}).get("cursor") or 0)
        share = -(-len(tools) // pages)
        end = page + 1 >= pages
        more = {} if end else {"nextCursor": str(page + 1)}
        return {"tools": tools[page * share : (page + 1) * share], **more}
    if method == "tools/call":
        if "result" in told:
            return dict(told["result"])
        counted.append(params["arguments"])
        return {"content": [{"type": "text", "text": str(len(counted))}]}
    return {"error": {"code": -32601, "message": f"no method {method}"}}


def main() -> None:
    """Answer one line after the other."""
    told = json.loads(sys.argv[1])
    print("at your service", file=sys.stderr, flush=True)
    if "child" in told:
        subprocess.Popen(["sleep", "600"])  # which holds the server's pipes open, too
    if "quit" in told:
        sys.exit(told["quit"])
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params"), told)
        error = result.get("error")
        said = {"error": error} if error else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}), flush=True)


if __name__ == "__main__":
    main()
