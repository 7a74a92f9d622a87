"""Clients that give up and ask again: the job keeps its place, runs once, and is dropped when no one comes back."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentrl_sandbox.job import CommandResult, Result
from agentrl_sandbox.server.retries import Retries, Work
from agentrl_sandbox.server.service import Service
from agentrl_sandbox.server.settings import Settings

from .test_app import ask
from .test_official_client import check, verl  # noqa: F401 - the fixture

pytestmark = pytest.mark.integration

BODY = {"language": "python", "code": "print(1)", "compile_timeout": 0.1, "run_timeout": 0.1}


class Slow:
    """An executor that answers when it is told to."""

    isolation, report = "none", ()

    def __init__(self):
        self.jobs = 0
        self.done = asyncio.Event()

    async def run(self, job, **_):
        self.jobs += 1
        await self.done.wait()
        return Result("none", runs=[CommandResult("Finished", 0.1, 0, b"late\n", b"")])

    def stats(self):
        return {}


async def test_an_equal_request_takes_over_the_job_that_a_504_left():
    pool = Slow()
    service = Service(pool, Settings(patience=0.1))
    for _ in range(2):
        status, reply = await ask(service, BODY)
        assert (status, pool.jobs) == (504, 1), reply
    pool.done.set()
    status, reply = await ask(service, BODY)
    assert (status, reply["run_result"]["stdout"], pool.jobs) == (200, "late\n", 1)
    assert (service.retries.kept, service.retries.bytes) == ({}, 0)


async def test_equal_requests_at_once_are_jobs_of_their_own():
    pool = Slow()
    service = Service(pool, Settings(patience=0.1))
    first = await asyncio.gather(*(ask(service, BODY) for _ in range(3)))
    assert ([status for status, _ in first], pool.jobs) == ([504] * 3, 3)
    pool.done.set()
    again = await asyncio.gather(*(ask(service, BODY) for _ in range(4)))
    assert ([status for status, _ in again], pool.jobs) == ([200] * 4, 4)


async def test_a_request_with_a_queue_timeout_waits_for_its_answer():
    """Our own client: its request has no other end than the one it names."""
    pool = Slow()
    service = Service(pool, Settings(patience=0.1))
    waiting = asyncio.ensure_future(ask(service, BODY | {"queue_timeout": 60}))
    await asyncio.sleep(0.6)
    assert not waiting.done()
    pool.done.set()
    assert (await waiting)[0] == 200


async def test_a_job_that_no_one_asks_for_again_is_cancelled():
    retries = Retries(100, linger=0.05)
    work = Work(asyncio.ensure_future(asyncio.sleep(60)), {}, 60)
    retries.keep(b"k", work)
    full = Work(asyncio.ensure_future(asyncio.sleep(60)), {}, 60)
    retries.keep(b"l", full)
    await asyncio.wait([work.task, full.task], timeout=20)
    assert work.task.cancelled()
    assert full.task.cancelled(), "what does not fit is not kept"
    assert (retries.kept, retries.bytes) == ({}, 0)


@pytest.mark.prevents("a sandbox under load refuses right answers, or the 129th conversation")
def test_every_right_answer_of_128_workers_gets_its_score_from_2_slots(start, verl):  # noqa: F811
    """verl's own client, as impatient in proportion: three tries of 10 seconds for 8 seconds' worth of queue."""
    server = start("--slots", "2", "--patience", "1")
    code = "import time; time.sleep(0.12); print(2 * int(input()))"

    def score(number: int) -> list:
        in_outs = {"inputs": [str(number)], "outputs": [str(2 * number)]}
        return check(verl, server, in_outs, code, timeout=4)[0]

    with ThreadPoolExecutor(128) as workers:
        assert list(workers.map(score, range(128))) == [[True]] * 128


def test_a_client_that_hangs_up_leaves_nothing_in_the_queue(start):
    server = start("--slots", "1")
    blocker = threading.Thread(target=server.python, args=("import time; time.sleep(2)",))
    blocker.start()
    server.wait_for(running=1)
    body = b'{"language": "python", "code": "1"}'
    head = b"POST /run_code HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head % len(body) + body)
        server.wait_for(queued=1)
    server.wait_for(queued=0)
    blocker.join()
    assert server.get("/health")[1]["load"]["done"] <= 4, "canaries and the first job"
