"""Families 6 and 7: programs that use the network, change the host, or leave traces for the next run."""

from tests.sandbox.attacks.attack import Attack, prints

ATTACKS = [
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
