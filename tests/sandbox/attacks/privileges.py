# ruff: noqa: E501 - programs
"""Families 8, 21 and 22: privileges to gain, system calls that lead out, open descriptors."""

from tests.sandbox.attacks.attack import Attack, Check, Limits, last, prints

NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80)


def killed_or_refused(result: object) -> str:
    """SIGSYS or SIGSEGV, or an error code that it printed."""
    command = last(result)  # type: ignore[arg-type]
    return "" if command.return_code in (-31, -11) or b"refused" in command.stdout else f"{command}"


CHECK: Check = killed_or_refused

ATTACKS = [
    Attack(
        "8 kernel",
        "unshare",
        f"""
for flag in {NAMESPACES}:
    must_fail(f"unshare {{flag:#x}}", syscall, @nr:unshare@, flag)
    must_fail(f"with a user namespace {{flag:#x}}", syscall, @nr:unshare@, flag | 0x10000000)
""",
    ),
    Attack(
        "8 kernel",
        "core dumps, to a host that pipes them",
        """
import resource
def limit():
    if resource.getrlimit(resource.RLIMIT_CORE)[0] != 1: tell(resource.getrlimit(resource.RLIMIT_CORE))
limit()
for soft, hard in ((0, 0), (0, 1), (1 << 20, 1 << 20), (-1, -1)):
    for act in (resource.setrlimit, lambda *a: resource.prlimit(0, *a), lambda *a: resource.prlimit(os.getpid(), *a)):
        try: act(resource.RLIMIT_CORE, (soft, hard))
        except (OSError, ValueError): pass
        limit()
""",
    ),
    Attack(
        "8 kernel",
        "watches, leases and larger buffers",
        """
import fcntl, socket
must_fail("inotify", lambda: syscall(@nr:inotify_add_watch@, syscall(@nr:inotify_init1@, 0), b"/usr", 0xfff))
must_fail("dnotify", fcntl.fcntl, os.open("/usr", os.O_RDONLY), fcntl.F_NOTIFY, 0xff)
must_fail("a lease", fcntl.fcntl, os.open(sys.executable, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
must_fail("a large pipe", fcntl.fcntl, os.pipe()[1], 1031, 1 << 20)
must_fail("asynchronous I/O", syscall, @nr:io_setup@, 1, bytes(8))
for one in socket.socketpair():
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):
        try: one.setsockopt(socket.SOL_SOCKET, option, 1 << 24)
        except OSError: pass
    if one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 1 << 20: tell("a large socket")
os.sync()
""",
    ),
    Attack(
        "8 kernel",
        "what the kernel lets itself be told in files",
        """
# What may be opened: devices that are anybody's, the limits of its own IPC and pid namespaces, and one that writing is refused to.
OWN = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts/", "/dev/shm/",
    "/dev/fd", "/dev/std", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/pid_max", "/proc/sys/fs/mqueue/", "/proc/sys/kernel/msg",
    "/proc/sys/kernel/sem", "/proc/sys/kernel/shm", "/proc/sys/kernel/auto_msgmni")
for root in ("/proc/sys", "/sys", "/dev"):
    for where, _, names in os.walk(root):
        for path in (f"{where}/{name}" for name in names):
            if not path.startswith(OWN):
                must_fail(path, lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))
must_fail("ns_last_pid", lambda: os.write(os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY), b"1"))
for path in ("kmsg", "sched_debug", "timer_list", "kallsyms", "kpagecount", "iomem", "keys", "1/environ", "1/maps", "1/oom_score_adj"):
    if "@TIER@" == "bwrap" and path.startswith("1/"): continue  # that process is the run's own
    try: text = open("/proc/" + path, "rb+" if "oom" in path else "rb").read(1 << 20)
    except OSError: continue
    if not text: continue  # a container puts an empty file in its place
    if path == "1/oom_score_adj" or (path in ("kmsg", "sched_debug", "timer_list")) or (path == "kallsyms" and text.strip(b"0") [:1] != b" "): tell(path)
must_fail("sees timers to trace", os.sched_setaffinity, 1, {0})
""",
    ),
    Attack(
        "8 kernel",
        "clone and clone3",
        f"""
import struct, ctypes
def child(call):
    pid = call()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    return pid
for flag in {NAMESPACES[:-1]}:
    must_fail(f"clone {{flag:#x}}", child, lambda: syscall(@nr:clone@, flag | 17, 0, 0, 0, 0))
    words = struct.pack("11Q", flag, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    must_fail(f"clone3 {{flag:#x}}", child, lambda: syscall(@nr:clone3@, words, ctypes.c_size_t(88)))
""",
    ),
    Attack(
        "8 kernel",
        "setns",
        """
for pid in pids() | {os.getpid()}:
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        must_fail(f"{pid} {name}", lambda: syscall(@nr:setns@, os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), 0))
""",
    ),
    Attack(
        "8 kernel",
        "mounts",
        """
for path in (b"/tmp", b"/proc", b"/", os.getcwdb()):
    must_fail(f"tmpfs on {path}", syscall, @nr:mount@, b"none", path, b"tmpfs", 0, 0)
    must_fail(f"bind on {path}", syscall, @nr:mount@, b"/", path, 0, 4096, 0)
    must_fail(f"writable {path}", syscall, @nr:mount@, b"", path, 0, 32 | 4096, 0)
    must_fail(f"unmount {path}", syscall, @nr:umount2@, path, 2)
must_fail("pivot_root", syscall, @nr:pivot_root@, b".", b".")
must_fail("chroot", os.chroot, ".")
must_fail("open_tree", syscall, @nr:open_tree@, -100, b"/", 1)
must_fail("fsopen", syscall, @nr:fsopen@, b"tmpfs", 0)
must_fail("mount_setattr", syscall, @nr:mount_setattr@, -100, b"/", 0x8000, b"\\0" * 32, 32)
""",
    ),
    Attack(
        "8 kernel",
        "calls that few need",
        """
for name, number, arguments in (
    ("bpf", @nr:bpf@, (0, b"\\x01\\0\\0\\0\\4\\0\\0\\0\\4\\0\\0\\0\\1\\0\\0\\0" + b"\\0" * 100, 72)),
    ("io_uring", @nr:io_uring_setup@, (8, b"\\0" * 120)),
    ("keyctl", @nr:keyctl@, (0, -3, 1)),
    ("add_key", @nr:add_key@, (b"user", b"x", b"x", 1, -3)),
    ("perf", @nr:perf_event_open@, (b"\\0" * 112, 0, -1, -1, 0)),
    ("userfaultfd", @nr:userfaultfd@, (1,)), ("kexec", @nr:kexec_load@, (0, 0, 0, 0)),
    ("module", @nr:init_module@, (b"", 0, b"")),
    ("reboot", @nr:reboot@, (0xfee1dead, 0x28121969, 0, 0)),
    ("syslog", @nr:syslog@, (3, b"\\0" * 99, 99)), ("swapon", @nr:swapon@, (b"main.py", 0)),
    ("memfd", @nr:memfd_create@, (b"x", 0)), ("secret memory", @nr:memfd_secret@, (0,)),
    ("personality", @nr:personality@, (0x0400000,)),
    ("fanotify", @nr:fanotify_init@, (0, 0)), ("shmget", @nr:shmget@, (0, 4096, 0o1600)),
    ("msgget", @nr:msgget@, (0, 0o1600)),
    ("semget", @nr:semget@, (0, 1, 0o1600)), ("mq_open", @nr:mq_open@, (b"x", 0o102, 0o600, 0)),
    ("acct", @nr:acct@, (0,)),
    ("settimeofday", @nr:settimeofday@, (b"\\0" * 16, 0)), ("quotactl", @nr:quotactl@, (0, 0, 0, 0)),
    ("kcmp", @nr:kcmp@, (os.getpid(), os.getppid(), 0, 0, 0)),
    ("move_pages", @nr:move_pages@, (os.getppid(), 0, 0, 0, 0, 0)),
    ("process_madvise", @nr:process_madvise@, (0, 0, 0, 0, 0)),
    ("seccomp filter", @nr:seccomp@, (2, 0, 0)), ("landlock", @nr:landlock_create_ruleset@, (0, 0, 1)),
    ("newest call", 463, (0, 0, 0)),
):
    must_fail(name, syscall, number, *arguments)
""",
    ),
    Attack(
        "8 kernel",
        "typing into the terminal",
        """
import fcntl
for handle in (0, 1, 2):
    must_fail("TIOCSTI", fcntl.ioctl, handle, 0x5412, b"x")
master, slave = -1, -1
try: master, slave = os.openpty()
except OSError: pass
if slave >= 0:
    must_fail("TIOCSTI on an own one", fcntl.ioctl, slave, 0x5412, b"x")
""",
    ),
    Attack(
        "8 kernel",
        "32-bit calls",
        """
import ctypes, mmap, platform
if platform.machine() != "x86_64":
    print("refused"); sys.exit()
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b8 14 00 00 00 cd 80 c3"))  # mov eax, 20 (getpid); int 0x80; ret
got = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
tell("int 0x80") if got == os.getpid() else print("refused", got)
""",
        checks=[CHECK],
    ),
    Attack(
        "8 kernel",
        "x32 calls",
        "must_fail('x32', syscall, 0x40000000 + 39)\nmust_fail('x32 unshare', syscall, 0x40000000 + 272, 0x10000000)",
    ),
    Attack(
        "8 kernel",
        "devices",
        """
import stat
for major, minor in ((1, 1), (8, 0), (1, 11), (10, 229), (5, 0)):
    must_fail(f"mknod {major} {minor}", os.mknod, "device", 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    must_fail(f"mknod block {major} {minor}", os.mknod, "device", 0o666 | stat.S_IFBLK, os.makedev(major, minor))
""",
    ),
    Attack(
        "21 rights",
        "limits do not rise",
        """
import resource
for name in ("NPROC", "FSIZE", "NOFILE", "CPU", "DATA", "CORE", "MEMLOCK"):
    kind = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(kind)[1]
    if hard == resource.RLIM_INFINITY: tell(f"{name} is unlimited")
    try: resource.setrlimit(kind, (hard + 1, hard + 1))
    except (OSError, ValueError): pass
    if resource.getrlimit(kind)[1] != hard: tell(f"{name} rose")
""",
    ),
    Attack(
        "21 rights",
        "other users",
        """
for uid in (0, 1, 65534, os.getuid() + 1):
    must_fail(f"setuid {uid}", os.setuid, uid)
    must_fail(f"setgid {uid}", os.setgid, uid)
must_fail("setgroups", os.setgroups, [0])
if os.getuid() == 0 or os.geteuid() == 0: tell("it is root")
with open("/proc/self/status") as file:
    for line in file:
        if line.startswith(("CapEff", "CapPrm", "CapInh", "CapAmb")) and int(line.split()[1], 16): tell(line)
        if line.startswith("NoNewPrivs") and "1" not in line: tell(line)
        if line.startswith("Seccomp:") and "2" not in line: tell(line)
""",
    ),
    Attack(
        "21 rights",
        "programs with the setuid bit",
        """
import shutil, subprocess
for words in ("su -c id", "sudo -n id", "mount -t tmpfs x /tmp", "newuidmap 1 0 0 1", "pkexec id"):
    command = words.split()
    def run(command=command):
        if subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode: raise OSError
    must_fail(command[0], run)
shutil.copy("/usr/bin/id", "id")
os.chmod("id", 0o6755)
def own_copy():
    if subprocess.run(["./id", "-u"], capture_output=True).stdout != b"0\\n": raise OSError
must_fail("a copy of its own", own_copy)
""",
    ),
    Attack(
        "21 rights",
        "capabilities",
        """
import ctypes
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
must_fail("capset", lambda: 1 / (1 + ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)(*[0xffffffff] * 6))))
must_fail("nice", os.nice, -5)
must_fail("realtime", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
must_fail("hostname", lambda: __import__("socket").sethostname("x"))
""",
    ),
    Attack(
        "22 descriptors",
        "none but stdio",
        """
import stat
for handle in range(3, 2000):
    try: about = os.fstat(handle)
    except OSError: continue
    tell(f"{handle}: {about}")
kinds = [stat.S_ISFIFO(os.fstat(handle).st_mode) for handle in (0, 1, 2)]
if not all(kinds): tell(str(kinds))
""",
        limits=Limits(wall=10.0),
    ),
    Attack(
        "22 descriptors",
        "the shell's list",
        "ls -l /proc/self/fd/ | grep -v -e pipe: -e total -e /proc/ | grep -v 'main' && echo ESCAPED; echo end",
        "bash",
        checks=[prints("end")],
    ),
]
