"""vLLM's OpenAI server, with the calls of its development mode.

Failure modes that the code here avoids:
- without `ignore_eos` the model's own end token ends requests that do not have it as a stop token;
- the completions endpoint changes the id of a request, and an abort needs the changed one;
- an update may keep tensors until a layer is complete: only packed handles of GPU memory are copied at once;
- on a CPU an update leaves a tied output layer with the old weights;
- prefixes are cached by the adapter's name alone: the cache is emptied after each update;
- image features are cached too, and outlive an update unless the cache is reset.
"""

import asyncio
import base64
import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.core.errors import UserError
from agentrl.core.points import engine
from agentrl.engines.engine import Sampling
from agentrl.engines.experts import saved_experts
from agentrl.engines.scores import ServerScores
from agentrl.engines.servers import ServerBackend
from agentrl.engines.servers.backend import CONTROL_SECONDS, BroadcastGroup, ServerAnswer, as_finish_reason, empty_cache
from agentrl.engines.servers.settings import ADAPTER, ServerSettings
from agentrl.engines.vllm import images
from agentrl.engines.vllm.flags import command, environment
from agentrl.http.client import Http, quietly
from agentrl.trajectory.medium import Media

if TYPE_CHECKING:
    import torch

    from agentrl.engines.servers.weights.bucket import Bucket

OLDEST = (0, 22)
SEED_FACTOR = 1_000_003
TOKENS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
"""Completions as token ids: the server needs no tokenizer."""
FIGURE = r"^vllm:{}(?:{{.*}})? (\S+)$"
FIGURES = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv_used": "kv_cache_usage_perc",
    "prompt_tokens": "prefix_cache_queries_total",
    "reused_tokens": "prefix_cache_hits_total",
}
"""Ours -> vLLM's, of `/metrics`."""

HINTS = {
    "No module named 'vllm'": "`agentrl engine install vllm` makes an environment for it",
    "No module named 'ray'": "install ray beside this version of vLLM: its weight transfer needs it",
    "No module named 'flash_attn.ops'": "flash-attn-4 beside vLLM hides what vLLM looks for: `agentrl engine install "
    "vllm` makes an environment without it",
    "torchvision::nms": "uninstall torchvision, torchaudio and torchcodec beside it: they are builds for CUDA",
    "No module named 'torchvision'": "vision models need it: run `agentrl engine install vllm` again",
    "unrecognized arguments: --enable-scale-out": "this vLLM takes no images (0.32 does); use sglang or hf",
    "out of memory": "lower rollout.gpu_memory_utilization: the trainer shares the GPU",
    "is less than desired GPU memory utilization": "lower rollout.gpu_memory_utilization: the trainer shares the GPU",
    "larger than the maximum number of tokens that can be stored in KV cache": "lower rollout.max_model_len",
    "KV cache is needed": "raise rollout.gpu_memory_utilization (on a CPU VLLM_CPU_KVCACHE_SPACE, in GiB), or lower "
    "rollout.max_model_len",
    "unrecognized arguments: --enable-return-routed-experts": "this version returns no experts: take a newer one, or "
    "set actor.router_replay.mode=R2",
    "unrecognized arguments": "rollout.engine_kwargs.vllm holds a flag that this version does not have",
}


