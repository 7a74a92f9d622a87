"""The two errors that callers distinguish.

Any other error is a bug in agentrl and shows its traceback.
"""


class UserError(Exception):
    """Wrong input. The message is one line: what is wrong, then how to fix it.

    The command line prints it without a traceback and exits with code 2.
    """

    details: tuple[str, ...] = ()
    """Lines that the command line shows first: the last output of another program."""


class InfraError(Exception):
    """A tool, sandbox or engine failed through no fault of the model.

    The trajectory it hits is masked or sampled again, never scored 0.
    """
