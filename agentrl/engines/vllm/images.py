"""Requests with images: vLLM's call for token ids, which a server started with --enable-scale-out has.

The server expands the images' placeholders itself and returns the tokens that it read; they are compared with the
request's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.core.errors import UserError
from agentrl.engines.experts import saved_experts
from agentrl.engines.servers.backend import ServerAnswer, as_finish_reason
from agentrl.trajectory.medium import Medium, collapsed

PATH = "/inference/v1/generate"


def takes_images(api: Mapping[str, Any]) -> bool:
    """Whether a server of this description has the call, and takes images there."""
    schemas = api.get("components", {}).get("schemas", {})
    return PATH in api["paths"] and "content_parts" in schemas.get("GenerateRequest", {}).get("properties", {})


def question(ids: Sequence[int], media: Sequence[Medium], drawing: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request; `drawing`: vLLM's sampling parameters. Raises UserError for videos."""
    if any(medium.kind != "image" for medium in media):
        raise UserError("rollout.name=vllm gets no videos: it would choose and size their frames itself; use hf")
    return {
        "token_ids": collapsed(ids, media),
        "content_parts": [{"type": "image_url", "url": medium.data_url()} for medium in media],
        "sampling_params": {**drawing, "detokenize": False},
        "return_token_ids": True,
    }


def read(answer: Mapping[str, Any], ids: Sequence[int], candidates: int) -> ServerAnswer:
    """The tokens drawn after `ids`. Raises UserError when the server read another prompt."""
    prompt = answer.get("prompt_token_ids")
    if prompt != list(ids):
        count = "unknown" if prompt is None else len(prompt)
        raise UserError(
            f"vLLM read other tokens than it was sent ({count} of {len(ids)}): it sizes images otherwise, or cannot "
            "place them among these tokens; set rollout.name=sglang or hf"
        )
    choice = answer["choices"][0]
    drawn = (choice.get("logprobs") or {}).get("content") or []
    likeliest = drawn[0]["top_logprobs"] if drawn and candidates else []
    return ServerAnswer(
        [entry["token_id"] for entry in drawn],
        [min(entry["logprob"], 0.0) for entry in drawn],
        as_finish_reason(choice.get("finish_reason")),
        tuple((entry["token_id"], min(entry["logprob"], 0.0)) for entry in likeliest),
        None if choice.get("routed_experts") is None else saved_experts(choice["routed_experts"]),
    )
