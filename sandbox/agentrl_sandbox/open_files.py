"""The limit on open files of this process."""

import resource

MOST = 1 << 16


def allow_open_files() -> None:
    """Raise the limit as far as the system allows, `MOST` at most: each connection takes one, and 1,024 is usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
