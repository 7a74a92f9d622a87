"""The rules by which a server of this project refuses requests: those of foreign web pages, and of hosts without a key.

Invariants:
- a page of another site can neither read an answer, also not by a name of its own that leads here (DNS rebinding), nor
  have a request carried out, since browsers send these headers only after a question that no server here answers;
- a server that other machines reach asks for a token.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

LOCAL_ENDS = (".localhost", ".local", ".internal", ".svc")
"""Names that no site on the internet can have, as those without a dot."""
KEYS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""Headers that a page cannot add to a request unless the server allows it."""


def is_loopback(host: str) -> bool:
    """Whether the address is this machine's loopback."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def refusal(method: str, headers: Mapping[str, str], *, host: str, guarded: bool) -> tuple[int, str] | None:
    """Status and reason of a request that is refused. `headers` by their lowercase names; `host`: the address that is
    served; `guarded`: each answer needs a secret."""
    named = headers.get("host", "")
    if not guarded and not _is_ours(_name(named), host):
        return 403, f"{named[:80]!r} is no name of this server: use its IP address, localhost, or serve with a token"
    if method in ("GET", "HEAD"):
        return None
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != named.lower():
        return 403, "a page of another site sent this request"
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if guarded or method != "POST" or kind.endswith("json") or any(key in headers for key in KEYS):
        return None
    return 415, f"{kind[:80] or 'no content type'}: not JSON; send it with 'Content-Type: application/json'"


def header_fields(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers of an ASGI scope for `refusal`."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_ours(name: str, host: str) -> bool:
    local = "." not in name or name.endswith(LOCAL_ENDS) or name == host.lower()
    return bool(name) and (local or _is_address(name))


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False
