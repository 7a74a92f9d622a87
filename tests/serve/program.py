"""Serves the fakes: python -m tests.serve.program FOLDER PORT [SECONDS of each call]."""

import asyncio
import sys
from pathlib import Path

from agentrl.serve.server import serve
from agentrl.serve.service import Base
from tests.serve.fakes import FakeSamplers, FakeTrainer

if __name__ == "__main__":
    folder, port, delay = Path(sys.argv[1]), int(sys.argv[2]), float((*sys.argv, "0")[3])
    base = Base("/models/of/tiny", 512, (2,))
    asyncio.run(
        serve(
            FakeTrainer(delay), FakeSamplers(), base, folder, "127.0.0.1", port, {}, lambda url: print(url, flush=True)
        )
    )
