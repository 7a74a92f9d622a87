"""Families 9 to 16 and 25: programs that take more than their share, and processes that stay."""

from dataclasses import replace

from agentrl.sandbox.job import Result
from tests.sandbox.attacks.attack import SMALL, Attack, Slow, cut, fails, hits, last, prints, returns, takes, uses

SHORT = replace(SMALL, wall=1.5)
MEMORY = replace(SMALL, wall=8.0)
LATE = takes(60)  # a hang; how long exactly is the machine's doing
BIG = uses(700)  # the limit, and what a process can take between two looks


def few(result: Result) -> str:
    """It got no further than the limit, or was ended for it."""
    return "" if last(result).limit_hit == "processes" else prints("ok")(result)


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
try:
    for made in range(5000):
        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
except RuntimeError: pass
print(f"made {made}", "ok" if made <= 400 else "ESCAPED", flush=True)
os._exit(0)
""",
        checks=[prints("ok")],
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
    Attack(
        "13 disk",
        "one file",
        "with open('x', 'wb') as f:\n    for _ in range(500): f.write(bytes(1 << 20))\nprint('end')",
        checks=[fails],
    ),
    Attack(
        "13 disk",
        "many files",
        """
for n in range(500):
    with open(f"x{n}", "wb") as f: f.write(bytes(1 << 20))
print("end")
""",
        checks=[fails],
    ),
    Attack(
        "13 disk",
        "in the folder for temporary files",
        """
import tempfile
for n in range(500):
    with open(f"{tempfile.gettempdir()}/x{n}", "wb") as f: f.write(bytes(1 << 20))
print("end")
""",
        checks=[fails],
    ),
    Attack(
        "13 disk",
        "files without a name",
        """
kept = []
for n in range(100):
    f = open("x", "wb"); os.unlink("x"); kept.append(f)
    f.write(bytes(4 << 20)); f.flush()
import time; time.sleep(3)
print("end")
""",
        checks=[fails],
        limits=MEMORY,
    ),
    Attack(
        "13 disk",
        "inodes",
        "for n in range(200_000): os.close(os.open(f'x{n}', os.O_CREAT | os.O_WRONLY))\nprint('end')",
        checks=[fails],
        limits=MEMORY,
    ),
    Attack("13 disk", "sparse", "import time\nwith open('x', 'wb') as f: f.truncate(1 << 40)\nprint('end')\n"),
    Slow(
        "13 disk",
        "deep folders",
        "for n in range(5000):\n    os.mkdir('d'); os.chdir('d')\nprint('end')",
        stdins=[b"", b""],
        checks=[fails],
        limits=MEMORY,
    ),
    Slow(
        "13 disk",
        "hard links",
        "open('x', 'w').close()\nfor n in range(20_000): os.link('x', f'y{n}')\nprint('end')",
        limits=MEMORY,
    ),
    Attack("14 output", "stdout", "while True: os.write(1, b'x' * 65536)", checks=[cut, takes(60)]),
    Attack("14 output", "stderr", "while True: os.write(2, b'x' * 65536)", checks=[cut, takes(60)]),
    Slow(
        "14 output",
        "children",
        "for _ in range(4): os.fork()\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 9999)",
        checks=[cut, takes(60)],
    ),
    Attack(
        "14 output",
        "a grandchild, after its end",
        """
if os.fork() == 0:
    os.setsid()
    while True: os.write(1, b"x" * 65536)
""",
        checks=[takes(60)],
    ),
    Attack("14 output", "yes", "yes", "bash", checks=[cut, takes(60)]),
    Slow("14 output", "byte by byte", "while True: os.write(1, b'x')", limits=SHORT, checks=[LATE]),
    Attack("15 time", "busy", "while True: pass", checks=[hits("time", "cpu"), LATE], limits=SHORT),
    Attack("15 time", "asleep", "import time; time.sleep(99)", checks=[hits("time"), LATE], limits=SHORT),
    Attack(
        "15 time",
        "deaf",
        """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: time.sleep(1)
""",
        checks=[hits("time"), LATE],
        limits=SHORT,
    ),
    Slow(
        "15 time",
        "stopped",
        "import signal; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(99)",
        checks=[fails, LATE],
        limits=SHORT,
    ),
    Slow(
        "15 time",
        "busy children",
        "for _ in range(5): os.fork()\nwhile True: pass",
        checks=[hits("time", "cpu"), LATE],
        limits=SHORT,
    ),
    Slow(
        "15 time",
        "exec without end",
        "import time; time.sleep(0.05); os.execv(sys.executable, [sys.executable, 'main.py'])",
        checks=[fails, LATE],
        limits=SHORT,
    ),
    Slow(
        "15 time",
        "many short children",
        "while True:\n    if os.fork() == 0: os._exit(0)\n    os.wait()",
        checks=[hits("time", "cpu"), LATE],
        limits=SHORT,
    ),
    Slow(
        "15 time",
        "stdin that never comes",
        "import threading; threading.Event().wait()",
        checks=[hits("time"), LATE],
        limits=SHORT,
    ),
    Attack(
        "16 daemons",
        "double fork",
        """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for handle in range(3): os.close(handle)
        os.execvp("sleep", ["sleep", "@LINGER@"])
    os._exit(0)
print("end")
""",
        checks=[prints("end"), returns(0), takes(60)],
    ),
    Attack(
        "16 daemons",
        "it keeps the pipes",
        """
if os.fork() == 0:
    os.setsid(); os.execvp("sleep", ["sleep", "@LINGER@"])
print("end")
""",
        checks=[prints("end"), returns(0), takes(60)],
    ),
    Attack(
        "16 daemons",
        "a chain of sessions",
        """
for _ in range(30):
    if os.fork(): os._exit(0)
    os.setsid()
os.execvp("sleep", ["sleep", "@LINGER@"])
""",
        checks=[returns(0), takes(60)],
    ),
    Attack(
        "16 daemons",
        "shell",
        "nohup setsid sleep @LINGER@ >/dev/null 2>&1 &\n(sleep @LINGER@ &)\ndisown; echo end",
        "bash",
        checks=[prints("end"), returns(0), takes(60)],
    ),
    Attack(
        "16 daemons",
        "a subreaper of its own",
        """
syscall(@nr:prctl@, 36, 1, 0, 0, 0)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid(); os.execvp("sleep", ["sleep", "@LINGER@"])
    os._exit(0)
print("end")
""",
        checks=[prints("end"), returns(0), takes(60)],
    ),
    Attack(
        "16 daemons",
        "stopped ones",
        """
import signal
for _ in range(8):
    if os.fork() == 0:
        os.setsid(); os.kill(os.getpid(), signal.SIGSTOP); os.execvp("sleep", ["sleep", "@LINGER@"])
print("end")
""",
        checks=[prints("end"), returns(0), takes(60)],
    ),
    Slow(
        "25 neighbours",
        "64 busy processes",
        "for _ in range(6): os.fork()\nwhile True: pass",
        checks=[hits("time", "cpu"), LATE],
        limits=SHORT,
    ),
    Attack(
        "25 neighbours",
        "lowest priority for all of the user",
        "try: os.setpriority(os.PRIO_USER, 0, 19)\nexcept OSError: print('refused')",
    ),
]
