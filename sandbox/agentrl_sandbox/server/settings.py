"""Settings of a server."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """The options of `agentrl sandbox serve`."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: a free one."""
    token: str | None = None
    """Clients have to send it as `Authorization: Bearer TOKEN`."""
    public: bool = False
    """Other machines may be served without a token."""
    patience: float = 8.0
    """Seconds beyond a request's time limits after which the answer is a 504, and the job is kept for the next try:
    verl's reward code gives up ten seconds after both time limits, and retries after a 504."""
    memory_mb: int = 4096
    """MiB of memory: default and maximum of a run."""
    session_idle: float = 900.0
    """Seconds without a cell after which a session is closed."""
    max_body_mb: int = 32
    """MiB of one request."""
    max_pending_mb: int = 256
    """MiB of all requests together that wait or run."""
    body_seconds: float = 60.0
    """Seconds in which a request has to arrive."""
    grace: float = 10.0
    """Seconds that a stopping server waits for running programs."""
    log_code: bool = False
    """Log the requests, with the programs."""
