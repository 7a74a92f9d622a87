"""A model behind an address that speaks OpenAI's chat completions."""

import asyncio
import logging
import os
from typing import Any

from agentrl.core.clocks import uncounted
from agentrl.core.errors import InfraError
from agentrl.http.client import Http, RequestRefused, ServerLost

log = logging.getLogger(__name__)

BUSY = (429, 500, 503, 529)
OPTIONAL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens")
"""Settings of a request that not every model takes."""
LONGEST_WAIT = 30.0  # seconds before a request is sent again


class ChatModel:
    """Asks the model `name`. A busy or absent server is asked `retries` times more."""

    def __init__(self, url: str, name: str, key_env: str, retries: int) -> None:
        """`url` ends in /v1 or in /chat/completions. The environment variable `key_env` holds the key, if one is
        needed. Raises UserError for an address that is none."""
        key = os.environ.get(key_env)
        headers = f"Authorization: Bearer {key}\r\n" if key else ""
        self.http = Http(url.rstrip("/").removesuffix("/chat/completions"), headers=headers)
        self.name, self.retries = name, retries
        self._refused = set[str]()

    async def complete(self, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The first choice, which has a `message`; `timeout`: seconds of a request. Raises InfraError."""
        for attempt in range(self.retries + 1):
            try:
                answer = await self._post(body, timeout)
                break
            except (ServerLost, RequestRefused) as error:
                busy = isinstance(error, ServerLost) or error.status in BUSY
                if not busy or attempt == self.retries:
                    raise
            with uncounted():
                await asyncio.sleep(min(2.0**attempt, LONGEST_WAIT))
        match answer:
            case {"choices": [{"message": dict()} as choice, *_]}:
                return dict(choice)
        raise InfraError(f"{self.http.url} answers no chat completion: {str(answer)[:200]}")

    async def _post(self, body: dict[str, Any], timeout: float) -> Any:
        """The answer, without the settings that the server refuses by name. Raises ServerLost, RequestRefused."""
        sent = {name: value for name, value in body.items() if name not in self._refused}
        try:
            return await self.http.post("/chat/completions", {"model": self.name, **sent}, timeout=timeout)
        except RequestRefused as error:
            named = {name for name in OPTIONAL if name in sent and name in str(error)}
            if error.status not in (400, 422) or not named:
                raise
            if named - self._refused:
                log.warning("%s; further requests leave out %s", error, ", ".join(named))
            self._refused |= named
            return await self._post(body, timeout)
