"""What a server may do wrong: a small HTTP server that loses, refuses and delays. No engine is needed."""

import asyncio
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.config.schema import Rollout
from agentrl.core.clocks import time_limit
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.engines.servers import RemoteEngine, Replica, ServerProcess, StartFailed
from agentrl.engines.servers.process import Scratch
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang import SGLang
from agentrl.http.client import Http, ServerLost
from agentrl.rollout.pausable_engine import PausableEngine
from agentrl_sandbox.http_client import HttpClient
from tests.frames import frames_since
from tests.waiting import wait_for
from tests.warm import Process

pytestmark = pytest.mark.integration

Handler = Callable[[dict[str, Any]], Any]


class NoWeights:
    name = "none"

    async def push(self, replicas): ...

    async def close(self): ...


class Fake:
    """Answers as SGLang does: token 7, over and over; `trouble` may raise, or answer, first."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.trouble: Handler = lambda body: None
        self.url = ""
        self.healthy = True
        self.version: str | None = "0.5.23"

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        answer = self.trouble(body)
        if answer is not None:
            return await answer(request)
        count = body["sampling_params"]["max_new_tokens"]
        return reply(count, "length")

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version}) if self.version else web.Response(status=404)

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.json_response({})


def reply(count: int, reason: str) -> web.Response:
    logprobs = [[-0.5, 7, None]] * count
    return web.json_response({"meta_info": {"output_token_logprobs": logprobs, "finish_reason": {"type": reason}}})


async def hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def hang(request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


@pytest.fixture
async def fakes() -> AsyncIterator[list[Fake]]:
    made, runners = [Fake(), Fake()], []
    for fake in made:
        app = web.Application()
        app.router.add_post("/generate", fake.generate)
        app.router.add_post("/abort_request", fake.abort)
        app.router.add_get("/health", fake.health)
        app.router.add_get("/server_info", fake.info)
        app.router.add_get("/openapi.json", lambda _: web.json_response({"paths": {}}))
        for path in ("/flush_cache", "/update_weight_version"):
            app.router.add_post(path, lambda _: web.json_response({"success": True}))
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        runners.append(runner)
    yield made
    for runner in runners:
        await runner.cleanup()


async def engine_of(fakes: list[Fake], **rollout: Any) -> RemoteEngine:
    settings = ServerSettings("", "", "cpu", "float32", 100, 4, rollout=Rollout(start_timeout=5, **rollout))
    backend = SGLang(settings)
    engine = RemoteEngine(backend, [Replica(backend, f.url) for f in fakes], NoWeights())
    await engine.start()
    return engine


async def test_a_lost_answer_is_asked_for_again_and_nothing_is_doubled(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes[:1])
    fakes[0].trouble = lambda _: hang_up if len(fakes[0].asked) == 1 else None
    got = await engine.generate([1, 2], Sampling(5, seed=3), key="a")
    assert got.token_ids == [7] * 5
    first, second = fakes[0].asked
    assert {**first, "rid": ""} == {**second, "rid": ""}
    await engine.close()


async def test_few_calls_lie_between_a_request_and_its_connection(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, found = await engine_of(fakes[:1]), list[str]()
    request = HttpClient.request

    async def noting(self: HttpClient, *args: Any, **given: Any) -> Any:
        found.extend(frames_since("ServerClient.generate"))
        return await request(self, *args, **given)

    monkeypatch.setattr(HttpClient, "request", noting)
    await engine.generate([1], Sampling(1), key="a")
    assert len(found) <= 4, found
    await engine.close()


async def test_a_server_that_keeps_losing_is_an_infrastructure_error(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes[:1])
    fakes[0].trouble = lambda _: hang_up
    with pytest.raises(InfraError, match="given up"):
        await engine.generate([1], Sampling(5), key="a")
    await engine.close()


async def test_a_request_past_its_deadline_goes_elsewhere(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes, request_timeout=0.3)
    fakes[0].trouble = lambda _: hang
    got = await asyncio.gather(*(engine.generate([1], Sampling(3), key=str(i)) for i in range(4)))
    assert all(g.token_ids == [7] * 3 for g in got)
    await engine.close()


async def test_a_request_that_is_late_everywhere_is_given_up(fakes: list[Fake]) -> None:
    """It draws the same tokens on each server: to send it on and on takes one server after the other out of service."""
    engine = await engine_of(fakes, request_timeout=0.3)
    for fake in fakes:
        fake.trouble = lambda _: hang
    with pytest.raises(InfraError, match="given up after 2 tries"):
        await engine.generate([1], Sampling(3), key="a")
    await engine.close()


async def test_an_error_of_the_server_is_not_retried(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes[:1])

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": "too long"}, status=400)

    fakes[0].trouble = lambda _: refuse
    with pytest.raises(InfraError, match="answered 400.*too long"):
        await engine.generate([1], Sampling(5), key="a")
    assert len(fakes[0].asked) == 1
    await engine.close()


async def test_a_request_past_its_deadline_is_aborted(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes[:1], request_timeout=0.3)
    fakes[0].trouble = lambda _: hang if len(fakes[0].asked) == 1 else None
    assert (await engine.generate([1], Sampling(3), key="a")).token_ids == [7] * 3
    await engine.abort()  # waits for aborts that are on their way: the loop may stand still afterwards
    assert fakes[0].aborted == [fakes[0].asked[0]["rid"]]
    await engine.close()


@pytest.mark.parametrize(("status", "healthy"), [(500, False), (503, False), (502, True), (504, True)])
async def test_a_server_on_its_way_down_has_not_answered(fakes: list[Fake], status: int, healthy: bool) -> None:
    """Of a healthy one 502 and 504 are a router's words: the server behind it did not answer."""
    engine = await engine_of(fakes[:1])

    async def dying(request: web.Request) -> web.Response:
        fakes[0].healthy = healthy
        asyncio.get_running_loop().call_later(0.3, setattr, fakes[0], "healthy", True)
        return web.Response(status=status)

    fakes[0].trouble = lambda _: dying if len(fakes[0].asked) == 1 else None
    assert (await engine.generate([1], Sampling(3), key="a")).token_ids == [7] * 3
    await engine.close()


