"""The sandbox for solutions."""

from tests.rewards.code.conftest import runner, sandbox, verdict

__all__ = ["runner", "sandbox", "verdict"]
