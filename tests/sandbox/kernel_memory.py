"""Programs that have much more memory than the limit, all of it outside of their address space."""

_QUEUES = """
import os, socket, time
for _ in range(20):
    if os.fork() == 0: break
kept = []
try:
    while True:
        kept.append(MAKE)
        for one in kept[-1]:
            try:
                os.set_blocking(one.fileno(), False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 23)
                while True: one.send(bytes(1 << 16))
            except (BlockingIOError, BrokenPipeError): pass
            except OSError: break
except OSError: pass
time.sleep(60)
"""
_PIPE = """
class End:
    def __init__(self, handle): self.handle = handle
    def fileno(self): return self.handle
    def setsockopt(self, *_): pass
    def send(self, data): os.write(self.handle, data)
"""
_UNMAPPED = """
import mmap, os, time
for _ in range(20):
    if os.fork() == 0: break
shared = mmap.mmap(-1, 60 << 20)
for place in range(0, len(shared), 4096): shared[place] = 1
shared.madvise(mmap.MADV_DONTNEED); time.sleep(60)
"""
_FILE = """
import os, time
file = os.open("/dev/shm/x", os.O_CREAT | os.O_RDWR)
os.posix_fallocate(file, 0, 50 << 20)
os.unlink("/dev/shm/x")
rest = bytearray(b"x") * (30 << 20); time.sleep(60)
"""
PROGRAMS = {
    "sockets": _QUEUES.replace("MAKE", "socket.socketpair()"),
    "pipes": _PIPE + _QUEUES.replace("MAKE", "[End(handle) for handle in reversed(os.pipe())]"),
    "shared memory that nobody has touched lately": _UNMAPPED,
    "a file without a name": _FILE,
}
