"""A run in a forked interpreter looks like `python main.py`: each program runs both ways, and the two must agree."""

# ruff: noqa: E501, ASYNC221 - a program stands on a line of its own

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, sys.orig_argv[1:], __file__, __name__, sys.path[0])",
    "main module": "import sys; m = sys.modules['__main__']; print(m.__dict__ is globals(), sorted(vars(m)), __spec__)",
    "loader": "print(type(__loader__), __loader__.name, __loader__.path, __builtins__, __cached__)",
    "flags": "import sys; print(sys.flags, sys.dont_write_bytecode, sys.getrecursionlimit(), sys._xoptions)",
    "path": "import sys; print(sys.path, sys.prefix, sys.base_prefix, sys.executable)",
    "no harness in frames": "import sys, inspect; print(sys._getframe().f_back, len(inspect.stack()))",
    "no harness in modules": "import sys; print([m for m in sys.modules if 'agentrl' in m or m == 'sitecustomize'])",
    "traceback": "def f(x):\n    return 1 / x\n\n\ntry:\n    f(0)\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "syntax error": "print('x'\nx = = 1\n",
    "null byte": "print(1)\n\0print(2)",
    "cookie": "# -*- coding: latin-1 -*-\nprint(ascii('\u00e9'))",
    "bom": "\ufeffprint('bom')",
    "exit none": "import sys; sys.exit()",
    "exit text": "import sys; sys.exit('bye')",
    "exit large": "import sys; sys.exit(1000)",
    "exit huge": "import sys; sys.exit(1 << 70)",
    "exit negative": "import sys; sys.exit(-1)",
    "exit object": "import sys; sys.exit({'a': 1})",
    "exit system": "raise SystemExit(3)",
    "_exit": "import os; print('lost'); os._exit(5)",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('joined'))).start()",
    "thread fails": "import threading; threading.Thread(target=lambda: 1 / 0, name='t').start()",
    "daemon": "import threading, time; threading.Thread(target=lambda: time.sleep(9), daemon=True).start(); print('end')",
    "atexit": "import atexit; atexit.register(print, 'at exit'); print('body')",
    "atexit fails": "import atexit; atexit.register(lambda: 1 / 0)",
    "flush fails": "import os, sys; sys.stdout.write('x'); os.close(1)",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "segfault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "import os; os.abort()",
    "handlers": "import signal; print([signal.getsignal(s) for s in (2, 13, 15, 17, 25)])",
    "excepthook": "import sys; sys.excepthook = lambda *e: print('mine', e[1]); 1 / 0",
    "excepthook fails": "import sys\ndef hook(*e): raise OSError('no')\nsys.excepthook = hook\n1 / 0",
    "unraisable": "class A:\n    def __del__(self): raise ValueError('late')\na = A()",
    "recursion": "def f(n):\n    return n and 1 + f(n - 1)\nprint(f(900)); n = 0\n"
    "def g():\n    global n\n    n += 1\n    g()\ntry:\n    g()\nexcept RecursionError as e: print(n, e)",
    "input": "print(input('name? '), input())\ninput()",
    "stdin": "import sys; print(sys.stdin.readline(), list(sys.stdin), sys.stdin.read())",
    "binary stdin": "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])",
    "raw stdin": "import os; print(os.read(0, 5)); print(open(0).read())",
    "streams": "import sys\nfor f in (sys.stdin, sys.stdout, sys.stderr):\n"
    "    print(f.name, f.mode, f.encoding, f.errors, f.line_buffering, f.write_through, f.isatty(), f.seekable(),\n"
    "          f.buffer.raw.closefd, f.fileno(), type(f.buffer), type(f.buffer.raw), f.newlines)\n"
    "print(sys.__stdout__ is sys.stdout)",
    "order": "import os, sys\nprint('late'); os.write(1, b'early\\n'); print('flushed', flush=True); os.write(1, b'end\\n')",
    "surrogate": "print('\\udc80')",
    "huge int": "print(len(str(10 ** 4000)))\nint('1' * 5000)",
    "fork": "import os\npid = os.fork()\nif pid == 0: print('child'); raise SystemExit(7)\nprint(os.waitpid(pid, 0)[1])",
    "subprocess": "import subprocess, sys\n"
    "print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, sys.path[:1])'], capture_output=True))",
    "shell": "import os; print(os.system('exit 3'))",
    "pool": "import multiprocessing as m\ndef f(x): return x * x\n"
    "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, range(5)))",
    "spawn": "import multiprocessing as m\ndef f(q): q.put(__name__)\n"
    "if __name__ == '__main__':\n    c = m.get_context('spawn'); q = c.Queue()\n"
    "    p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join(); print(p.exitcode)",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))), A.__module__)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int = 1\nprint(P(), P.__qualname__)",
    "asyncio": "import asyncio\nasync def f(): await asyncio.sleep(0.01); return 3\nprint(asyncio.run(f()))",
    "warning": "import warnings; warnings.warn('old', DeprecationWarning); warnings.warn('user')\nassert (1, 'x')",
    "gc": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug())",
    "umask": "import os, stat; open('f', 'w').close(); print(oct(os.stat('f').st_mode), sorted(os.listdir()))",
    "open files": "import os; print([fd for fd in os.listdir('/proc/self/fd') if int(fd) > 3])",
    "import beside": "import os\nopen('helper.py', 'w').write('x = 5')\nimport helper; print(helper.x, helper.__file__)",
    "session": "import os; print(os.getpid() == os.getsid(0) == os.getpgrp())",
    "process time": "import time; print(time.process_time() < 1)",
    "tls": "import ssl, hashlib; print(hashlib.sha256(b'x').hexdigest(), ssl.create_default_context().verify_mode)",
    "faulthandler": "import faulthandler, tracemalloc, sys; print(faulthandler.is_enabled(), tracemalloc.is_tracing())",
    "settrace": "import sys; print(sys.gettrace(), sys.getprofile(), sys.getswitchinterval())",
    "future": "from __future__ import annotations\ndef f(x: Nope): pass\nprint(f.__annotations__)",
    "annotations": "x: int = 3\nprint(__annotations__)",
    "doc": '"""Top."""\nprint(__doc__)',
    "exit true": "raise SystemExit(True)",
    "exit two values": "raise SystemExit(1, 2)",
    "exit code changed": "e = SystemExit(1); e.code = 6\nraise e",
    "exit code read": "try:\n    raise SystemExit(4)\nexcept SystemExit as e: print(e.code)",
    "exit of an own kind": "class E(SystemExit):\n    code = 9\nraise E()",
    "exit by a library": "import argparse; argparse.ArgumentParser(prog='p').parse_args(['--x'])",
    "exit in asyncio": "import asyncio, sys\nasync def f(): sys.exit(12)\nasyncio.run(f())",
    "exit in a thread": "import threading, sys\nt = threading.Thread(target=lambda: sys.exit(4)); t.start(); t.join(); print('ok')",
    "exit in a hook": "import sys\nsys.excepthook = lambda *e: sys.exit(11)\n1 / 0",
    "exit in atexit": "import atexit, sys\natexit.register(sys.exit, 7); print(1)",
    "exit without atexit": "import atexit, sys; atexit._clear(); sys.exit(3)",
    "other builtins": "import builtins; builtins.any = builtins.map = builtins.type = builtins.id = None; print('end')",
    "stdout replaced, stderr fails": "import io, os, sys; sys.stdout = io.StringIO(); sys.stderr.write('x'); os.close(2)",
    "exit in a fork": "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(9)\nprint(os.waitpid(pid, 0)[1]); 1 / 0",
    "error in a fork": "import os\npid = os.fork()\nif pid == 0: 1 / 0\nprint(os.waitpid(pid, 0)[1])",
    "hook that hides": "import sys\ndef hook(*e):\n    del sys.last_type, sys.last_value, sys.last_traceback\nsys.excepthook = hook\n1 / 0",
    "finalizers": "class A:\n    def __init__(self, n): self.n = n\n    def __del__(self): print('gone', self.n)\n"
    "a = A(1)\ndef f():\n    b = A(2)\n    import sys; sys.exit(3)\nf()",
    "finalizer in a cycle": "class A:\n    def __del__(self): print('gone')\na = A(); a.me = a; del a; print('end')",
    "finalizer without a list": "class A:\n    __slots__ = ()\n    def __del__(self): print('gone')\na = A(); print('end')",
    "finalizer of a class": "class M(type):\n    def __del__(self): print('gone')\nclass A(metaclass=M): pass",
    "finalizer that imports": "class A:\n    def __del__(self):\n        import colorsys\na = A()",
    "finalizer hidden": "import gc\nclass A:\n    def __del__(self): print('gone')\na = A(); gc.freeze()",
    "file left open": "import os\nf = open('x', 'w'); f.write('abc')\nclass A:\n    def __del__(self): os.write(1, b'%d' % os.stat('x').st_size)\na = A()",
    "file beside": "f = open(1, 'w', closefd=False); f.write('abc')",
    "generator left": "def g():\n    try: yield 1\n    finally: print('closed')\nx = g(); next(x)",
    "weak references": "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'end'); r = weakref.ref(a, lambda _: print('gone'))",
    "stderr fails": "import os, sys; sys.stderr.write('x'); os.close(2)",
    "stderr replaced": "import sys\nclass S:\n    def write(self, x): pass\n    def flush(self): raise OSError('no')\nsys.stderr = S()",
    "stdout replaced": "import sys, io; sys.stdout = io.StringIO(); print('x')",
    "stdout of C": "import ctypes; ctypes.CDLL(None).printf(b'hello %d', 5)",
    "collector watched": "import gc; gc.callbacks.append(lambda phase, info: print(phase))",
    "audit": "import sys; seen = []; sys.addaudithook(lambda e, a: seen.append(e)); id(1); print(seen)",
    "native id": "import threading, os; print(threading.main_thread().native_id == threading.get_native_id() == os.getpid())",
    "importers": "import sys; print(sys.path_importer_cache.get(__file__, 0), sys.path_hooks[0])",
    "exec stdin name": "import sys; compile('1', '<string>', 'eval'); print(sys.displayhook, sys.last_type)",
}
STDIN = b"first line\nsecond\xc3\xa9\n"


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_run_is_what_python_makes_of_the_file(pool: Pool, tmp_path: Path, name: str) -> None:
    code = PROGRAMS[name].encode("latin-1" if name == "cookie" else "utf-8")
    job = Job("python", code.decode(errors="surrogateescape"), [STDIN], run_limits=Limits(wall=60))
    ours = (await pool.run(job)).runs[0]
    (tmp_path / "main.py").write_bytes(code)
    real = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        input=STDIN,
        capture_output=True,
        timeout=60,
        start_new_session=True,
        # A shell's background jobs, and so the tests in them, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**pool.config["env"], "PYTHONDONTWRITEBYTECODE": ""},
    )
    assert ours.return_code == real.returncode
    assert _comparable(ours.stdout) == _comparable(real.stdout.replace(str(tmp_path).encode(), b"/box"))
    assert _comparable(ours.stderr) == _comparable(real.stderr.replace(str(tmp_path).encode(), b"/box"))


def _comparable(text: bytes) -> bytes:
    """Without addresses in memory."""
    return re.sub(rb"0x[0-9a-f]+", b"0x", text)


async def test_random_numbers_differ_from_run_to_run(pool: Pool) -> None:
    code = "import random, os, uuid, tempfile, numpy; print(random.random(), uuid.uuid4(), numpy.random.rand())"
    result = await pool.run(Job("python", code, [b"", b"", b""], run_limits=Limits(wall=60)))
    lines = [run.stdout.split() for run in result.runs]
    assert [len(set(column)) for column in zip(*lines, strict=True)] == [3, 3, 3]


async def test_a_seed_gives_what_it_always_gave(pool: Pool) -> None:
    code = "import random, numpy; random.seed(1); numpy.random.seed(1); print(random.random(), numpy.random.rand())"
    run = (await pool.run(Job("python", code, run_limits=Limits(wall=60)))).runs[0]
    assert run.stdout == b"0.13436424411240122 0.417022004702574\n"


async def test_the_user_is_not_the_first_process(pool: Pool) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(30)"
    run = (await pool.run(Job("python", code, run_limits=Limits(wall=60)))).runs[0]
    assert run.return_code == -2
    assert b"KeyboardInterrupt" in run.stderr
