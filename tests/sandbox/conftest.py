"""One pool for a module's tests; only what needs a pool of its own starts one."""

from collections.abc import AsyncIterator

import pytest_asyncio

from agentrl_sandbox.pool import Pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Pool]:
    """The tier that this host gives, two places."""
    pool = Pool(slots=2)
    await pool.start()
    yield pool
    await pool.close()
