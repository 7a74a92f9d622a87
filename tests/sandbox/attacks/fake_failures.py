# ruff: noqa: E501 - a program stands on a line of its own
"""Family 26: programs that imitate a failure of the sandbox, which would mask a bad sample.

All that is asked of each: a verdict comes, and it comes in time. What the verdict is, the program chose.
"""

from dataclasses import replace

from agentrl_sandbox.job import Limits, Result
from tests.sandbox.attacks.attack import SMALL, Attack, last

LIMITS = replace(SMALL, wall=1.0, processes=128)
WIDE = replace(LIMITS, memory_mb=1024)
_LATE = 10.0
"""Seconds: a hang; how long exactly is the doing of the machine that tests."""


def in_time(result: Result) -> str:
    """It was ended by its limit."""
    took = last(result).execution_time
    return "" if took < _LATE else f"it took {took:.1f} s against a limit of {LIMITS.wall:g}"


def _choice(name: str, code: str, limits: Limits = LIMITS) -> Attack:
    lasts = "60)" in code or "while" in code
    return Attack("26 choosing the verdict", name, code, checks=[in_time], limits=limits, prelude=False, slow=lasts)


_NAME = "import ctypes, time\nctypes.CDLL(None).prctl(15, {!r}, 0, 0, 0)\ntime.sleep(0.1)\n"
_BUSY = "import os, sys, time, signal, threading, resource, socket\n"

