"""agentrl's Sandbox: the errors of the package agentrl_sandbox arrive as agentrl's own."""

import pytest

from agentrl.core.errors import InfraError, UserError
from agentrl.core.sandbox import LanguageUnavailable, Sandbox, agentrl_errors
from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.job import Busy, Job, Limits, Unavailable


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(SandboxError, InfraError), (Busy, InfraError), (Unavailable, LanguageUnavailable), (UsageError, UserError)],
)
def test_errors_keep_their_message(theirs: type[Exception], ours: type[Exception]) -> None:
    with pytest.raises(ours, match="^a reason$"), agentrl_errors():
        raise theirs("a reason")


async def test_a_server_that_is_not_there_is_an_infra_error() -> None:
    sandbox = Sandbox("http://127.0.0.1:9/run_code")
    with pytest.raises(InfraError, match="cannot be reached"):
        await sandbox.run(Job("python", "1"))
    with pytest.raises(InfraError, match="cannot be reached"):
        await sandbox.session(Limits())


async def test_a_wrong_address_is_a_user_error() -> None:
    sandbox = Sandbox("localhost:8080")
    with pytest.raises(UserError, match="http://HOST:PORT"):
        await sandbox.run(Job("python", "1"))
