import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOCK = threading.Lock()
jobs = {}
waiting = []  # (-priority, when it began to wait, id)
clock = 0


def wait(job):
    global clock
    clock += 1
    job["state"] = "waiting"
    waiting.append((-job["priority"], clock, job["id"]))
    waiting.sort()


def is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, value=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        if value is not None:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with LOCK:
            parts = self.path.strip("/").split("/")
            job = jobs.get(parts[1]) if len(parts) == 2 and parts[0] == "jobs" else None
            if job is None:
                return self.answer(404, {"error": "no such job"})
            self.answer(200, {key: job[key] for key in ("id", "name", "state")})

    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return self.answer(400, {"error": "not an object"})
        with LOCK:
            self.answer(*self.act(self.path.strip("/").split("/"), body))

    def act(self, parts, body):
        if parts == ["jobs"]:
            priority = body.get("priority", 0)
            if not isinstance(body.get("name"), str) or not is_number(priority):
                return 400, {"error": "name and priority"}
            job = {"id": len(jobs) + 1, "name": body["name"], "priority": priority, "attempt": 0}
            jobs[str(job["id"])] = job
            wait(job)
            return 201, {"id": job["id"]}
        if not isinstance(body.get("worker"), str):
            return 400, {"error": "worker"}
        if parts == ["take"]:
            if not waiting:
                return (204,)
            job = jobs[str(waiting.pop(0)[2])]
            job.update(state="taken", worker=body["worker"], attempt=job["attempt"] + 1)
            return 200, {key: job[key] for key in ("id", "name", "attempt")}
        job = jobs.get(parts[1]) if len(parts) == 3 and parts[0] == "jobs" else None
        if job is None or parts[2] not in ("done", "fail"):
            return 404, {"error": "no such job"}
        if job["state"] != "taken" or job["worker"] != body["worker"]:
            return 409, {"error": "not taken by this worker"}
        if parts[2] == "done":
            job["state"] = "done"
        elif job["attempt"] == 3:
            job["state"] = "dead"
        else:
            wait(job)
        return 200, {}


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
