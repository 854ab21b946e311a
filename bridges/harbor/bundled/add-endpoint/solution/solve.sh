#!/bin/sh
set -e
python3 - <<'END'
path = "/app/server.py"
with open(path) as file:
    text = file.read()
text = text.replace("import sys\n", "import sys\nimport threading\n", 1)
text = text.replace('''class Handler(BaseHTTPRequestHandler):
''', '''LOCK = threading.Lock()
answered = 0


class Handler(BaseHTTPRequestHandler):
    def health(self):
        try:
            with open("/app/VERSION") as file:
                version = file.read().strip()
        except FileNotFoundError:
            return self.answer(503, {"status": "no version"})
        self.answer(200, {"status": "ok", "version": version, "requests": answered})

    def __getattr__(self, name):
        if name.startswith("do_") and self.path == "/health":
            return lambda: self.answer(405, {"error": "only GET"})
        raise AttributeError(name)

''', 1)
text = text.replace("        body = json.dumps(value).encode()\n", '''        global answered
        with LOCK:
            answered += 1
        body = json.dumps(value).encode()
''', 1)
text = text.replace('''        if self.path.startswith("/hello/"):''', '''        if self.path == "/health":
            self.health()
        elif self.path.startswith("/hello/"):''', 1)
text = text.replace('''        size = int(''', '''        if self.path == "/health":
            return self.answer(405, {"error": "only GET"})
        size = int(''', 1)
with open(path, "w") as file:
    file.write(text)
END
