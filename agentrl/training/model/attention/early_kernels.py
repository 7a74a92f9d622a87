"""Has the attention kernel of a policy compiled by another process, while the run is imported and loads its weights.

FlashAttention 4 compiles for some fifteen seconds, in Python: in a thread, all else would wait for it. The kernels come
back by its folder of compiled ones, so a later run finds them there.

Invariant: a run depends on nothing here; what is missing is compiled where it is needed.
"""

import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from agentrl.training.model.attention import fa4_kernels

PROGRAM = "agentrl.training.model.attention.compile_kernels"
LONGEST = 120.0
"""Seconds that a run waits for it at most."""


@dataclass
class EarlyKernels:
    """The process; None: there is nothing to compile."""

    process: "subprocess.Popen[bytes] | None" = None

    def wait(self) -> None:
        """Wait until it has ended, or takes too long."""
        if self.process is None:
            return
        try:
            self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.close()

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def compile_early(heads: tuple[int, int, int] | None, capability: int) -> EarlyKernels:
    """Start the process for so many heads, heads of keys and numbers of a head (None: unknown), on a GPU of this major
    compute capability."""
    known = heads is not None and capability in fa4_kernels.GPUS
    if not known or find_spec("flash_attn") is None or not fa4_kernels.keeps_compiled():
        return EarlyKernels()
    command = [sys.executable, "-P", "-m", PROGRAM, *map(str, heads or ())]
    quiet = subprocess.DEVNULL  # the run itself says what it computes with
    return EarlyKernels(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet))
