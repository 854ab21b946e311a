import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

LOCK = threading.Lock()
counters, answers = {}, {}


def apply(name, number, key):
    counters[name] = counters.get(name, 0) + number
    if key is not None:
        answers[key] = counters[name]


def load(path):
    """Replay the log, and cut off what was not written as a whole."""
    good = 0
    with open(path, "a+b") as file:
        file.seek(0)
        for line in file:
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
                apply(entry["name"], entry["number"], entry["key"])
            except (ValueError, KeyError, TypeError):
                break
            good += len(line)
        file.truncate(good)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, value):
        body = str(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with LOCK:
            value = counters.get(unquote(self.path[1:]))
        self.answer(404, "none") if value is None else self.answer(200, value)

    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode().strip()
        if not re.fullmatch(r"[+-]?\d+", text):
            return self.answer(400, "not a whole number")
        name, number = unquote(self.path[1:]), int(text)
        key = self.headers.get("Idempotency-Key")
        with LOCK:
            if key is None or key not in answers:
                line = json.dumps({"name": name, "number": number, "key": key}) + "\n"
                log.write(line.encode())
                log.flush()
                os.fsync(log.fileno())
                apply(name, number, key)
                value = counters[name]
            else:
                value = answers[key]
        self.answer(200, value)


os.makedirs(sys.argv[2], exist_ok=True)
path = os.path.join(sys.argv[2], "log")
load(path)
log = open(path, "ab")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
