"""The two errors that callers tell apart.

Everything else that escapes is a bug in agentrl and shows its traceback.
"""


class UserError(Exception):
    """What the person asked for cannot be done; the message is one line: culprit, then mend.

    The command line prints it without a traceback and exits with code 2.
    """

    details: tuple[str, ...] = ()
    """Lines that the command line shows before it: what another program said last."""


class InfraError(Exception):
    """A tool, sandbox or engine failed through no fault of the model.

    The trajectory it hits is masked or sampled again, never scored 0.
    """
