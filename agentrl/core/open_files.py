"""How many files this process may hold open."""

import resource

MANY = 1 << 16


def allow_files() -> None:
    """As many as the system lets us have, up to `MANY`: each connection takes one, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY if hard == resource.RLIM_INFINITY else min(hard, MANY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
