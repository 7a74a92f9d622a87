"""The least that a training run needs, as overrides."""

from tests.config.conftest import ready

__all__ = ["ready"]
