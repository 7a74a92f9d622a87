"""The names that the protocols give to the reasons for which a request is refused."""

from typing import NamedTuple

INVALID = "invalid_request_error"


class Fault(NamedTuple):
    """HTTP status, OpenAI's code, Anthropic's type and Google's status."""

    status: int
    code: str | None
    kind: str
    name: str


FAULTS = {
    "invalid": Fault(400, None, INVALID, "INVALID_ARGUMENT"),
    "context": Fault(400, "context_length_exceeded", INVALID, "INVALID_ARGUMENT"),
    "lost": Fault(400, "previous_response_not_found", "not_found_error", "INVALID_ARGUMENT"),
    "key": Fault(401, "invalid_api_key", "authentication_error", "UNAUTHENTICATED"),
    "missing": Fault(404, "not_found", "not_found_error", "NOT_FOUND"),
    "slow": Fault(408, None, INVALID, "DEADLINE_EXCEEDED"),
    "large": Fault(413, "too_large", "request_too_large", "INVALID_ARGUMENT"),
    "busy": Fault(429, "rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED"),
    "internal": Fault(500, None, "api_error", "INTERNAL"),
    "overloaded": Fault(503, None, "overloaded_error", "UNAVAILABLE"),
}
STATUS = {name: fault.status for name, fault in FAULTS.items()}
"""HTTP status of each fault."""
