"""The key that clients of a server must send, where others than this machine reach it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

SIGNATURE = "signature"  # at the end of a link
TOKEN_SECONDS = 24 * 3600  # clients ask for another before it ends
HEADER = "X-API-Key"


class Keys:
    """A server's key, and what it signs: tokens in place of the key, and links to downloads.

    Args:
        key: The API key that clients must send; None to require none.
    """

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else key.encode()
        # With a key, tokens outlive the server; a client need not notice that it was restarted.
        self._secret = hashlib.sha256(self._key or secrets.token_bytes()).digest()

    def sign(self, text: str) -> str:
        """Return a signature of a text."""
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def token(self) -> str:
        """Return a JSON web token (RFC 7519) that is as good as the key for a day."""
        now = int(time.time())
        parts = [{"alg": "HS256", "typ": "JWT"}, {"iat": now, "exp": now + TOKEN_SECONDS}]
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{text}.{self.sign(text)}"

    def accept(self, request: Request) -> bool:
        """Return whether a request may be answered."""
        if self._key is None:
            return True
        if (signed := request.query_params.get(SIGNATURE)) is not None:
            return hmac.compare_digest(signed.encode(), self.sign(request.url.path).encode())
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = request.headers.get(HEADER) or bearer
        return hmac.compare_digest(given.encode(), self._key) or self._is_token(given)

    def _is_token(self, given: str) -> bool:
        text, _, signed = given.rpartition(".")
        if not hmac.compare_digest(signed.encode(), self.sign(text).encode()):
            return False
        claims = json.loads(base64.urlsafe_b64decode(text.split(".")[1] + "=="))
        return bool(claims["exp"] > time.time())


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class KeyCheck:
    """ASGI middleware that refuses requests without the key.

    Args:
        app: The application that gets all other requests.
        keys: The server's.
    """

    def __init__(self, app: Any, *, keys: Keys) -> None:
        self.app = app
        self._keys = keys

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or let the app do it."""
        if scope["type"] != "http" or self._keys.accept(Request(scope)):
            await self.app(scope, receive, send)
            return
        text = f"{HEADER}: the key is wrong or missing; it is the one that the server was given"
        body = {"error": {"message": text, "type": "invalid_request_error", "code": 401}}
        headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
        await JSONResponse(body, 401, headers)(scope, receive, send)
