"""Loggers to services outside: one small file each, imported when `trainer.logger` names it."""

from importlib import import_module

from agentrl.tracking.services.service import RunInfo, Service

SERVICES = {"wandb": "Wandb", "mlflow": "Mlflow", "swanlab": "Swanlab", "trackio": "Trackio"}
"""Name in `trainer.logger` (and of the module in here) -> class."""

__all__ = ["SERVICES", "RunInfo", "Service", "open_service"]


def open_service(name: str, info: RunInfo) -> Service:
    """Begin or continue the run at the service. Raises UserError if it is not installed or refuses."""
    service: type[Service] = getattr(import_module(f"agentrl.tracking.services.{name}"), SERVICES[name])
    return service(name, info)
