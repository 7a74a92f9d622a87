"""A session with a resource server: requests that share cookies.

Invariant: each trajectory has one session, and its requests follow one another.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.environments.answers import MAX_ANSWER_BYTES, SHOWN_CHARACTERS, complaint, parsed

KEEPALIVE_SECONDS = 3.0
"""Seconds that an idle connection is kept. Servers close theirs after 5, and lose a request of that moment."""


class GymSession:
    """The requests of one trajectory."""

    def __init__(self, http: Any, url: str, timeout: float) -> None:
        self.http, self.url, self.timeout = http, url, timeout
        self._turn = asyncio.Lock()

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """Status and text of the answer. Raises InfraError for a server that fails, is gone or is late."""
        import aiohttp

        place = f"{self.url}{path}"
        try:
            async with self._turn, asyncio.timeout(self.timeout), self.http.post(place, json=body) as answer:
                status, text = answer.status, await _text_of(answer, place)
        except TimeoutError:
            raise InfraError(f"{place}: no answer within {self.timeout:g} s") from None
        except aiohttp.ClientError as error:
            raise InfraError(f"{place}: {error or type(error).__name__}") from error
        if status >= 500:
            raise InfraError(f"{place} answered {status}: {text[:SHOWN_CHARACTERS]}")
        return status, text

    async def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """An answer of JSON. Raises InfraError."""
        status, text = await self.post(path, body)
        if status == 422:
            raise InfraError(f"{self.url}{path} refuses the row: {_complaint(text)}")
        if status >= 400:
            raise InfraError(f"{self.url}{path} answered {status}: {text[:SHOWN_CHARACTERS]}")
        return parsed(text, f"{self.url}{path}")


@asynccontextmanager
async def session(url: str, timeout: float) -> AsyncIterator[GymSession]:
    """A session; `timeout`: seconds for a request."""
    import aiohttp

    kept = aiohttp.TCPConnector(keepalive_timeout=KEEPALIVE_SECONDS)
    jar, none = aiohttp.CookieJar(unsafe=True), aiohttp.ClientTimeout(None)
    async with aiohttp.ClientSession(connector=kept, cookie_jar=jar, timeout=none) as http:
        yield GymSession(http, url, timeout)


async def _text_of(answer: Any, who: str) -> str:
    """The body. Raises InfraError for one that is too large."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise InfraError(f"{who} answered more than {MAX_ANSWER_BYTES >> 20} MiB")
    return body.decode(errors="replace")


def _complaint(text: str) -> str:
    """The first error of pydantic in a few words, or the text as it is."""
    try:
        return complaint(json.loads(text)["detail"][0])
    except (ValueError, LookupError, TypeError):
        return text[:SHOWN_CHARACTERS]
