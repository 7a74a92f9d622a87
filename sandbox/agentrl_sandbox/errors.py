"""The two errors of this package."""


class SandboxError(Exception):
    """The sandbox failed. The program is not to blame: no verdict on it follows from this."""


class UsageError(Exception):
    """The caller asked for something that cannot be done. The message is one line: the cause, then the remedy."""
