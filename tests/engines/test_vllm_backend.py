"""vLLM's backend with servers that are too old, take no updates, stay busy or are missing; the servers are fakes."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web

from agentrl.config.schema import Model, Rollout
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.engines.servers import Replica, ServerProcess, StartFailed
from agentrl.engines.servers.process import free_port
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.servers.weights.bucket import buckets
from agentrl.engines.vllm import VLLM
from agentrl.engines.vllm.backend import packed, parameters
from agentrl.http.client import Http, RequestRefused, ServerLost

pytestmark = pytest.mark.integration

SETTINGS = ServerSettings(
    python=sys.executable, model="somewhere", device="cpu", dtype="float32", max_model_len=64, max_num_seqs=2
)
UPDATES = ["/start_weight_update", "/shutdown_weight_transfer_engine", "/abort_requests"]
GREETING = {
    "/version": {"version": "0.32.0"},
    "/v1/models": {"data": [{"id": "policy"}]},
    "/openapi.json": {"paths": dict.fromkeys(UPDATES)},
    "/init_weight_transfer_engine": {},
}


class Fake:
    """A server with ready answers; remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = dict(GREETING)
        self.asked: list[tuple[str, Any]] = []

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path_qs, body))
        answer = self.answers.get(request.path, 404)
        if isinstance(answer, int):
            return web.Response(status=answer, text="no")
        return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)


@pytest.fixture
async def fake() -> AsyncIterator[tuple[Fake, Http]]:
    server = Fake()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    http = Http(f"http://127.0.0.1:{port}")
    yield server, http
    await http.close()
    await runner.cleanup()


Served = tuple[Fake, Http]


async def test_an_old_version_is_refused(fake: Served) -> None:
    server, http = fake
    server.answers["/version"] = {"version": "0.11.2"}
    with pytest.raises(UserError, match=r"vLLM 0\.11\.2: 0\.22 or later"):
        await VLLM(SETTINGS).greet(http)


async def test_a_server_without_development_mode_takes_no_weights(fake: Served) -> None:
    server, http = fake
    server.answers["/openapi.json"] = {"paths": {}}
    backend = VLLM(SETTINGS)
    await backend.greet(http)
    with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"):
        await backend.begin_update(http)


