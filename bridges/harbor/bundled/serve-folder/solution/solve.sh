#!/bin/sh
set -e
cat > /app/server.py <<'END'
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

handler = partial(SimpleHTTPRequestHandler, directory="/app/site")
SimpleHTTPRequestHandler.extensions_map[".md"] = "text/markdown"
ThreadingHTTPServer(("127.0.0.1", 8080), handler).serve_forever()
END
printf '#!/bin/sh\nexec python3 /app/server.py\n' > /app/serve.sh
chmod 755 /app/serve.sh
