"""Processes of isolated functions."""

import time
from pathlib import Path

import pytest

from agentrl.core.isolated import IsolatedFunction

HOLDS = """
import re, threading, time

def count(text, hold):
    if hold:
        threading.Thread(target=lambda: (time.sleep(0.3), re.match("(a+)+$", "a" * 60 + "b")), daemon=True).start()
    return len(text)
"""


@pytest.mark.integration
def test_a_process_that_reads_nothing_is_late(tmp_path: Path) -> None:
    """A thread that an earlier call left holds the interpreter, and the message is larger than a pipe."""
    (tmp_path / "holds.py").write_text(HOLDS)
    function = IsolatedFunction(str(tmp_path / "holds.py"), "count", timeout=60.0)
    assert function(text="a", hold=True) == 1
    time.sleep(0.6)
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="no answer within 2 s"):
        function(timeout=2.0, text="a" * 2_000_000, hold=False)
    assert time.monotonic() - begin < 30
    assert function(text="ab", hold=False) == 2
    function.close()
