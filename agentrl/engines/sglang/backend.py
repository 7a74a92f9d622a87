"""SGLang's native HTTP calls, of older and newer versions.

Failure modes that the code here avoids:
- an update that flushes the cache while requests wait ends the whole server: requests are interrupted first, and the
  cache is flushed by a call of its own;
- a server started with dummy weights reads dummy weights again unless the format is given;
- newer versions take tensors only between begin_weight_update and end_weight_update, older ones have no such calls;
- `/health` draws a token and waits a second for it, unless a variable turns that off.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.core.errors import InfraError, UserError
from agentrl.core.points import engine
from agentrl.engines.engine import Sampling
from agentrl.engines.experts import flat_experts
from agentrl.engines.scores import ServerScores
from agentrl.engines.servers import ServerBackend
from agentrl.engines.servers.backend import CONTROL_SECONDS, BroadcastGroup, ServerAnswer, as_finish_reason, empty_cache
from agentrl.engines.servers.settings import ADAPTER, ServerSettings
from agentrl.engines.sglang.flags import command, environment
from agentrl.http.client import Http, RequestRefused, quietly
from agentrl.trajectory.medium import Media, collapsed

if TYPE_CHECKING:
    from agentrl.engines.servers.weights.bucket import Bucket

log = logging.getLogger(__name__)

OLDEST = (0, 5, 10)

HINTS = {
    "No module named 'sglang'": "`agentrl engine install sglang` makes an environment for it",
    "FlashRL does not support": "it rounds updated weights of other families alone: set rollout.name=vllm",
    "Not enough memory": "raise rollout.gpu_memory_utilization, or lower rollout.max_model_len",
    "out of memory": "lower rollout.gpu_memory_utilization: the trainer shares the GPU",
    "unrecognized arguments: --enable-return-routed-experts": "this version returns no experts: take a newer one, or "
    "set actor.router_replay.mode=R2",
    "unrecognized arguments": "rollout.engine_kwargs.sglang holds a flag that this version does not have",
    "torch_memory_saver": "the engine lacks torch-memory-saver; or set rollout.free_cache_engine=false",
}


@engine("sglang")
class SGLang(ServerBackend):
    """`ServerBackend` of SGLang 0.5.10 and later."""

    name = "sglang"
    hints = HINTS

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self._serves_adapters: dict[str, bool] = {}
        self._brackets: dict[str, bool] = {}
        """Server -> whether updates need begin and end calls."""
        self._prompts: dict[str, list[float]] = {}
        """Server -> tokens of prompts, and those of them that it had in its cache."""

    def command(self, port: int) -> list[str]:
        return command(self.settings, port)

    def environment(self) -> dict[str, str]:
        return environment(self.settings)

    async def greet(self, http: Http) -> None:
        info = await http.get("/server_info")
        version = str(info.get("version", "unknown"))
        self.require_version(http.url, "SGLang", version, OLDEST)
        log.warning("sglang %s: %s", version, described(info))  # a warning, which is shown
        paths = (await http.get("/openapi.json"))["paths"]
        self._brackets[http.url] = "/begin_weight_update" in paths and not self.adapted
        self._serves_adapters[http.url] = bool(info.get("enable_lora"))
        if self.settings.experts and not info.get("enable_return_routed_experts"):
            raise UserError(
                f"{http.url} returns no experts: start it with --enable-return-routed-experts (newer than {version}, "
                "where that is unknown), or set actor.router_replay.mode=R2"
            )
        if "/freeze_gc" in paths:  # otherwise each full garbage collection stops all requests for about half a second
            await quietly(http.post("/freeze_gc", {}, timeout=CONTROL_SECONDS))

    async def generate(
        self, http: Http, rid: str, ids: Sequence[int], sampling: Sampling, timeout: float | None, media: Media = ()
    ) -> ServerAnswer:
        body = {"rid": rid, "input_ids": ids, "return_logprob": True, "sampling_params": parameters(sampling)}
        if adapter := self.adapter(sampling.adapter):
            body["lora_path"] = adapter
        if sampling.candidates:
            body["top_logprobs_num"] = sampling.candidates
        if sampling.experts_from is not None:
            body |= {"return_routed_experts": True, "routed_experts_start_len": sampling.experts_from}
        if media:
            body |= pictures(ids, media)
        answer = await http.post("/generate", body, timeout=timeout)
        meta = answer["meta_info"]
        if media and not _as_sent(answer, ids):
            raise UserError(
                f"{http.url} read other tokens than it was sent ({meta.get('prompt_tokens')} of {len(ids)}): it sizes "
                "images otherwise, or encodes prompts again, which SGLANG_MM_AVOID_RETOKENIZE=1 for the server forbids"
            )
        counted = self._prompts.setdefault(http.url, [0.0, 0.0])
        counted[0] += meta.get("prompt_tokens") or 0
        counted[1] += meta.get("cached_tokens") or 0
        drawn = meta.get("output_token_logprobs") or []
        experts = meta.get("routed_experts")
        if experts is not None and self.settings.experts is not None:
            experts = flat_experts(experts, *self.settings.experts[1:])
        # This list has each log-prob with its token, so the two cannot get out of step.
        ids, logprobs = [entry[1] for entry in drawn], [entry[0] for entry in drawn]
        if max(logprobs, default=0.0) > 0:  # by rounding
            logprobs = [min(value, 0.0) for value in logprobs]
        likeliest = (meta.get("output_top_logprobs") or [[]])[0]
        reason = as_finish_reason((meta.get("finish_reason") or {}).get("type"))
        candidates = tuple((entry[1], min(entry[0], 0.0)) for entry in likeliest)
        return ServerAnswer(ids, logprobs, reason, candidates, experts)

    async def score(
        self, http: Http, ids: Sequence[int], media: Media, first: int, k: int, timeout: float | None, adapter: str = ""
    ) -> ServerScores:
        body = {"input_ids": ids, "return_logprob": True, "logprob_start_len": first - 1, "top_logprobs_num": k}
        body |= {"return_text_in_logprobs": not k, "sampling_params": {"max_new_tokens": 0, "temperature": 1.0}}
        body |= {"lora_path": adapter} if adapter else {}
        answer = await http.post("/generate", body | (pictures(ids, media) if media else {}), timeout=timeout)
        meta = answer["meta_info"]
        return meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:] if k else ()

    async def abort(self, http: Http, rids: Sequence[str]) -> None:
        await asyncio.gather(*(quietly(http.post("/abort_request", {"rid": rid}, timeout=10)) for rid in rids))

    async def load(self, http: Http) -> dict[str, float]:
        loads = (await http.get("/v1/loads?include=core"))["loads"]
        prompt, reused = self._prompts.get(http.url, (0.0, 0.0))
        names = {"running": "num_running_reqs", "waiting": "num_waiting_reqs"}
        names |= {"kv_used": "num_used_tokens", "kv_room": "max_total_num_tokens"}
        figures = {name: sum(float(load.get(theirs, 0)) for load in loads) for name, theirs in names.items()}
        return figures | {"prompt_tokens": prompt, "reused_tokens": reused}

    async def sleep(self, http: Http) -> None:
        await empty_cache(http, "/flush_cache")
        tags = ["kv_cache"] if self.adapted else ["kv_cache", "weights"]
        await self._control(http, "/release_memory_occupation", {"tags": tags})

    async def wake(self, http: Http, what: str) -> None:
        if what == "weights" and self.adapted:
            return
        await self._control(http, "/resume_memory_occupation", {"tags": [what]})

    async def begin_update(self, http: Http) -> None:
        if self.adapted and not self._serves_adapters[http.url]:
            raise UserError(f"{http.url} takes no adapters: start it with --enable-lora, or set model.lora_merge=true")
        if not self._brackets[http.url]:
            return
        try:
            await self._control(http, "/begin_weight_update", {})
        except RequestRefused:  # an update that was cut short is still open there
            await self._control(http, "/end_weight_update", {})
            await self._control(http, "/begin_weight_update", {})

    async def end_update(self, http: Http, version: int) -> None:
        if self._brackets[http.url]:
            await self._control(http, "/end_weight_update", {})
        await empty_cache(http, "/flush_cache")
        await self._control(http, "/update_weight_version", {"new_version": str(version), "abort_all_requests": False})

    async def load_files(self, http: Http, folder: Path) -> None:
        body = {"model_path": str(folder), "load_format": "auto", "flush_cache": False}
        await self._control(http, "/update_weights_from_disk", body)

    async def load_adapter(self, http: Http, folder: Path, name: str = ADAPTER) -> None:
        await quietly(self.unload_adapter(http, name))  # if it has one
        await self._control(http, "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, http: Http, name: str) -> None:
        await self._control(http, "/unload_lora_adapter", {"lora_name": name})

    async def load_ipc(self, http: Http, bucket: "Bucket") -> None:
        from agentrl.engines.servers.weights.ipc import serialize

        copies = bucket.copies(self.tensor_parallel)  # a name for them, so that they live until the server has read
        await self.load_handles(http, [serialize(copy) for copy in copies])

    async def load_handles(self, http: Http, handles: Sequence[str]) -> None:
        """Copy from shared GPU memory, one handle for each worker."""
        body = {"serialized_named_tensors": list(handles), "load_format": "flattened_bucket", "flush_cache": False}
        await self._control(http, "/update_weights_from_tensor", body)

    async def join(self, http: Http, group: BroadcastGroup, rank: int) -> None:
        place = {"master_address": group.address, "master_port": group.port, "rank_offset": rank}
        body = place | {"world_size": group.world_size, "group_name": group.name, "backend": group.backend}
        await self._control(http, "/init_weights_update_group", body)

    async def receive(self, http: Http, group: BroadcastGroup, bucket: "Bucket") -> None:
        body: dict[str, Any] = {"names": [entry.name for entry in bucket.entries], "group_name": group.name}
        body["dtypes"] = [str(entry.dtype).removeprefix("torch.") for entry in bucket.entries]
        body["shapes"] = [list(entry.shape) for entry in bucket.entries]
        body |= {"load_format": "flattened_bucket", "flush_cache": False}
        await self._control(http, "/update_weights_from_distributed", body)

    async def _control(self, http: Http, path: str, body: dict[str, Any]) -> None:
        answer = await http.post(path, body, timeout=CONTROL_SECONDS)
        if isinstance(answer, dict) and answer.get("success") is False:
            raise InfraError(f"{http.url}{path}: {answer.get('message') or answer}")


def described(info: Mapping[str, Any]) -> str:
    """How a server runs, by its own account; names of older and newer versions."""
    decode = (info.get("cuda_graph_config") or {}).get("decode") or {}
    sizes = decode.get("bs") or info.get("cuda_graph_bs") or [0]
    off = decode.get("backend") == "disabled" or info.get("disable_cuda_graph")
    graphs = "no CUDA graphs" if off else f"CUDA graphs to {max(sizes)}"
    kernels = f"attention {info.get('attention_backend')}, sampling {info.get('sampling_backend')}"
    room = f"{info.get('max_running_requests')} sequences, {info.get('max_total_num_tokens')} tokens of cache"
    return f"{kernels}, {graphs}, {room}"


def parameters(sampling: Sampling) -> dict[str, Any]:
    """SGLang's sampling parameters. Without `rollout.deterministic` it ignores the seed."""
    chosen: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": sampling.ignore_eos,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "sampling_seed": sampling.seed,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def pictures(ids: Sequence[int], media: Media) -> dict[str, Any]:
    """The fields of a request with images: the server expands their placeholders itself."""
    if any(medium.kind != "image" for medium in media):
        raise UserError("rollout.name=sglang gets no videos: it would choose and size their frames itself; use hf")
    images = [medium.data_url() for medium in media]
    return {"input_ids": collapsed(ids, media), "image_data": images, "return_prompt_token_ids": True}


def _as_sent(answer: dict[str, Any], ids: Sequence[int]) -> bool:
    """Whether the server read these tokens; older servers report only their number."""
    read = answer.get("prompt_token_ids")
    return list(read) == list(ids) if read is not None else answer["meta_info"].get("prompt_tokens") == len(ids)
