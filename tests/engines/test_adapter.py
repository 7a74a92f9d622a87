"""An adapter that travels alone: what is written is the policy's adapter to peft itself; what no engine would read as
such is refused; and what the servers are told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.config.schema import Config, Model, Rollout
from agentrl.core.errors import UserError
from agentrl.engines.backends import server_backend
from agentrl.engines.engine import Sampling
from agentrl.engines.servers import Replica
from agentrl.engines.servers.settings import AdapterSpec, ServerSettings
from agentrl.engines.servers.weights.adapter import AdapterTransport, AdapterWeights
from agentrl.engines.sglang import SGLang
from agentrl.engines.sharing import Sharing
from agentrl.engines.vllm import VLLM
from agentrl.http.client import Http
from tests.engines import tiny

pytestmark = pytest.mark.integration

IDS = list(range(5, 25))


def experts() -> Any:
    sizes = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    base = Qwen3MoeForCausalLM(Qwen3MoeConfig(**(tiny.SIZES | sizes)))
    return tiny.lora(base, target_modules=["q_proj"], target_parameters=["experts.down_proj"])


LINEAR = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


@pytest.mark.parametrize("changes", [{}, {"use_rslora": True}, {"target_modules": ["q_proj", "down_proj"]}], ids=str)
async def test_peft_reads_the_policy_from_it(changes: dict[str, Any], tmp_path: Path) -> None:
    model = tiny.lora(**changes)
    transport = AdapterTransport(AdapterWeights(model), folder=tmp_path / "adapter")
    for _ in range(2):
        tiny.change(model)
        await transport.push([])
        read = PeftModel.from_pretrained(tiny.llama(), str(tmp_path / "adapter")).eval()
        torch.testing.assert_close(tiny.logits(read, IDS), tiny.logits(model, IDS))
    assert {file.name for file in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_it_is_cast_and_far_smaller_than_the_model() -> None:
    weights = AdapterWeights(tiny.lora(tiny.llama(hidden_size=256)), dtype=torch.bfloat16)
    sent = dict(weights.tensors())
    assert {tensor.dtype for tensor in sent.values()} == {torch.bfloat16}
    assert sum(t.numel() for t in sent.values()) < 0.1 * sum(p.numel() for p in weights.model.module.parameters())
    assert weights.shape == AdapterSpec(4, LINEAR)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: tiny.lora(target_modules=["embed_tokens", "q_proj"]), "embed_tokens.lora_embedding_A"),
        (lambda: tiny.lora(target_modules=["q_proj", "lm_head"]), "the output layer"),
        (lambda: tiny.lora(modules_to_save=["lm_head"]), "lm_head.modules_to_save"),
        (lambda: tiny.lora(use_dora=True), "lora_magnitude_vector"),
        (lambda: tiny.lora(tiny.qwen2(), bias="all"), "bias"),
        (lambda: tiny.lora(rank_pattern={"q_proj": 2}), "several ranks"),
        (experts, r"mlp\.experts: its parameters"),
    ],
)
def test_what_engines_would_read_otherwise_is_refused(model: Any, said: str) -> None:
    with pytest.raises(UserError, match=rf"^model.lora_merge=false: .*{said}.*; set model.lora_merge=true") as error:
        AdapterWeights(model())
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("base")
    tiny.llama().save_pretrained(place / "model")
    tiny.lora().save_pretrained(place / "adapter")
    (place / "adapter" / "adapter_config.json").write_text(
        json.dumps(
            json.loads((place / "adapter" / "adapter_config.json").read_text())
            | {"base_model_name_or_path": str(place / "model")}
        )
    )
    return place


def settings_of(model: Model, **rollout: Any) -> ServerSettings:
    config = Config(model=model, rollout=Rollout(base_url="http://127.0.0.1:1", **rollout))
    backend: Any = server_backend("vllm", config, "cpu", Sharing())
    return backend.settings


def test_the_server_reads_the_base_and_makes_room_for_the_adapter(folder: Path) -> None:
    base = str(folder / "model")
    fresh = settings_of(Model(path=base, lora_rank=6, target_modules=["q_proj"], lora_merge=False))
    assert (fresh.model, fresh.rollout.load_format, fresh.adapter) == (base, "auto", AdapterSpec(6, ("q_proj",)))
    saved = settings_of(Model(path=str(folder / "adapter"), lora_merge=False))
    assert (saved.model, saved.rollout.load_format, saved.adapter) == (base, "auto", AdapterSpec(4, LINEAR))
    for whole in (Model(path=base, lora_rank=6), Model(path=base, lora_merge=False)):
        assert (settings_of(whole).rollout.load_format, settings_of(whole).adapter) == ("dummy", None)
    with pytest.raises(UserError, match=r"rollout.weight_sync=nccl sends whole weights"):
        settings_of(Model(path=base, lora_rank=6, lora_merge=False), weight_sync="nccl")


def words(line: list[str], flag: str) -> list[str]:
    """What follows a flag, up to the next."""
    after = line[line.index(flag) + 1 :]
    return after[: next((i for i, word in enumerate(after) if word.startswith("--")), len(after))]


@pytest.mark.parametrize(("device", "backend"), [("cpu", True), ("cuda", False)])
def test_flags(device: str, backend: bool) -> None:
    settings = ServerSettings("python", "base", device, "float32", 64, 2, adapter=AdapterSpec(12, ("k_proj", "q_proj")))
    line = SGLang(settings).command(80)
    assert words(line, "--max-lora-rank") == ["12"]
    assert words(line, "--lora-target-modules") == ["k_proj", "q_proj"]
    assert ("--lora-backend" in line) is backend
    assert words(VLLM(settings).command(80), "--max-lora-rank") == ["16"]
    assert VLLM(settings).environment()["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    plain = ServerSettings("python", "base", device, "float32", 64, 2)
    assert not any("lora" in word for kind in (SGLang, VLLM) for word in kind(plain).command(80))


class Recorder(Http):
    """A server that agrees to everything; remembers it."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    async def request(self, method: str, path: str, body: bytes = b"", **_: Any) -> tuple[int, bytes]:
        self.asked.append((path, json.loads(body) if body else None))
        return 200, json.dumps(self.answers.get(path.partition("?")[0], {})).encode()


