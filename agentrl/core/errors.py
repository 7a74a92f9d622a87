"""The two errors that callers distinguish.

Any other error is a bug in agentrl and shows its traceback.
"""


class OneLineError(Exception):
    """An error whose message says all that a person needs."""

    details: tuple[str, ...] = ()
    """Lines that the command line shows first: the last output of another program."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython and notebooks show in place of a traceback."""
        return [*self.details, f"{type(self).__name__}: {self}"]


class UserError(OneLineError):
    """Wrong input. The message is one line: what is wrong, then how to fix it.

    The command line prints it without a traceback and exits with code 2.
    """


class InfraError(OneLineError):
    """A tool, sandbox or engine failed through no fault of the model.

    The trajectory it hits is masked or sampled again, never scored 0.
    """