async def test_an_error_of_a_healthy_server_is_not_retried(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes[:1])

    async def broken(request: web.Request) -> web.Response:
        return web.Response(status=500)

    fakes[0].trouble = lambda _: broken
    with pytest.raises(InfraError, match="answered 500"):
        await engine.generate([1], Sampling(5), key="a")
    assert len(fakes[0].asked) == 1
    await engine.close()


@pytest.mark.parametrize("partial", [True, False])
async def test_an_update_interrupts_or_waits(fakes: list[Fake], partial: bool) -> None:
    own = await engine_of(fakes[:1])
    engine, go = PausableEngine(own, partial=partial), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        while not (go.is_set() or fakes[0].aborted):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return reply(2, "abort") if fakes[0].aborted else reply(5, "length")

    fakes[0].trouble = lambda _: slow if len(fakes[0].asked) == 1 else None
    task = asyncio.create_task(engine.generate([1], Sampling(5), key="a"))
    while not fakes[0].asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    update = asyncio.create_task(engine.update_weights(4))
    late = asyncio.create_task(engine.generate([2], Sampling(1), key="b"))
    if not partial:
        await asyncio.sleep(0.1)
        assert not update.done()
        go.set()
    await update
    first, last = await task, await late
    assert (first.weight_version, first.versions) == (0, (0, 0, 4, 4, 4) if partial else ())
    assert (last.weight_version, last.versions) == (4, ())
    await own.close()


@pytest.mark.parametrize("trouble", ["a pause", "a restart"])
async def test_no_limit_counts_the_wait_for_a_server(fakes: list[Fake], trouble: str) -> None:
    engine, loop, ahead = await engine_of(fakes[:1]), asyncio.get_running_loop(), [0.0]
    (replica,), real = engine.pool.replicas, loop.time
    loop.time = lambda: real() + ahead[0]  # type: ignore[method-assign]
    if trouble == "a pause":
        await engine.pause()
    else:
        replica.serving, engine.pool._restarts[replica] = False, asyncio.create_task(asyncio.sleep(60))
    async with time_limit(1000.0) as limit:
        task = asyncio.create_task(engine.generate([1], Sampling(5), key="a"))
        await asyncio.sleep(0.01)
        ahead[0] += 5000.0
        await asyncio.sleep(0.01)
        assert not task.done()
        replica.serving = True
        await engine.resume()
        assert len((await task).token_ids) == 5
    assert not limit.expired()
    await engine.close()


