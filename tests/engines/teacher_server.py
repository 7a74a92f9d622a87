"""A server that scores given tokens as SGLang does, with a model of this process or with what a test makes up."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from aiohttp import web

Body = dict[str, Any]


class TeacherServer:
    """`trouble` may raise, or answer, in place of a score."""

    def __init__(self, model: Any, text: Callable[[int], str] = lambda token: None) -> None:  # type: ignore[assignment,return-value]
        self.model, self.text = model, text
        self.asked: list[Body] = []
        self.trouble: Callable[[Body], Any] = lambda body: None
        self.url = ""

    def score(self, body: Body) -> Body:
        """What SGLang's /generate answers to a request for the log-probs of its prompt."""
        ids, start, k = body["input_ids"], body["logprob_start_len"], body["top_logprobs_num"]
        with torch.no_grad():
            logprobs = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        given, likeliest = [[None, ids[start], None]], [None]
        for place in range(start + 1, len(ids)):
            row, token = logprobs[place - 1], ids[place]
            given.append([row[token].item(), token, self.text(token)])
            best = row.topk(k) if k else None
            likeliest.append(best and [[v.item(), i.item(), None] for v, i in zip(*best, strict=True)])
        return {
            "meta_info": {"input_token_logprobs": given, "input_top_logprobs": likeliest, "prompt_tokens": len(ids)}
        }

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        answer = self.trouble(body)
        return answer if answer is not None else web.json_response(self.score(body))

    def answering(self, answer: Body) -> Callable[[web.Request], Any]:
        async def give(request: web.Request) -> web.Response:
            return web.json_response(answer)

        return give

    @contextmanager
    def serving(self) -> Iterator["TeacherServer"]:
        """Serve in a thread while the body runs."""
        loop, ready = asyncio.new_event_loop(), threading.Event()

        async def serve() -> None:
            app = web.Application(client_max_size=1 << 26)
            app.router.add_post("/generate", self.generate)
            for path, answer in (
                ("/health", {}),
                ("/server_info", {"version": "0.5.23"}),
                ("/openapi.json", {"paths": {}}),
            ):
                app.router.add_get(path, self.answering(answer))
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
            ready.set()

        def run() -> None:
            loop.run_until_complete(serve())
            loop.run_forever()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        ready.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
