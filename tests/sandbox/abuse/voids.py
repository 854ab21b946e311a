"""Ways in which code might lose its sandbox so as not to be scored; the table in docs/sandbox.md.

Each is Python for the tool of that name. None may end in anything but a result.
"""

from __future__ import annotations

LOWER = """
import os
try:
    with open('/proc/self/oom_score_adj', 'w') as file: file.write('0')
except OSError: pass
"""
MEMFD = f"""{LOWER}
fd = os.memfd_create('hidden')
while True: os.write(fd, b'x' * 2**20)
"""
SYSV = f"""{LOWER}
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
"""
VOIDS = {
    "memory": "data = []\nwhile True: data.append(bytearray(2**20))",
    "memfd": MEMFD,
    "memfd held by many small processes": f"""{LOWER}
import time
fd = os.memfd_create('hidden')
for _ in range(30):
    if os.fork() == 0: time.sleep(1000)
while True: os.write(fd, b'x' * 2**20)
""",
    "full disks and a memfd": f"""
for path in ('/tmp/full', '/workspace/full', '/dev/shm/full'):
    try:
        with open(path, 'wb') as file:
            while True: file.write(bytes(2**20))
    except OSError: pass
{MEMFD}""",
    "buffers of Unix sockets": f"""{LOWER}
import socket
held = []
while True:
    a, b = socket.socketpair()
    a.setblocking(False)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
    held.append((a, b))
    try:
        while True: a.send(bytes(2**16))
    except BlockingIOError: pass
""",
    "shared memory that outlives its process": f"""{SYSV}
while True:
    number = libc.shmget(0, ctypes.c_size_t(2**22), 0o1600)
    if number < 0: raise SystemExit('no more')
    place = libc.shmat(number, None, 0)
    ctypes.memset(place, 1, 2**22)
""",
    "messages that outlive their process": f"""{SYSV}
message = ctypes.create_string_buffer(8 + 8192)
message[0] = 1
while True:
    queue = libc.msgget(0, 0o1600)
    if queue < 0: raise SystemExit('no more')
    while libc.msgsnd(queue, message, ctypes.c_size_t(8192), 0o4000) == 0: pass
""",
    "semaphores that outlive their process": f"""{SYSV}
while libc.semget(0, 250, 0o1600) >= 0: pass
raise SystemExit('no more')
""",
    "processes": """
import os, time
while True:
    try:
        if os.fork() == 0: time.sleep(1000)
    except OSError: time.sleep(0.01)
""",
    "spinning processes": "import os\nfor _ in range(5): os.fork()\nwhile True: pass",
    "descriptors": """
import os, time
for _ in range(4): os.fork()
held = []
while True:
    try: held.append(os.pipe())
    except OSError: time.sleep(0.1)
""",
    "a flood of output": "import os\nwhile True: os.write(1, bytes(2**20))",
    "closed descriptors": "import os\nos.closerange(0, 2**16)\nwhile True: pass",
    "signals to everybody": """
import os, signal
for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
    for name in os.listdir('/proc'):
        if name.isdigit() and int(name) != os.getpid():
            try: os.kill(int(name), number)
            except OSError: pass
os.kill(-1, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
""",
    "a stopped interpreter": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "tracing": """
import ctypes, os
libc = ctypes.CDLL(None)
for name in os.listdir('/proc'):
    if name.isdigit(): libc.ptrace(16, int(name), 0, 0)
raise SystemExit('done')
""",
}