async def test_a_thousand_requests_are_in_flight_at_once(fakes: list[Fake]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))  # what systems give
    try:
        engine = await engine_of(fakes[:1])
        full = asyncio.Event()

        async def wait(request: web.Request) -> web.Response:
            if len(fakes[0].asked) == 1024:
                full.set()
            await full.wait()
            return reply(3, "length")

        fakes[0].trouble = lambda _: wait
        got = await asyncio.gather(*(engine.generate([1], Sampling(3), key=str(i)) for i in range(1024)))
        assert all(g.token_ids == [7] * 3 for g in got)
        assert len(fakes[0].asked) == 1024
        await engine.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_an_interrupted_generation_goes_on_after_its_tokens(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes[:1])

    async def part(request: web.Request) -> web.Response:
        return reply(2, "abort")

    fakes[0].trouble = lambda _: part if len(fakes[0].asked) == 1 else None
    got = await engine.generate([1], Sampling(5), key="a")
    assert got.token_ids == [7] * 5
    assert fakes[0].asked[1]["input_ids"] == [1, 7, 7]
    assert fakes[0].asked[1]["sampling_params"]["max_new_tokens"] == 3
    await engine.close()


async def test_keys_stick_and_load_spreads(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes)
    for _ in range(3):
        await asyncio.gather(*(engine.generate([i], Sampling(1), key=str(i)) for i in range(10)))
    places = [{body["input_ids"][0] for body in fake.asked} for fake in fakes]
    assert len(places[0]) == len(places[1]) == 5
    assert not places[0] & places[1]
    await engine.close()


async def test_cancelling_aborts_on_the_server(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes[:1])
    fakes[0].trouble = lambda _: hang
    task = asyncio.create_task(engine.generate([1], Sampling(5), key="a"))
    while not fakes[0].asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.close()
    assert fakes[0].aborted == [fakes[0].asked[0]["rid"]]


async def test_a_router_gets_the_requests_and_the_servers_the_rest(fakes: list[Fake]) -> None:
    router, *servers = fakes
    engine = await engine_of(servers, router_url=router.url)
    assert (await engine.generate([1], Sampling(5), key="a")).token_ids == [7] * 5
    router.trouble = lambda _: hang
    task = asyncio.create_task(engine.generate([2], Sampling(5), key="b"))
    while len(router.asked) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.close()
    assert not servers[0].asked
    assert servers[0].aborted == [router.asked[1]["rid"]]


async def test_a_group_shares_a_replica_until_that_has_too_much(fakes: list[Fake]) -> None:
    engine = await engine_of(fakes[:2])
    for sample in range(2):
        for row in range(4):
            await engine.generate([row], Sampling(1), key=f"1/r:{row}/{sample}")
    assert sorted(sorted({body["input_ids"][0] for body in fake.asked}) for fake in fakes[:2]) == [[0, 2], [1, 3]]
    asked = [len(fake.asked) for fake in fakes[:2]]
    for sample in range(8):
        await engine.generate([9], Sampling(1), key=f"1/big/{sample}")
    more = [len(fake.asked) - before for fake, before in zip(fakes[:2], asked, strict=True)]
    assert min(more) >= 3
    await engine.close()


async def test_an_address_without_a_server_is_named(fakes: list[Fake]) -> None:
    with pytest.raises(InfraError, match="no sglang server"):
        await engine_of([type("Gone", (), {"url": "http://127.0.0.1:9"})()])


@pytest.mark.parametrize(("version", "said"), [("0.4.6", "runs SGLang 0.4.6: 0.5.10"), (None, "is no sglang server")])
async def test_a_server_that_we_do_not_speak_to_is_named(fakes: list[Fake], version: str | None, said: str) -> None:
    fakes[0].version = version
    with pytest.raises(UserError, match=said):
        await engine_of(fakes[:1])


async def test_nobody_listens() -> None:
    with pytest.raises(ServerLost):
        await Http("http://127.0.0.1:9").get("/x")


