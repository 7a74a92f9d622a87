"""GET /health: isolation, languages and load."""

from typing import Any

from agentrl_sandbox import __version__
from agentrl_sandbox.server.service import Service


async def health(service: Service) -> dict[str, Any]:
    """The whole report, as JSON."""
    languages = await service.find_languages()
    return {
        "status": "ok",
        "server": "agentrl",
        "version": __version__,
        "isolation": service.pool.isolation,
        "memory": service.pool.memory(),
        "probes": [probe_report(probe) for probe in service.pool.report],
        "languages": {
            "available": sorted(name for name, why in languages.items() if not why),
            "missing": {name: why for name, why in languages.items() if why},
        },
        "load": service.pool.stats() | {"pending_bytes": service.pending_bytes},
    }


def probe_report(probe: Any) -> dict[str, Any]:
    """A tier that was tried."""
    return {key: getattr(probe, key) for key in ("tier", "ok", "why", "fix") if hasattr(probe, key)}
