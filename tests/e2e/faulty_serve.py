"""`agentrl serve`, whose rank 1 alone fails at passes that begin with some tokens: python -m tests.e2e.faulty_serve."""

import os
import sys
from typing import Any

from agentrl.cli.main import main
from agentrl.core.errors import UserError
from agentrl.serve import ranks

MISTAKE, LATE = 21, 22
"""First tokens of passes that fail: in a micro-batch, or after all collectives."""


class FaultyRank(ranks.ServeRank):
    """A rank that fails where it is number 1."""

    def _learner(self, world: int) -> Any:
        models = super()._learner(world)
        if os.environ["RANK"] == "1":
            fail_in_passes(models)
        return models


def fail_in_passes(models: Any) -> None:
    """Have passes fail as their first token says."""
    from agentrl.serve.tenant import Tenant

    forward_backward, loss = models.forward_backward, Tenant.loss
    first = 0

    def passes(model: str, data: Any, *given: Any, **named: Any) -> Any:
        nonlocal first
        computed = forward_backward(model, data, *given, **named)
        while True:
            first = int(data[0].ids[0])  # passes of other models come between
            result = next(computed)
            if first == LATE and result is not None:
                raise UserError("too late")
            yield result

    def faulty(self: Any, micro: Any, report: Any) -> Any:
        if first == MISTAKE and report.parts:  # not in the first micro-batch
            raise UserError("give 2")
        return loss(self, micro, report)

    models.forward_backward, Tenant.loss = passes, faulty


if __name__ == "__main__":
    ranks.ServeRank = FaultyRank
    sys.exit(main(["serve", *sys.argv[1:]]))