async def test_a_failed_start_shows_the_last_words(tmp_path: Path) -> None:
    code = "import sys; print('loading'); sys.exit('RuntimeError: CUDA out of memory')"
    server = ServerProcess([sys.executable, "-c", code], {}, tmp_path / "log.txt")
    backend = SGLang(ServerSettings("", "", "cpu", "float32", 100, 4))
    replica = Replica(backend, "http://127.0.0.1:9", server)
    replica.launch()
    with pytest.raises(StartFailed, match=r"RuntimeError: CUDA out of memory; lower rollout.gpu_memory.*log.txt") as e:
        await replica.ready(30)
    assert isinstance(e.value, UserError)
    assert e.value.details == ("loading", "RuntimeError: CUDA out of memory")
    await replica.close()


async def test_a_server_whose_port_was_taken_is_not_waited_for(tmp_path: Path) -> None:
    usage = "[--some-flag SOME_FLAG]"
    words = "[Errno 98] error while attempting to bind on address ('127.0.0.1', 9): address already in use"
    code = f"import time; print({usage!r}); print({words!r}, flush=True); time.sleep(600)"
    server = ServerProcess([sys.executable, "-c", code], {}, tmp_path / "log.txt")
    replica = Replica(SGLang(ServerSettings("", "", "cpu", "float32", 100, 4)), "http://127.0.0.1:9", server)
    replica.launch()
    with pytest.raises(StartFailed, match="another program took its port: start again") as e:
        await replica.ready(300)
    assert e.value.details == (words,)
    await replica.close()


SERVER = (
    "import subprocess, sys, tempfile, time; print('folder', tempfile.mkdtemp(), flush=True); "
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print('pid', p.pid, flush=True); time.sleep(600)"
)


def serve_and_wait(folder: Path) -> None:
    scratch = folder / "scratch"
    scratch.mkdir()
    weights = Scratch(folder)
    ServerProcess([sys.executable, "-c", SERVER], {}, folder / "log.txt", scratch=scratch).launch()
    time.sleep(600)
    weights.remove()


def test_nothing_outlives_a_killed_trainer(tmp_path: Path) -> None:
    trainer = Process(serve_and_wait, tmp_path)
    log = tmp_path / "log.txt"
    assert wait_for(lambda: log.exists() and "\npid " in log.read_text(), 600)
    grandchild = int(log.read_text().split("\npid ")[1].split()[0])
    folder = Path(log.read_text().split("\nfolder ")[1].split()[0])
    assert Path(f"/proc/{grandchild}").exists()
    assert folder.exists()
    trainer.kill()
    assert wait_for(lambda: not Path(f"/proc/{grandchild}").exists() and list(tmp_path.iterdir()) == [log], 600)
    assert wait_for(lambda: not folder.parent.exists(), 600)


SEMAPHORES = (
    "import multiprocessing, time; context = multiprocessing.get_context('spawn'); "
    "kept = context.Queue(), context.Event(), context.Lock(); print('made', kept[2]._semlock.name, flush=True); "
    "time.sleep(600)"
)


async def test_a_stopped_server_leaves_no_semaphore(tmp_path: Path) -> None:
    log, before = tmp_path / "log.txt", set(os.listdir("/dev/shm"))
    server = ServerProcess([sys.executable, "-c", SEMAPHORES], {}, log)
    server.launch()
    await asyncio.to_thread(wait_for, lambda: "\nmade " in log.read_text())
    name = "sem." + log.read_text().split("\nmade /")[1].split()[0]
    assert name in set(os.listdir("/dev/shm")) - before
    await server.stop()
    assert name not in os.listdir("/dev/shm")


WATCHFUL = (
    "import signal, subprocess, sys; signal.signal(signal.SIGTERM, lambda *_: print('I drain', flush=True)); "
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print('pid', p.pid, flush=True); p.wait(); print('a child crashed', flush=True)"
)


async def test_all_of_a_server_ends_at_the_same_moment_without_a_word(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    server = ServerProcess([sys.executable, "-c", WATCHFUL], {}, log)
    server.launch()
    await asyncio.to_thread(wait_for, lambda: "\npid " in log.read_text())
    child = int(server.tail(1)[0].split()[1])
    await server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert server.tail() == [f"pid {child}"]


def test_a_folder_for_weights_goes_when_it_is_told_to(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    (scratch.path / "model.safetensors").write_text("weights")
    scratch.remove()
    scratch.remove()
    assert not list(tmp_path.iterdir())