@pytest.mark.parametrize(("paths", "told"), [(UPDATES, {"packed": True}), (UPDATES[:1], {})])
async def test_versions_are_told_differently_that_handles_are_packed(
    fake: Served, paths: list[str], told: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, http = fake
    server.answers |= {"/openapi.json": {"paths": dict.fromkeys(paths)}, "/update_weights": {}}
    monkeypatch.setattr("agentrl.engines.vllm.backend.handles", lambda flat: "handles")
    backend = VLLM(SETTINGS)
    await backend.greet(http)
    assert server.asked[-1] == ("/init_weight_transfer_engine", {"init_info": told})
    await backend.load_ipc(http, next(buckets([("a", torch.ones(4))], 1000)))
    info = server.asked[-1][1]["update_info"]
    assert info.get("packed", False) != told.get("packed", False)
    assert (info["names"], info["shapes"], info["dtype_names"], info["tensor_sizes"]) == (
        ["a"],
        [[4]],
        ["float32"],
        [16],
    )


async def test_a_cache_that_cannot_be_emptied_is_trouble(fake: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server, http = fake
    server.answers |= {"/finish_weight_update": {}, "/collective_rpc": {}, "/reset_prefix_cache": {"success": False}}
    monkeypatch.setattr("asyncio.sleep", _at_once)
    with pytest.raises(InfraError, match="cannot be emptied"):
        await VLLM(SETTINGS).end_update(http, 3)


async def _at_once(_: float) -> None:
    pass


async def test_a_failed_request_is_refused_and_an_unknown_end_is_an_abort(fake: Served) -> None:
    server, http = fake
    backend = VLLM(SETTINGS)
    await backend.greet(http)
    server.answers["/v1/completions"] = 500
    with pytest.raises(RequestRefused):
        await backend.generate(http, "r", [1], Sampling(2), 5)
    choice = {"token_ids": [7], "logprobs": {"token_logprobs": [0.1]}, "finish_reason": "abort"}
    server.answers["/v1/completions"] = {"choices": [choice]}
    answer = await backend.generate(http, "r", [1], Sampling(2), 5)
    assert (answer.token_ids, answer.logprobs, answer.finish_reason) == ([7], [0.0], "abort")
    await backend.abort(http, ["r"])  # the server knows no such call: nothing to wait for
    assert server.asked[-1] == ("/abort_requests", {"request_ids": ["cmpl-r-0"]})


async def test_load_is_summed_over_engines(fake: Served) -> None:
    server, http = fake
    lines = [f'vllm:num_requests_{name}{{engine="{i}"}} {i + 1}.0' for name in ("running", "waiting") for i in (0, 1)]
    server.answers["/metrics"] = "\n".join(["# HELP vllm:num_requests_running ...", *lines])
    lines += [f'vllm:kv_cache_usage_perc{{engine="{i}"}} 0.25' for i in (0, 1)]
    lines += ['vllm:prefix_cache_queries_total{engine="0"} 80.0', 'vllm:prefix_cache_hits_total{engine="0"} 2e1']
    server.answers["/metrics"] = "\n".join(lines)
    load = {"running": 3.0, "waiting": 3.0, "kv_used": 0.5, "kv_room": 2.0}
    assert await VLLM(SETTINGS).load(http) == load | {"prompt_tokens": 80.0, "reused_tokens": 20.0}


async def test_a_dead_server_is_lost() -> None:
    http = Http(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ServerLost):
        await VLLM(SETTINGS).ready(http)
    await http.close()


@pytest.mark.prevents("engine and trainer need different versions of PyTorch")
async def test_a_missing_engine_says_how_to_get_it(tmp_path: Path) -> None:
    backend = VLLM(SETTINGS)  # under this interpreter, which has no vLLM
    port = free_port()
    server = ServerProcess(backend.command(port), backend.environment(), tmp_path / "vllm.log")
    replica = Replica(backend, f"http://127.0.0.1:{port}", server)
    replica.launch()
    with pytest.raises(StartFailed, match="agentrl engine install vllm"):
        await replica.ready(60)
    await replica.close()


def test_a_failed_start_shows_the_cause_and_not_its_echo(tmp_path: Path) -> None:
    lines = [
        "(EngineCore pid=7) ValueError: 0.03 GiB KV cache is needed, which is larger than the available 0.01 GiB.",
        "(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    (tmp_path / "log").write_text("\n$ python -m vllm\n" + "\n".join(lines))
    message = str(ServerProcess([], {}, tmp_path / "log").failure("vllm", VLLM.hints))
    assert "did not start: ValueError: 0.03 GiB KV cache is needed" in message
    assert "VLLM_CPU_KVCACHE_SPACE" in message


def test_stop_tokens_are_ours_alone() -> None:
    sampling = Sampling(5, stop_token_ids=(3,), top_k=-1)
    assert parameters(sampling, 9)["ignore_eos"] is True
    assert parameters(sampling, 9)["stop_token_ids"] == [3]
    assert parameters(sampling, 9)["top_k"] == 0
    assert parameters(replace(sampling, ignore_eos=True), 9)["stop_token_ids"] == []


def test_a_request_that_goes_on_draws_other_numbers() -> None:
    seed: Callable[[int], int] = lambda length: parameters(Sampling(5, seed=4), length)["seed"]  # noqa: E731
    assert seed(9) == seed(9) != seed(10)
    assert "seed" not in parameters(Sampling(5), 9)


def test_packed_bytes_have_no_gaps() -> None:
    tensors = [("a", torch.arange(3.0)), ("b", torch.arange(8.0))]
    flat, sizes = packed(next(buckets(tensors, 1000)))
    assert sizes == [12, 32]
    parts = flat.split(sizes)
    assert all(torch.equal(part.clone().view(torch.float32), t) for part, (_, t) in zip(parts, tensors, strict=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_num_seqs": 7}, ["--max-num-seqs", "7"]),
        ({"max_model_len": 99}, ["--max-model-len", "99"]),
        ({"rollout": Rollout(tensor_model_parallel_size=2)}, ["--tensor-parallel-size", "2"]),
        ({"rollout": Rollout(load_format="auto")}, ["--load-format", "auto"]),
        ({"rollout": Rollout(enable_chunked_prefill=False)}, ["--no-enable-chunked-prefill"]),
        ({"rollout": Rollout(max_num_batched_tokens=512)}, ["--max-num-batched-tokens", "512"]),
        ({"device": "cuda", "rollout": Rollout(gpu_memory_utilization=0.4)}, ["--gpu-memory-utilization", "0.4"]),
        ({"device": "cuda", "rollout": Rollout(enforce_eager=True)}, ["--enforce-eager"]),
        ({"device": "cuda", "sleeps": True}, ["--enable-sleep-mode"]),
        ({"policy": Model(override_config={"rope_theta": 2})}, ["--hf-overrides", '{"rope_theta": 2}']),
        ({"policy": Model(enable_fp32_lm_head=True)}, ["--hf-overrides", '{"head_dtype": "float32"}']),
        ({"extra": {"block_size": 32}}, ["--block-size", "32"]),
        ({"extra": {"dtype": "half"}}, ["--dtype", "half"]),
    ],
)
def test_settings_reach_the_command_line(changes: dict[str, Any], words: list[str]) -> None:
    line = VLLM(replace(SETTINGS, **changes)).command(80)
    assert json.dumps(words)[1:-1] in json.dumps(line)
    assert json.dumps(words)[1:-1] not in json.dumps(
        VLLM(replace(SETTINGS, device=changes.get("device", "cpu"))).command(80)
    )


def test_settings_reach_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert VLLM(SETTINGS).environment()["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert VLLM(SETTINGS).environment()["PYTHONPATH"].endswith(":/mine")
    quiet, loud = (
        VLLM(replace(SETTINGS, rollout=Rollout(disable_log_stats=value))).environment() for value in (True, False)
    )
    assert quiet["VLLM_LOG_STATS_INTERVAL"] != loud["VLLM_LOG_STATS_INTERVAL"]
    assert (
        VLLM(replace(SETTINGS, device="cuda", rollout=Rollout(deterministic=True))).environment()[
            "VLLM_BATCH_INVARIANT"
        ]
        == "1"
    )
