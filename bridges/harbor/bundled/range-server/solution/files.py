import hashlib
import os
import re
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

FOLDER = sys.argv[2]
SPOOL = tempfile.mkdtemp(dir=os.path.dirname(os.path.abspath(FOLDER)))


def tag_of(data):
    return '"' + hashlib.sha256(data).hexdigest()[:16] + '"'


def named(header, tag):
    return header.strip() == "*" or tag in [each.strip() for each in header.split(",")]


def span(header, size):
    """Return the first and last byte of a range; None if it is ignored, () if it is empty."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if not found or found.group(0).strip() == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        count = min(int(last), size)
        return (size - count, size - 1) if count else ()
    if last and int(last) < int(first):
        return None
    end = min(int(last), size - 1) if last else size - 1
    return (int(first), end) if int(first) < size else ()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)

    def path_of(self):
        name = unquote(self.path.partition("?")[0][1:])
        if not name or "/" in name or name in (".", "..") or "\0" in name:
            return None
        return os.path.join(FOLDER, name)

    def present(self, path):
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError:
            return None

    def do_GET(self):
        path = self.path_of()
        if path is None:
            return self.answer(400)
        data = self.present(path)
        if data is None:
            return self.answer(404)
        tag = tag_of(data)
        common = {"ETag": tag, "Accept_Ranges": "bytes"}
        if named(self.headers.get("If-None-Match", ""), tag):
            return self.answer(304, **common)
        part = None
        if "Range" in self.headers and self.headers.get("If-Range", tag) == tag:
            part = span(self.headers["Range"], len(data))
        if part is None:
            return self.answer(200, data, **common)
        if not part:
            return self.answer(416, Content_Range=f"bytes */{len(data)}")
        first, last = part
        common["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
        self.answer(206, data[first : last + 1], **common)

    do_HEAD = do_GET

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return data

    def do_PUT(self):
        data, path = self.body(), self.path_of()
        if path is None:
            return self.answer(400)
        old = self.present(path)
        wanted = self.headers.get("If-Match")
        if wanted is not None and (old is None or not named(wanted, tag_of(old))):
            return self.answer(412)
        with tempfile.NamedTemporaryFile(dir=SPOOL, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
        self.answer(201 if old is None else 204)

    def do_DELETE(self):
        self.body()
        self.answer(405)

    do_POST = do_PATCH = do_OPTIONS = do_DELETE


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