@engine("vllm")
class VLLM(ServerBackend):
    """`ServerBackend` of vLLM 0.22 and later."""

    name = "vllm"
    hints = HINTS

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self._models: dict[str, str] = {}
        """Server -> its name of the base."""
        self._paths: dict[str, set[str]] = {}
        """Server -> the paths of its calls."""
        self._image_servers: set[str] = set()
        """Servers that take images."""

    def command(self, port: int) -> list[str]:
        return command(self.settings, port)

    def environment(self) -> dict[str, str]:
        return environment(self.settings)

    async def greet(self, http: Http) -> None:
        version = str((await http.get("/version", timeout=CONTROL_SECONDS))["version"])
        self.require_version(http.url, "vLLM", version, OLDEST)
        models = await http.get("/v1/models", timeout=CONTROL_SECONDS)
        self._models[http.url] = models["data"][0]["id"]
        api = await http.get("/openapi.json", timeout=CONTROL_SECONDS)
        self._paths[http.url] = set(api["paths"])
        self._image_servers |= {http.url} if images.takes_images(api) else set()
        if "/start_weight_update" in self._paths[http.url] and not self.adapted:
            await http.post("/init_weight_transfer_engine", {"init_info": self._packed(http)}, timeout=CONTROL_SECONDS)

    async def generate(
        self, http: Http, rid: str, ids: Sequence[int], sampling: Sampling, timeout: float | None, media: Media = ()
    ) -> ServerAnswer:
        model = self.adapter(sampling.adapter) or self._models[http.url]
        body, drawing = {"model": model, "request_id": rid}, parameters(sampling, len(ids))
        if media:
            if http.url not in self._image_servers:
                raise UserError(f"{http.url} takes no images: start vLLM (0.32) with --enable-scale-out, or use sglang")
            answer = await http.post(images.PATH, body | images.question(ids, media, drawing), timeout=timeout)
            return images.read(answer, ids, sampling.candidates)
        answer = await http.post("/v1/completions", body | {"prompt": ids} | drawing | TOKENS, timeout=timeout)
        choice = answer["choices"][0]
        reported = choice["logprobs"] or {}
        logprobs = [min(logprob, 0.0) for logprob in reported.get("token_logprobs") or []]
        likeliest = (reported.get("top_logprobs") or [{}])[0] if sampling.candidates else {}
        candidates = tuple((int(name.removeprefix("token_id:")), min(p, 0.0)) for name, p in likeliest.items())
        reason, experts = as_finish_reason(choice.get("finish_reason")), choice.get("routed_experts")
        saved = None if experts is None else saved_experts(experts)
        return ServerAnswer(choice["token_ids"] or [], logprobs, reason, candidates, saved)

    async def score(
        self, http: Http, ids: Sequence[int], media: Media, first: int, k: int, timeout: float | None, adapter: str = ""
    ) -> ServerScores:
        if media:
            raise UserError("a teacher on vLLM reads no images; set its engine to sglang")
        model = adapter or self._models[http.url]
        body = {"model": model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": k}
        answer = await http.post("/v1/completions", body, timeout=timeout)
        return await asyncio.to_thread(scores_of, answer["choices"][0]["prompt_logprobs"][first:], ids[first:], k)

    async def abort(self, http: Http, rids: Sequence[str]) -> None:
        if "/abort_requests" in self._paths[http.url]:
            names = [f"cmpl-{rid}-0" for rid in rids]
            if http.url in self._image_servers:
                names += [f"generate-tokens-{rid}" for rid in rids]
            await quietly(http.post("/abort_requests", {"request_ids": names}, timeout=CONTROL_SECONDS))
            return
        # Older versions can only end all requests; the others are then sent again and continue.
        await quietly(http.post("/pause?mode=abort&clear_cache=false", {}, timeout=CONTROL_SECONDS))
        await quietly(http.post("/resume", {}, timeout=CONTROL_SECONDS))

    async def load(self, http: Http) -> dict[str, float]:
        text = await http.get("/metrics", timeout=CONTROL_SECONDS)
        return {name: sum(_values(text, theirs)) for name, theirs in FIGURES.items()} | {
            "kv_room": float(len(_values(text, FIGURES["kv_used"])))  # each engine reports a share
        }

    async def sleep(self, http: Http) -> None:
        await http.post(f"/sleep?level={1 if self.adapted else 2}", {}, timeout=CONTROL_SECONDS)

    async def wake(self, http: Http, what: str) -> None:
        await http.post(f"/wake_up?tags={what}", {}, timeout=CONTROL_SECONDS)

    async def begin_update(self, http: Http) -> None:
        if self.adapted and "/v1/load_lora_adapter" not in self._paths[http.url]:
            raise UserError(
                f"{http.url} takes no adapters: start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or "
                "set model.lora_merge=true"
            )
        if self.adapted:
            return
        if "/start_weight_update" not in self._paths[http.url]:
            raise UserError(f"{http.url} takes no weights: start it with VLLM_SERVER_DEV_MODE=1, see docs/engines.md")
        await http.post("/start_weight_update", {"is_checkpoint_format": True}, timeout=CONTROL_SECONDS)

    async def end_update(self, http: Http, version: int) -> None:
        if not self.adapted:
            await http.post("/finish_weight_update", {"weight_version": str(version)}, timeout=CONTROL_SECONDS)
            await self._call(http, "agentrl_repack")
        await empty_cache(http, "/reset_prefix_cache")
        if http.url in self._image_servers:
            await http.post("/reset_encoder_cache", {}, timeout=CONTROL_SECONDS)

    async def load_files(self, http: Http, folder: Path) -> None:
        await self._call(http, "agentrl_load_files", str(folder))

    async def load_adapter(self, http: Http, folder: Path, name: str = ADAPTER) -> None:
        body = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
        await http.post("/v1/load_lora_adapter", body, timeout=CONTROL_SECONDS)

    async def unload_adapter(self, http: Http, name: str) -> None:
        await http.post("/v1/unload_lora_adapter", {"lora_name": name}, timeout=CONTROL_SECONDS)

    async def load_ipc(self, http: Http, bucket: "Bucket") -> None:
        copies = [packed(copy) for copy in bucket.copies(self.tensor_parallel)]
        _, sizes = copies[0]
        body = {
            "names": [entry.name for entry in bucket.entries],
            "dtype_names": [_name(entry.dtype) for entry in bucket.entries],
            "shapes": [list(entry.shape) for entry in bucket.entries],
            "tensor_sizes": sizes,
            "ipc_handles_pickled": handles([flat for flat, _ in copies]),
        }
        always = {} if self._packed(http) else {"packed": True}
        await http.post("/update_weights", {"update_info": body | always}, timeout=CONTROL_SECONDS)

    async def join(self, http: Http, group: BroadcastGroup, rank: int) -> None:
        about = {"address": group.address, "port": group.port, "first": rank, "size": group.world_size}
        await self._call(http, "agentrl_join", json.dumps(about | {"name": group.name, "backend": group.backend}))

    async def receive(self, http: Http, group: BroadcastGroup, bucket: "Bucket") -> None:
        entries = [[e.name, _name(e.dtype), list(e.shape), e.start, e.end] for e in bucket.entries]
        await self._call(http, "agentrl_receive", group.name, str(bucket.flat.numel()), json.dumps(entries))

    def _packed(self, http: Http) -> dict[str, bool]:
        """The flag that newer versions take once, and older ones with each bucket."""
        return {"packed": True} if "/shutdown_weight_transfer_engine" in self._paths[http.url] else {}

    async def _call(self, http: Http, method: str, *args: str) -> None:
        """Run a method of agentrl's extension in every worker."""
        await http.post("/collective_rpc", {"method": method, "args": args}, timeout=CONTROL_SECONDS)


def parameters(sampling: Sampling, prompt: int) -> dict[str, Any]:
    """vLLM's sampling parameters of a request whose prompt is `prompt` tokens long."""
    chosen = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": max(sampling.top_k, 0),
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        # A request that continues after a pause restarts its generator: the prompt's length gives it other numbers.
        "seed": None if sampling.seed is None else (sampling.seed * SEED_FACTOR + prompt) % 2**63,
        "ignore_eos": True,
        "stop_token_ids": [] if sampling.ignore_eos else list(sampling.stop_token_ids),
        "logprobs": sampling.candidates,  # besides that of the drawn token
        "routed_experts_prompt_start": sampling.experts_from,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def scores_of(found: Sequence[Any], ids: Sequence[int], k: int) -> ServerScores:
    """vLLM's log-probs of a prompt: for each token a mapping of the likeliest ones and itself, by their ids."""
    rows = [
        sorted((one["rank"], one["logprob"], int(token), one.get("decoded_token")) for token, one in row.items())
        for row in found
    ]
    given = [next(entry[1:] for entry in row if entry[2] == token) for row, token in zip(rows, ids, strict=True)]
    return given, [[entry[1:] for entry in row[:k]] for row in rows] if k else ()


def packed(bucket: "Bucket") -> tuple["torch.Tensor", list[int]]:
    """A bucket's bytes without gaps, and the size of each tensor, by which vLLM splits them."""
    sizes = [entry.end - entry.start for entry in bucket.entries]
    if sum(sizes) == bucket.flat.numel():
        return bucket.flat, sizes
    import torch

    return torch.cat([bucket.flat[entry.start : entry.end] for entry in bucket.entries]), sizes


def handles(flats: Sequence["torch.Tensor"]) -> str:
    """Handles of GPU memory in vLLM's form: by the GPU's UUID, pickled, in base64."""
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    named = {str(torch.cuda.get_device_properties(flat.device).uuid): reduce_tensor(flat)[1] for flat in flats}
    return base64.b64encode(pickle.dumps(named)).decode()


def _values(metrics: str, name: str) -> list[float]:
    """A Prometheus figure of each engine behind a server."""
    return [float(value) for value in re.findall(FIGURE.format(name), metrics, re.MULTILINE)]


def _name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")
