"""A model behind an address that speaks OpenAI's chat completions."""

import asyncio
import logging
import os
from typing import Any

from agentrl.core.clocks import uncounted
from agentrl.core.errors import InfraError
from agentrl.http.client import Http, RequestRefused, ServerLost

log = logging.getLogger(__name__)

BUSY, REFUSED = (429, 500, 503, 529), (400, 422)
OPTIONAL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens")
"""Settings of a request that not every model takes."""


class ChatModel:
    """Asks the model `name`. A busy or absent server is asked `retries` times more."""

    def __init__(self, url: str, name: str, key_env: str, retries: int) -> None:
        """`url` ends in /v1 or in /chat/completions. The environment variable `key_env` holds the key, if one is
        needed. Raises UserError for an address that is none."""
        self.headers = f"Authorization: Bearer {key}\r\n" if (key := os.environ.get(key_env)) else ""
        self.http = Http(url.rstrip("/").removesuffix("/chat/completions"))
        self.name, self.retries, self._refused = name, retries, set[str]()

    async def complete(self, body: dict[str, Any], timeout: float, attempt: int = 0) -> dict[str, Any]:
        """The first choice, which has a `message`; `timeout`: seconds of a request. Raises InfraError."""
        sent = {name: value for name, value in body.items() if name not in self._refused}
        asked = {"model": self.name, **sent}
        try:
            answer = await self.http.post("/chat/completions", asked, headers=self.headers, timeout=timeout)
        except (ServerLost, RequestRefused) as error:
            status = getattr(error, "status", BUSY[0])
            named = {name for name in OPTIONAL if name in sent and name in str(error)} if status in REFUSED else set()
            if not named and (status not in BUSY or attempt == self.retries):
                raise
            if named - self._refused:
                log.warning("%s; further requests leave out %s", error, ", ".join(named))
            self._refused |= named
        else:
            return self._first_choice(answer)
        with uncounted():
            await asyncio.sleep(0.0 if named else min(2.0**attempt, 30.0))
        return await self.complete(body, timeout, attempt + (not named))

    def _first_choice(self, answer: Any) -> dict[str, Any]:
        """Raises InfraError for an answer that is no completion."""
        try:
            choice = answer["choices"][0]
            return {**choice, "message": dict(choice["message"])}
        except (KeyError, IndexError, TypeError, ValueError):
            raise InfraError(f"{self.http.url} answers no chat completion: {str(answer)[:200]}") from None
