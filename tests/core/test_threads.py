import threading
import time

from agentrl.core import threads
from agentrl.core.threads import DaemonThreads
from tests.waiting import wait_for


def test_a_finished_thread_is_used_again():
    workers, seen = DaemonThreads(), []
    for _ in range(5):
        workers.run(lambda: seen.append(threading.get_ident()))
        assert wait_for(lambda: bool(workers.idle))
    assert len(seen) == 5
    assert len(set(seen)) == 1


def test_work_never_waits_for_other_work():
    workers, gate, running = DaemonThreads(), threading.Event(), threading.Semaphore(0)

    def work():
        running.release()
        gate.wait(90)

    for _ in range(100):
        workers.run(work)
    assert all(running.acquire(timeout=60) for _ in range(100))
    gate.set()


def test_idle_threads_end(monkeypatch):
    monkeypatch.setattr(threads, "IDLE", 0.05)
    before = set(threading.enumerate())
    workers = DaemonThreads()
    for _ in range(10):
        workers.run(lambda: None)
    assert wait_for(lambda: set(threading.enumerate()) <= before)
    assert not workers.idle


def test_work_in_the_moment_of_retiring_is_not_lost(monkeypatch):
    monkeypatch.setattr(threads, "IDLE", 0.001)
    workers, done = DaemonThreads(), threading.Semaphore(0)
    for _ in range(300):
        workers.run(done.release)
        time.sleep(0.001)
    assert all(done.acquire(timeout=60) for _ in range(300))
