"""The `server_manager` of agent loops written for verl: it draws tokens, and remembers each that it drew."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.core.errors import UserError
from agentrl.engines.engine import Sampling
from agentrl.rollout.episode import recorded, seed_for
from agentrl.rollout.loops.base import RolloutContext
from agentrl.trajectory.medium import Medium, media_of
from agentrl.trajectory.trajectory import Trajectory
from agentrl_verl.agent_loop import TokenOutput
from agentrl_verl.hf_tokenizers import normalize_token_ids

TAKEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos")
ABSENT = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "n": 1}
"""Wishes that engines here cannot fulfil, and the value that asks for nothing."""


@dataclass(frozen=True)
class Drawn:
    """One request: what it went on from, and what came."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    versions: list[int]


class ServerManager:
    """One conversation's way to the engine."""

    def __init__(self, env: RolloutContext, trajectory: Trajectory, sampling: Sampling) -> None:
        self.env, self.trajectory, self.sampling = env, trajectory, sampling
        self.drawn: list[Drawn] = []

    @property
    def wishes(self) -> dict[str, Any]:
        """`sampling_params` as a loop is given them."""
        sampling = self.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "repetition_penalty": sampling.repetition_penalty,
            "logprobs": True,
        }

    async def generate(
        self,
        request_id: str = "",
        *,
        prompt_ids: Any,
        sampling_params: Mapping[str, Any],
        image_data: Sequence[Any] | None = None,
        video_data: Sequence[Any] | None = None,
        **_: Any,
    ) -> TokenOutput:
        """Continue `prompt_ids`. Raises InfraError, and UserError for wishes that engines here cannot fulfil."""
        prompt = normalize_token_ids(prompt_ids)
        sampling = self._sampling(sampling_params, len(prompt))
        if sampling.max_new_tokens <= 0:
            return TokenOutput([], [], stop_reason="completed")
        drawn = await self._draw(prompt, sampling, media_for(self.env, image_data, video_data))
        stops = sampling_params.get("stop") or []
        keep = kept([stops] if isinstance(stops, str) else stops, drawn.ids, self.env.chat.decode)
        drawn = Drawn(prompt, drawn.ids[:keep], drawn.logprobs[:keep], drawn.versions[:keep])
        self.drawn.append(drawn)
        return TokenOutput(drawn.ids, list(drawn.logprobs), stop_reason="completed")

    async def _draw(self, prompt: list[int], sampling: Sampling, media: Sequence[Medium]) -> Drawn:
        """All that one request asks for, though weights may change in between."""
        env, ids, logprobs, versions = self.env, [], [], []  # type: ignore[var-annotated]
        finish = "abort"
        with recorded(self.trajectory, "generate"):
            while finish == "abort" and len(ids) < sampling.max_new_tokens:
                seed = seed_for(self.sampling.seed, self.trajectory.key, len(self.drawn), len(ids))
                asked = replace(sampling, seed=seed, max_new_tokens=sampling.max_new_tokens - len(ids))
                made = await env.engine.generate(prompt + ids, asked, key=self.trajectory.key, media=media)
                finish = made.finish_reason
                ids += made.token_ids
                logprobs += made.logprobs
                versions += made.versions or [made.weight_version] * len(made.token_ids)
        return Drawn(prompt, ids, logprobs, versions)

    def _sampling(self, wishes: Mapping[str, Any], prompt: int) -> Sampling:
        for name, nothing in ABSENT.items():
            if wishes.get(name) not in (None, nothing):
                raise UserError(
                    f"an agent loop asks for {name}={wishes[name]}, which no engine here has; take it out of its "
                    "sampling_params"
                )
        limits = self.env.limits
        room = min(limits.response_length, limits.model_length - prompt)
        wanted = wishes.get("max_tokens") or wishes.get("max_new_tokens") or room
        stops = (*self.env.chat.stop_token_ids, *(wishes.get("stop_token_ids") or ()))
        taken = {name: wishes[name] for name in TAKEN if wishes.get(name) is not None}
        taken["top_k"] = max(0, taken.get("top_k", 0))
        return replace(self.sampling, max_new_tokens=min(wanted, room), stop_token_ids=stops, candidates=0, **taken)


def kept(stops: Sequence[str], ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """How many of `ids` there are up to the one that completes the first of the `stops`."""
    if not any(stop in decode(ids) for stop in stops):
        return len(ids)
    low, high = 0, len(ids)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if any(stop in decode(ids[:middle]) for stop in stops) else (middle, high)
    return high


def media_for(env: RolloutContext, images: Sequence[Any] | None, videos: Sequence[Any] | None) -> list[Medium]:
    """Images and videos as an engine takes them."""
    parts = [{"type": "image", "image": image} for image in images or ()]
    parts += [{"type": "video", "video": video} for video in videos or ()]
    return media_of(env.chat.see([{"role": "user", "content": parts}])) if parts else []
