"""Serves the fakes: python -m tests.serve.program FOLDER PORT [SECONDS of each call]."""

import asyncio
import sys
from pathlib import Path

from agentrl.serve.app import serve
from agentrl.serve.service import Service
from tests.serve.fakes import FakeSamplers, FakeTrainer

if __name__ == "__main__":
    folder, port, delay = Path(sys.argv[1]), int(sys.argv[2]), float((*sys.argv, "0")[3])
    service = Service(FakeTrainer(delay), FakeSamplers(), Path("/models/of/tiny"), 32.0, (2,), folder)
    asyncio.run(serve(service, "", "127.0.0.1", port, lambda url: print(url, flush=True)))
