"""A stand-in for SGLang's and vLLM's servers that samples from a model and its adapters with plain peft.

Each keeps what it read when an adapter was loaded: files that change afterwards change nothing.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from aiohttp import web
from peft import PeftModel
from transformers import AutoModelForCausalLM

Json = dict[str, Any]


class AdapterServer:
    """Answers in both protocols."""

    def __init__(self, base: str) -> None:
        self.base, self.model = base, AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        self.asked: list[str] = []
        """The adapter of each request for tokens."""
        self.loads: list[str] = []
        self.aborted: set[str] = set()
        self.interrupted = 0
        """Requests that an abort has ended after some tokens."""

    def load(self, name: str, folder: str) -> None:
        """Read an adapter, in place of the one of its name."""
        self.loads.append(name)
        if not isinstance(self.model, PeftModel):
            self.model = PeftModel.from_pretrained(self.model, folder, adapter_name=name).eval()
            return
        if name in self.model.peft_config:
            self.model.delete_adapter(name)
        self.model.load_adapter(folder, name)

    async def draw(self, rid: str, ids: list[int], name: str, most: int, asked: Json) -> tuple[list[int], Any, str]:
        """Tokens, their log-probs, and why they end."""
        self.asked.append(name)
        random = torch.Generator().manual_seed((asked.get("sampling_seed") or asked.get("seed") or 0) % 2**63)
        tokens, logprobs = list[int](), list[float]()
        while len(tokens) < most:
            await asyncio.sleep(0)
            if rid in self.aborted:
                self.interrupted += bool(tokens)
                return tokens, logprobs, "abort"
            row = self._next(name, [*ids, *tokens]).log_softmax(-1)
            tokens.append(int(torch.multinomial(row.exp(), 1, generator=random)))
            logprobs.append(float(row[tokens[-1]]))
            if tokens[-1] in (asked.get("stop_token_ids") or ()):
                return tokens, logprobs, "stop"
        return tokens, logprobs, "length"

    @torch.no_grad()
    def _next(self, name: str, ids: list[int]) -> torch.Tensor:
        self.model.set_adapter(name)
        return self.model(torch.tensor([ids])).logits[0, -1]

    async def sglang(self, body: Json) -> Json:
        asked = body["sampling_params"]
        drawn = await self.draw(body["rid"], body["input_ids"], body["lora_path"], asked["max_new_tokens"], asked)
        entries = [[logprob, token, None] for token, logprob in zip(*drawn[:2], strict=True)]
        return {"meta_info": {"output_token_logprobs": entries, "finish_reason": {"type": drawn[2]}}}

    async def vllm(self, body: Json) -> Json:
        rid = f"cmpl-{body['request_id']}-0"
        tokens, logprobs, why = await self.draw(rid, body["prompt"], body["model"], body["max_tokens"], body)
        choice = {"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}, "finish_reason": why}
        return {"choices": [choice]}

    async def call(self, request: web.Request) -> web.Response:
        """All calls of both."""
        body = await request.json() if request.can_read_body else {}
        match request.path:
            case "/generate":
                return web.json_response(await self.sglang(body))
            case "/v1/completions":
                return web.json_response(await self.vllm(body))
            case "/load_lora_adapter" | "/v1/load_lora_adapter":
                self.load(body["lora_name"], body["lora_path"])
            case "/unload_lora_adapter":
                return web.json_response({"success": False})  # `load` replaces it
            case "/abort_request" | "/abort_requests":
                self.aborted |= {body.get("rid"), *body.get("request_ids", ())}
            case "/metrics":
                return web.Response(text="")
        paths = {"/v1/load_lora_adapter": {}, "/abort_requests": {}}
        known = {"success": True, "version": "0.32.0", "enable_lora": True, "paths": paths, "loads": []}
        return web.json_response(known | {"data": [{"id": self.base}]})


@contextmanager
def serving(base: str) -> Iterator[tuple[str, AdapterServer]]:
    """(URL, server) while the body runs."""
    server, loop, url = AdapterServer(base), asyncio.new_event_loop(), list[str]()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.call)
    runner, ready = web.AppRunner(app, shutdown_timeout=0.1), threading.Event()

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")
        ready.set()

    loop.create_task(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    ready.wait(10)
    try:
        yield url[0], server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
