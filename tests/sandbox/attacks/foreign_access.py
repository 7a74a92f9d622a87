"""Families 1 to 5: programs that read and change processes and files of others."""

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
        "signals to the job supervisor",
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
    "@SECRET@ @REPO@/agentrl/__main__.py /etc/shadow /etc/passwd- /etc/ssh /etc/ssl/private /root/.bashrc /root/.ssh "
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
]
