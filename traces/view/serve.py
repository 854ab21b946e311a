"""The page over HTTP, for this machine only."""

from __future__ import annotations

import shutil
import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vf.runtime.errors import ConfigError

_HOSTS = {"127.0.0.1", "localhost"}


class PageServer(ThreadingHTTPServer):
    """Serves one file at ``/`` on 127.0.0.1.

    Args:
        page: The file.
        port: The port; 0 takes any that is free.

    Attributes:
        url: Where the page is.

    Raises:
        ConfigError: The port is taken.
    """

    daemon_threads = True

    def __init__(self, page: Path, port: int = 0) -> None:
        self.page = page
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--port {port}: {error}") from error
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """Send the page, but not to another site whose name was made to lead here."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HOSTS:
            self.send_error(403)
        elif self.path != "/":
            self.send_error(404)
        else:
            with self.server.page.open("rb") as file:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(self.server.page.stat().st_size))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Frame-Options", "DENY")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                shutil.copyfileobj(file, self.wfile, 1 << 20)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal shows where the page is."""


def serve(page: Path, port: int = 0, *, opened: bool = False) -> None:
    """Serve the page until interrupted, and say where.

    Raises:
        ConfigError: The port is taken.
    """
    with PageServer(page, port) as server:
        print(f"{server.url} (Ctrl-C ends it)", flush=True)
        if opened:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