OURS = ServerSettings("", "", "cuda", "bfloat16", 64, 2, adapter=AdapterSpec(8, ("q_proj",)))
DREW = {"meta_info": {"output_token_logprobs": [[-1.0, 7, None]], "finish_reason": {"type": "length"}}}
CHOICE = {"token_ids": [7], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}


async def update(backend: Any, http: Http, folder: Path) -> None:
    """As the engine does it to a server that slept."""
    await backend.greet(http)
    await backend.sleep(http)
    await backend.wake(http, "weights")
    await backend.begin_update(http)
    transport = AdapterTransport(AdapterWeights(tiny.lora()), folder=folder)
    replica = Replica(backend, http.url)
    replica.http = http
    await transport.push([replica])
    await backend.end_update(http, 3)
    await backend.wake(http, "kv_cache")


async def test_sglangs_calls(tmp_path: Path) -> None:
    backend = SGLang(OURS)
    info = {"version": "0.5.23", "enable_lora": True}
    paths: Any = {"paths": {"/begin_weight_update": {}}}
    http = Recorder({"/server_info": info, "/openapi.json": paths, "/generate": DREW})
    await update(backend, http, tmp_path)
    assert http.asked[2:] == [
        ("/flush_cache", {}),
        ("/release_memory_occupation", {"tags": ["kv_cache"]}),
        ("/unload_lora_adapter", {"lora_name": "adapter"}),
        ("/load_lora_adapter", {"lora_name": "adapter", "lora_path": str(tmp_path)}),
        ("/flush_cache", {}),
        ("/update_weight_version", {"new_version": "3", "abort_all_requests": False}),
        ("/resume_memory_occupation", {"tags": ["kv_cache"]}),
    ]
    await backend.generate(http, "r", [1], Sampling(1), None)
    assert http.asked[-1][1]["lora_path"] == "adapter"


@pytest.mark.parametrize(("paths", "asked"), [({}, []), ({"/freeze_gc": {}}, [("/freeze_gc", {})])])
async def test_sglang_collects_no_garbage_of_its_start_again(paths: dict[str, Any], asked: list[Any]) -> None:
    """A full collection over all that the server imported stops every request."""
    http = Recorder({"/server_info": {"version": "0.5.23"}, "/openapi.json": {"paths": paths}})
    await SGLang(replace(OURS, adapter=None)).greet(http)
    assert http.asked[2:] == asked


async def test_whole_weights_leave_the_gpu_in_sleep() -> None:
    backend, http = SGLang(replace(OURS, adapter=None)), Recorder({})
    await backend.sleep(http)
    await backend.wake(http, "weights")
    assert http.asked == [
        ("/flush_cache", {}),
        ("/release_memory_occupation", {"tags": ["kv_cache", "weights"]}),
        ("/resume_memory_occupation", {"tags": ["weights"]}),
    ]


async def test_vllms_calls(tmp_path: Path) -> None:
    backend = VLLM(OURS)
    paths: Any = {"paths": {"/start_weight_update": {}, "/v1/load_lora_adapter": {}}}
    models = {"data": [{"id": "policy"}]}
    greeting = {"/version": {"version": "0.32.0"}, "/v1/models": models, "/openapi.json": paths}
    http = Recorder(greeting | {"/v1/completions": {"choices": [CHOICE]}})
    await update(backend, http, tmp_path)
    assert http.asked[3:] == [
        ("/sleep?level=1", {}),
        ("/wake_up?tags=weights", {}),
        ("/v1/load_lora_adapter", {"lora_name": "adapter", "lora_path": str(tmp_path), "load_inplace": True}),
        ("/reset_prefix_cache", {}),
        ("/wake_up?tags=kv_cache", {}),
    ]
    await backend.generate(http, "r", [1], Sampling(1), None)
    assert http.asked[-1][1]["model"] == "adapter"


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        (SGLang, {"/server_info": {"version": "0.5.23"}, "/openapi.json": {"paths": {}}}),
        (
            VLLM,
            {"/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"id": "m"}]}, "/openapi.json": {"paths": {}}},
        ),
    ],
)
async def test_a_server_of_ones_own_that_takes_none(kind: Any, answers: dict[str, Any]) -> None:
    backend, http = kind(OURS), Recorder(answers)
    await backend.greet(http)
    with pytest.raises(UserError, match=r"takes no adapters: start it with --enable-lora.*model.lora_merge=true"):
        await backend.begin_update(http)