ATTACKS = [
    *(
        _choice(f"its name is {name!r}", _NAME.format(name))
        for name in (b"x kB", b"a\nVmRSS:\tx kB", b") R 1 1", b"\xff\xfe kB", b"", b"Rss: x kB", b"a:b kB")
    ),
    _choice(
        "a thread's name",
        _BUSY
        + "open(f'/proc/self/task/{threading.get_native_id()}/comm', 'wb').write(b'Pss_Anon: x kB')\ntime.sleep(0.1)",
    ),
    _choice(
        "sleeping forks",
        _BUSY
        + "x = bytearray(b'x') * (8 << 20)\nfor _ in range(120):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\ntime.sleep(60)",
    ),
    _choice(
        "sleeping forks of much shared memory",
        _BUSY
        + "x = bytearray(b'x') * (100 << 20)\nfor _ in range(120):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\ntime.sleep(60)",
        WIDE,
    ),
    _choice(
        "many mappings",
        "import mmap, time\nx = [mmap.mmap(-1, 4096 * (1 + i % 2), prot=1 + 2 * (i % 2)) for i in range(30000)]\ny = mmap.mmap(-1, 2 << 30)\ntime.sleep(60)",
        WIDE,
    ),
    _choice(
        "many mappings in many processes",
        _BUSY
        + "import mmap\nx = [mmap.mmap(-1, 4096 * (1 + i % 2), prot=1 + 2 * (i % 2)) for i in range(30000)]\ny = mmap.mmap(-1, 2 << 30)\nfor _ in range(20):\n    if os.fork() == 0: break\ntime.sleep(60)",
        WIDE,
    ),
    _choice(
        "a pool of 100",
        "import multiprocessing, time\nif __name__ == '__main__':\n    with multiprocessing.Pool(100) as pool: pool.map(time.sleep, [60] * 100)",
        WIDE,
    ),
    _choice(
        "many orphans",
        _BUSY
        + "end = time.time() + 0.5\nmade = 0\nwhile time.time() < end:\n    if os.fork() == 0:\n        if os.fork() == 0: os._exit(0)\n        os._exit(0)\n    os.wait(); made += 1\n",
    ),
    _choice("closed descriptors", "import os\nos.closerange(0, 256)"),
    _choice("closed descriptors, then long", _BUSY + "os.closerange(0, 256)\ntime.sleep(60)"),
    _choice(
        "every signal to everybody",
        _BUSY
        + "for number in range(1, 65):\n    if number not in (9, 19):\n        try: signal.signal(number, signal.SIG_IGN)\n        except (OSError, ValueError): pass\nfor pid in (-1, 1, os.getppid(), 0):\n    for number in range(1, 65):\n        try: os.kill(pid, number)\n        except OSError: pass",
    ),
    _choice(
        "stopping everybody",
        _BUSY
        + "for pid in (1, os.getppid(), -1):\n    try: os.kill(pid, signal.SIGSTOP)\n    except OSError: pass\ntime.sleep(60)",
    ),
    _choice("stopping itself", _BUSY + "os.kill(os.getpid(), signal.SIGSTOP)"),
    _choice("an exit code", "import os\nos._exit(255)"),
    _choice(
        "every signal to itself",
        _BUSY
        + "for number in (4, 5, 6, 7, 8, 11, 31, 34, 64):\n    if os.fork() == 0: os.kill(os.getpid(), number)\n    os.wait()\nos.kill(os.getpid(), signal.SIGRTMAX)",
    ),
    _choice(
        "a parent's death signal",
        _BUSY
        + "import ctypes\nctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\nif os.fork() == 0:\n    ctypes.CDLL(None).prctl(1, 19, 0, 0, 0); time.sleep(60)",
    ),
    _choice(
        "huge arguments",
        "import os\ntry: os.execve('/bin/sleep', ['sleep', '0.1'] + ['0'] * 60000, {str(i): 'x' * 9999 for i in range(99)})\nexcept OSError as e: print(e)",
    ),
    _choice(
        "no work folder",
        "import os, shutil\nos.chdir('/')\nshutil.rmtree('/box', ignore_errors=True)\nshutil.rmtree('/tmp', ignore_errors=True)",
    ),
    _choice(
        "no rights on the work folder",
        "import os\nfor path in ('/box/main.py', '/box', '/tmp', '/dev/shm'):\n    try: os.chmod(path, 0)\n    except OSError: pass",
    ),
    _choice(
        "a full work folder",
        "import os\ntry:\n    for i in range(10**6): open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))\nexcept OSError: pass\ntry:\n    for i in range(10**6): open(f'/box/{i}', 'wb')\nexcept OSError: pass",
    ),
    _choice(
        "deep folders",
        "import os\ntry:\n    while True: os.mkdir('d' * 200); os.chdir('d' * 200)\nexcept OSError: pass",
    ),
    _choice(
        "names that are no text",
        "import os\nfor i in range(200): os.mkdir(b'\\xff\\n\\x01%d' % i); os.symlink(b'../x', b'\\xfe%d' % i)\nos.symlink('loop', 'loop'); os.mkfifo('fifo')",
    ),
    _choice(
        "sparse files",
        "import os\nfor i in range(50):\n    try: os.truncate(os.open(str(i), os.O_CREAT | os.O_RDWR), 16 << 20)\n    except OSError: pass",
    ),
    _choice(
        "many descriptors",
        _BUSY + "x = []\ntry:\n    while True: x += os.pipe()\nexcept OSError: pass\ntime.sleep(0.1)",
    ),
    _choice(
        "full pipes",
        _BUSY
        + "import fcntl\nx = []\ntry:\n    while True:\n        x.append(os.pipe()); os.set_blocking(x[-1][1], False)\n        try: fcntl.fcntl(x[-1][1], 1031, 1 << 20)\n        except OSError: pass\n        try: os.write(x[-1][1], bytes(1 << 20))\n        except BlockingIOError: pass\nexcept OSError: pass\ntime.sleep(0.2)",
    ),
    _choice(
        "its own pipes, filled and reopened",
        _BUSY
        + "for n in (0, 1, 2):\n    try:\n        f = os.open(f'/proc/self/fd/{n}', os.O_RDWR | os.O_NONBLOCK); os.write(f, bytes(1 << 16))\n    except OSError: pass\n    try: os.set_blocking(n, False)\n    except OSError: pass\nos.dup2(1, 0)\nif os.fork() == 0: time.sleep(60)",
    ),
    _choice(
        "no priority",
        _BUSY
        + "os.nice(19)\ntry: os.sched_setscheduler(0, 5, os.sched_param(0))\nexcept OSError: pass\nopen('/proc/self/oom_score_adj', 'w').write('1000')\nwhile True: pass",
    ),
    _choice(
        "no rights to be looked at",
        _BUSY
        + "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nfor _ in range(20):\n    if os.fork() == 0: break\ntime.sleep(60)",
    ),
    _choice(
        "limits of its own",
        _BUSY
        + "for kind in range(16):\n    try: resource.setrlimit(kind, (0, 0))\n    except (OSError, ValueError): pass\nos.fork()",
    ),
    _choice(
        "threads without end",
        _BUSY
        + "import _thread\nwhile True:\n    try: _thread.start_new_thread(time.sleep, (60,))\n    except RuntimeError: pass",
    ),
    _choice("vfork and a sleep", "import ctypes, time\nlibc = ctypes.CDLL(None)\nif libc.vfork() == 0: time.sleep(60)"),
    _choice(
        "output, then closed",
        _BUSY + "sys.stdout.write('x' * 100000); sys.stdout.flush(); os.close(1); os.close(2); time.sleep(60)",
    ),
    _choice(
        "a file's name",
        _BUSY
        + "import mmap\ntry:\n    f = open('x\\x0cq-q s s s s [anon_shmem', 'wb+'); f.truncate(4096)\nexcept OSError: pass\nx = mmap.mmap(f.fileno(), 4096); y = mmap.mmap(-1, 2 << 30)\ntime.sleep(0.1)",
    ),
    _choice(
        "a file's deep name",
        _BUSY
        + "import mmap\nos.makedirs('x\\x0cq-q s s s /dev'); f = open('x\\x0cq-q s s s /dev/zero (deleted)', 'wb+'); f.truncate(4096)\nx = mmap.mmap(f.fileno(), 4096); y = mmap.mmap(-1, 2 << 30)\ntime.sleep(0.1)",
    ),
    _choice(
        "sockets in flight",
        _BUSY
        + "a, b = socket.socketpair()\ntry:\n    while True:\n        c, d = socket.socketpair(); socket.send_fds(a, [b'x'], [c.fileno(), d.fileno(), 0, 1, 2]); c.close(); d.close()\nexcept OSError: pass",
    ),
]
