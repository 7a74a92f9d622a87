"""Families 9 to 12: programs that use more processes and memory than they may."""

from dataclasses import replace

from agentrl_sandbox.job import Result
from tests.sandbox.attacks.attack import SMALL, Attack, Slow, fails, hits, last, prints, takes, uses

SHORT = replace(SMALL, wall=1.5)
MEMORY = replace(SMALL, wall=8.0)
LATE = takes(60)  # a hang; how long exactly is the machine's doing
BIG = uses(700)  # the limit, and what a process can take between two looks


def few(result: Result) -> str:
    """It got no further than the limit, was ended for it, or found the limit used up by its neighbours' bombs."""
    command = last(result)
    crowded = command.stderr.startswith(b"bwrap: Can't fork")
    return "" if command.limit_hit == "processes" or crowded else prints("ok")(result)


ATTACKS = [
    Attack(
        "9 fork bombs",
        "fork",
        "while True:\n    try: os.fork()\n    except OSError: pass",
        checks=[fails, LATE],
        limits=SHORT,
    ),
    Slow(
        "9 fork bombs",
        "fork and leave the parent",
        """
while True:
    try:
        if os.fork(): os._exit(0)
        os.fork()
    except OSError: pass
""",
        checks=[LATE],
        limits=SHORT,
    ),
    Slow(
        "9 fork bombs",
        "sessions of their own",
        """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
""",
        checks=[fails, LATE],
        limits=SHORT,
    ),
    Slow("9 fork bombs", "shell", ":(){ :|:& };:; wait", "bash", checks=[LATE], limits=SHORT),
    Slow(
        "9 fork bombs",
        "count",
        """
import time
made = 0
for _ in range(1000):
    try:
        if os.fork() == 0:
            time.sleep(9); os._exit(0)
        made += 1
    except OSError: break
print(f"made {made}", "ok" if made <= 400 else "ESCAPED", flush=True)
""",
        checks=[few],
    ),
    Attack(
        "9 fork bombs",
        "threads",
        """
import threading, time
made = 0
threading.stack_size(1 << 16)  # so that it is their number which counts, not their memory
try:
    for made in range(5000):
        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
except RuntimeError: pass
print(f"made {made}", "ok" if made <= 400 else "ESCAPED", flush=True)
os._exit(0)
""",
        checks=[few],
    ),
    Attack("10 private memory", "one piece", "x = bytearray(3 << 30)", checks=[fails, BIG], limits=MEMORY),
    Attack(
        "10 private memory",
        "bit by bit",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        checks=[fails, BIG],
        limits=MEMORY,
    ),
    Slow(
        "10 private memory",
        "in children",
        """
import time
for _ in range(16):
    if os.fork() == 0:
        x = [bytearray(b"x") * (1 << 20) for _ in range(200)]; time.sleep(9)
time.sleep(9)
""",
        checks=[fails],
        limits=MEMORY,
    ),
    Slow(
        "10 private memory",
        "stack",
        """
import threading
threading.stack_size(1 << 30)
thread = threading.Thread(target=lambda: bytearray(1 << 30))
thread.start()
thread.join()
os._exit(1)
""",
        checks=[fails, BIG],
        limits=MEMORY,
    ),
    Attack(
        "11 shared memory",
        "anonymous",
        "import mmap\nm = mmap.mmap(-1, 2 << 30)\nfor i in range(0, 2 << 30, 4096): m[i] = 1",
        checks=[hits("memory")],
        limits=MEMORY,
    ),
    Attack(
        "11 shared memory",
        "in pieces, unmapped by nobody",
        """
import mmap, time
kept = []
for _ in range(64):
    m = mmap.mmap(-1, 32 << 20); m.write(bytes(32 << 20)); kept.append(m)
time.sleep(9)
""",
        checks=[hits("memory")],
        limits=MEMORY,
    ),
    Slow(
        "11 shared memory",
        "touched by children that leave",
        """
import mmap, time
kept = [mmap.mmap(-1, 32 << 20) for _ in range(64)]
for m in kept:
    if os.fork() == 0:
        m.write(bytes(32 << 20)); os._exit(0)
    os.wait()
time.sleep(9)
""",
        checks=[hits("memory")],
        limits=MEMORY,
    ),
    Attack(
        "12 memory files",
        "memfd",
        """
import ctypes, time
handle = syscall(@nr:memfd_create@, b"x", 0)
while True: os.write(handle, bytes(1 << 20))
""",
        checks=[fails],
        limits=MEMORY,
    ),
    Attack(
        "12 memory files",
        "System V",
        """
import ctypes, time
for _ in range(100):
    syscall(@nr:shmget@, 0, 32 << 20, 0o1600)
tell("shmget")
""",
        checks=[fails],
    ),
    Attack(
        "12 memory files",
        "/dev/shm",
        """
with open("/dev/shm/x", "wb") as file:
    for _ in range(200): file.write(bytes(1 << 20))
tell("200 MiB")
""",
        checks=[fails],
    ),
    Attack(
        "12 memory files",
        "pipes and sockets",
        """
import socket
kept = []
try:
    while True:
        kept.append(os.pipe()); os.set_blocking(kept[-1][1], False)
        try:
            while True: os.write(kept[-1][1], bytes(1 << 16))
        except BlockingIOError: pass
except OSError: print("end")
""",
        checks=[prints("end")],
    ),
]
