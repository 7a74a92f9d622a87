"""Families 1 to 7 of what hostile programs try: see, reach and change what is not theirs."""

from tests.sandbox.attacks.attack import Attack, prints

ATTACKS = [
    Attack("1 environment", "os.environ", "print(dict(os.environ))", checks=[prints("HOME")]),
    Attack("1 environment", "env of the shell", "env; cat /proc/self/environ", "bash"),
    Attack(
        "2 secrets in /proc",
        "every environ",
        "for pid in pids(): show(f'/proc/{pid}/environ')\nprint('end')",
        checks=[prints("end")],
    ),
    Attack(
        "2 secrets in /proc",
        "every cmdline",
        "for pid in pids(): show(f'/proc/{pid}/cmdline'); show(f'/proc/{pid}/comm')",
    ),
    Attack(
        "2 secrets in /proc",
        "what earlier jobs left in its own memory",
        """
import re
seen = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
    for line in maps:
        bounds, rights = line.split()[:2]
        start, end = (int(bound, 16) for bound in bounds.split("-"))
        if rights[0] == "r" and not line.rstrip().endswith("[vvar]") and start < 1 << 47:
            try:
                memory.seek(start)
                content = memory.read(end - start)
            except OSError:
                continue
            seen += len(content)
            for found in re.findall(b"EARLIER" + b"-[0-9a-f]{32}", content):
                tell(found)
print("end" if seen > 1 << 20 else seen)
""",
        checks=[prints("end")],
    ),
    Attack(
        "2 secrets in /proc",
        "shell, all at once",
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/task/*/environ",
        "bash",
    ),
    Attack(
        "3 memory of others",
        "mem and maps",
        """
for pid in pids():
    for name in ("mem", "maps", "smaps", "pagemap", "stack", "syscall", "auxv"):
        must_fail(f"{pid} {name}", lambda: os.pread(os.open(f"/proc/{pid}/{name}", os.O_RDONLY), 64, 0) or 1 / 0)
""",
    ),
    Attack(
        "3 memory of others",
        "files by way of /proc",
        """
for pid in pids():
    for name in ("root@SECRET@", "cwd/agentrl", "root/etc/shadow"):
        must_fail(f"{pid} {name}", open, f"/proc/{pid}/{name}")
    must_fail(f"{pid} fds", lambda: [open(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")][0])
""",
    ),
    Attack(
        "4 other processes",
        "ptrace",
        """
for pid in pids():
    for request in (16, 0x4206):
        must_fail(f"ptrace {request:#x} {pid}", syscall, @nr:ptrace@, request, pid, 0, 0)
must_fail("traceme", syscall, @nr:ptrace@, 0, 0, 0, 0)
""",
    ),
    Attack(
        "4 other processes",
        "process_vm_readv",
        """
import ctypes
buffer = ctypes.create_string_buffer(8)
for pid in pids():
    mine, theirs = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8), (ctypes.c_void_p * 2)(0x400000, 8)
    must_fail(f"read {pid}", syscall, @nr:process_vm_readv@, pid, mine, 1, theirs, 1, 0)
    must_fail(f"write {pid}", syscall, @nr:process_vm_writev@, pid, mine, 1, theirs, 1, 0)
""",
    ),
    Attack(
        "4 other processes",
        "signals to pool and decoy",
        """
import signal
for pid in {@POOL@, @DECOY@, @SUPERVISOR@} - {os.getpid(), os.getppid()}:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        must_fail(f"kill {pid}", os.kill, pid, number)
    if pid != 1:  # that would mean all that one may signal, its own
        must_fail(f"group {pid}", os.killpg, pid, signal.SIGKILL)
""",
    ),
    Attack(
        "4 other processes",
        "signals to the warden",
        """
import signal
for number in (9, 19, 15, 11, 6, 1, 2, 10, 17):
    for pid in {os.getppid(), 1}:
        try: os.kill(pid, number)
        except OSError: pass
print("end")
""",
        checks=[prints("end")],
    ),
    Attack("4 other processes", "kill everybody", "import signal\nos.kill(-1, signal.SIGKILL)\n"),
    Attack(
        "4 other processes",
        "stop everybody, then go on",
        "import signal\ntry: os.kill(-1, signal.SIGSTOP)\nexcept OSError: pass\nprint('end')",
        checks=[prints("end")],
    ),
    Attack(
        "4 other processes",
        "pidfds",
        """
import signal
for pid in pids() - {os.getppid(), 1}:
    must_fail(f"pidfd {pid}", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
for pid in pids():
    must_fail(f"getfd {pid}", lambda: syscall(@nr:pidfd_getfd@, os.pidfd_open(pid), 1, 0))
""",
    ),
    Attack(
        "4 other processes",
        "their limits and priorities",
        """
import resource
for pid in pids():
    must_fail(f"prlimit {pid}", resource.prlimit, pid, resource.RLIMIT_CPU, (1, 1))
    must_fail(f"nofile {pid}", resource.prlimit, pid, resource.RLIMIT_NOFILE, (3, 3))
for pid in {@POOL@, @DECOY@, @SUPERVISOR@, os.getppid(), 1}:
    must_fail(f"nice {pid}", os.setpriority, os.PRIO_PROCESS, pid, 19)
    must_fail(f"affinity {pid}", os.sched_setaffinity, pid, {0})
    must_fail(f"idle {pid}", os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
must_fail("nice, all of the user", os.setpriority, os.PRIO_USER, 0, 19)
""",
    ),
    Attack(
        "4 other processes",
        "signals by way of a file's owner",
        """
import fcntl, signal
reader, writer = os.pipe()
for pid in {@POOL@, @DECOY@} - {os.getpid(), os.getppid()}:
    try:
        fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
        fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
        os.write(writer, b"x")
    except OSError:
        pass
""",
    ),
    Attack(
        "5 files",
        "secrets by name",
        """
for path in (
    "@SECRET@ @REPO@/agentrl/errors.py /etc/shadow /etc/passwd- /etc/ssh /etc/ssl/private /root/.bashrc /root/.ssh "
    "/home @HOME@/.bashrc @HOME@/.ssh /proc/1/root@SECRET@ /proc/kcore /proc/kmsg /sys/kernel/security /var/log /boot "
    "/run/secrets /var/run/docker.sock /dev/mem /dev/kmsg /dev/sda /dev/vda /dev/fuse /dev/kvm"
).split():
    act = os.listdir if os.path.isdir(path) else open
    must_fail(path, lambda: act(path))
""",
    ),
    Attack(
        "5 files",
        "links in the work folder",
        """
os.symlink("@SECRET@", "link"); must_fail("symlink", open, "link")
os.symlink("/", "root"); must_fail("by a linked root", open, "root@SECRET@")
must_fail("hard link", os.link, "@SECRET@", "hard")
must_fail("up", open, "../" * 12 + "@SECRET@")
""",
    ),
    Attack(
        "5 files",
        "handles",
        """
import ctypes
buffer = ctypes.create_string_buffer(136)
ctypes.c_uint.from_buffer(buffer).value = 128
mount = ctypes.c_int()
must_fail("name_to_handle", syscall, @nr:name_to_handle_at@, -100, b"@SECRET@", buffer, ctypes.byref(mount), 0)
ctypes.memmove(buffer, (8).to_bytes(4, "little") + (1).to_bytes(4, "little") + (2).to_bytes(8, "little"), 16)
must_fail("open_by_handle", lambda: syscall(@nr:open_by_handle_at@, os.open("/", os.O_RDONLY), buffer, 0))
""",
    ),
    Attack(
        "5 files",
        "shell tools",
        "cat @SECRET@; head -c9 < @SECRET@; cp @SECRET@ x; cat x; tar c @FOLDER@; find @FOLDER@ -type f -exec cat {} +",
        "bash",
    ),
    Attack(
        "5 files",
        "names by inotify",
        """
must_fail("inotify", lambda: syscall(@nr:inotify_add_watch@, syscall(@nr:inotify_init1@, 0), b"@FOLDER@", 0xfff))
""",
    ),
    Attack(
        "6 network",
        "ports and sockets of the host",
        """
import socket
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(1); s.connect(address); s.send(b"x"); return "sent"
must_fail("tcp", connect, socket.AF_INET, ("127.0.0.1", @PORT@))
must_fail("tcp6 mapped", connect, socket.AF_INET6, ("::ffff:127.0.0.1", @PORT@))
must_fail("any", connect, socket.AF_INET, ("0.0.0.0", @PORT@))
must_fail("abstract", connect, socket.AF_UNIX, "\\0@ABSTRACT@")
must_fail("path", connect, socket.AF_UNIX, "@FOLDER@/socket")
must_fail("path, datagram", connect, socket.AF_UNIX, "@FOLDER@/datagrams", socket.SOCK_DGRAM)
try: connect(socket.AF_INET, ("127.0.0.1", @UDP@), socket.SOCK_DGRAM)
except OSError: pass
""",
    ),
    Attack(
        "6 network",
        "a datagram pair that sends elsewhere",
        """
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
    def send():
        a, b = socket.socketpair(socket.AF_UNIX, kind)
        if kind == socket.SOCK_DGRAM:
            return a.sendto(b"x", "@FOLDER@/datagrams")
        a.connect("@FOLDER@/socket")
    must_fail(str(kind), send)
def abstract():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", "\\0@ABSTRACT@-datagrams")
must_fail("abstract", abstract)
""",
    ),
    Attack(
        "6 network",
        "the world",
        """
import socket
def connect(address):
    with socket.socket() as s:
        s.settimeout(1); s.connect(address)
for address in (("169.254.169.254", 80), ("1.1.1.1", 53), ("10.0.0.1", 22), ("192.168.0.1", 80)):
    must_fail(str(address), connect, address)
must_fail("dns", socket.getaddrinfo, "example.com", 80)
def ask():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1); s.sendto(b"\\0" * 12, ("8.8.8.8", 53)); return s.recv(99)
must_fail("udp", ask)
""",
    ),
    Attack(
        "6 network",
        "unusual families",
        """
import socket
for family in range(3, 46):
    if family not in (10, 16):
        for kind in (1, 2, 3, 5):
            must_fail(f"family {family} kind {kind}", lambda: socket.socket(family, kind).fileno())
for protocol in range(1, 22):
    must_fail(f"netlink {protocol}", lambda: socket.socket(16, 3, protocol).fileno())
must_fail("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno())
""",
    ),
    Attack(
        "6 network",
        "shell",
        "exec 3<>/dev/tcp/127.0.0.1/@PORT@ && echo ESCAPED; exec 3<>/dev/tcp/169.254.169.254/80 && echo ESCAPED; true",
        "bash",
    ),
    Attack(
        "7 changes outside",
        "write, rename, remove",
        """
for path in "@FOLDER@/new @SECRET@ /usr/new /etc/new /bin/new /var/tmp/new-@MARK@ /new /usr/bin/env @REPO@/new".split():
    must_fail(path, open, path, "w")
must_fail("remove", os.unlink, "@SECRET@")
must_fail("rename", os.rename, "@SECRET@", "@FOLDER@/other")
must_fail("rename here", os.rename, "@SECRET@", "here")
must_fail("mkdir", os.mkdir, "@FOLDER@/folder")
must_fail("symlink", os.symlink, "x", "@FOLDER@/link")
must_fail("fifo", os.mkfifo, "@FOLDER@/fifo")
must_fail("truncate", os.truncate, "@SECRET@", 0)
must_fail("open and truncate", os.open, "@SECRET@", os.O_RDONLY | os.O_TRUNC)
""",
    ),
    Attack(
        "7 changes outside",
        "modes, owners, times",
        """
def attempt(act, *arguments):
    try: act(*arguments)
    except OSError: pass
for path in ("@SECRET@", "@FOLDER@"):
    attempt(os.chmod, path, 0o666)
    attempt(os.chown, path, os.getuid(), os.getgid())
    attempt(os.utime, path, (1, 1))
    attempt(os.setxattr, path, "user.x", b"x")
    attempt(lambda: os.fchmod(os.open(path, os.O_PATH), 0o666))
    attempt(lambda: os.chmod(f"/proc/self/fd/{os.open(path, os.O_PATH)}", 0o666))
    attempt(syscall, @nr:fchmodat2@, -100, path.encode(), 0o666, 0)
""",
    ),
    Attack(
        "7 changes outside",
        "next run sees nothing",
        """
import tempfile
for folder in (os.getcwd(), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", os.environ["HOME"]):
    try:
        for name in os.listdir(folder):
            if "left" in name: tell(f"{folder} has {name}")
    except OSError: pass
    must_fail(folder, os.stat, f"{folder}/left-@MARK@")
for folder in (os.getcwd(), tempfile.gettempdir(), "/tmp", "/dev/shm", "/var/tmp"):
    try:
        open(f"{folder}/left-@MARK@", "w").close()
        os.chmod(folder, 0)
    except OSError: pass
print("end")
""",
        stdins=[b"", b"", b""],
        checks=[prints("end")],
    ),
    Attack(
        "7 changes outside",
        "next run sees no folder without rights",
        """
print(sorted(os.listdir()))
os.makedirs("a/b"); open("a/b/c", "w").close(); os.chmod("a/b", 0); os.chmod("a", 0)
os.mkfifo("f"); os.symlink("/etc", "l")
for _ in range(300):
    os.mkdir("d"); os.chdir("d")
""",
        stdins=[b"", b""],
        checks=[prints("['main.py']")],
    ),
    Attack(
        "7 changes outside",
        "a neighbour's folder",
        """
for number in range(200):
    for place in ("box", "tmp", ""):
        path = f"{os.path.dirname(os.path.dirname(os.getcwd()))}/{number}/{place}"
        own = (".", os.environ.get("TMPDIR", "/tmp"))
        if os.path.exists(path) and not any(os.path.samefile(path, mine) for mine in own):
            must_fail(path, os.listdir, path)
            must_fail(path, open, path + "/x", "w")
""",
    ),
    Attack(
        "7 changes outside",
        "replace the work folder by a link",
        """
here = os.getcwd()
os.chdir("/")
try: os.rename(here, here + "2")
except OSError: pass
try: os.rmdir(here)
except OSError: pass
try: os.symlink("@FOLDER@", here)
except OSError: pass
""",
        fetch=["secret", "main.py"],
    ),
]
