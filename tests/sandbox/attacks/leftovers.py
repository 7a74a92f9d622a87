"""Families 13 to 16 and 25: disk, output and time beyond the limits, and processes that outlive the run."""

from dataclasses import replace

from tests.sandbox.attacks.attack import SMALL, Attack, Slow, cut, fails, hits, prints, returns, takes

SHORT = replace(SMALL, wall=1.5)
MEMORY = replace(SMALL, wall=8.0)
LATE = takes(60)  # a hang; how long exactly is the machine's doing

ATTACKS = [
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
