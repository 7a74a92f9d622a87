"""The first Ctrl-C lets a run save, the second ends it."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from agentrl.core import stopping
from agentrl.core.stopping import Interrupted, StopRequest
from agentrl.tracking.resume_notes import how_to_resume

BY_PATH = "the same command with trainer.resume_mode=auto and without trainer.resume_from_path"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_and_the_second_raises(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()
    before = signal.getsignal(number)
    with StopRequest().catching(said.set) as stop:
        stop.check()
        os.kill(os.getpid(), number)
        assert said.wait(10)
        assert stop.requested
        with pytest.raises(Interrupted):
            stop.check()
        os.kill(os.getpid(), number)  # `timeout` sends a signal to the process and to its group
        monkeypatch.setattr(stopping, "TOGETHER", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def run(stop: StopRequest, work: Callable[[], object]) -> None:
    async def wait() -> None:
        with stop.cancelling():
            work()
            await asyncio.sleep(60)

    with asyncio.Runner() as runner:
        runner.run(wait())


def test_what_can_be_cancelled_is() -> None:
    with StopRequest().catching() as stop, pytest.raises(Interrupted):
        run(stop, lambda: os.kill(os.getpid(), signal.SIGINT))


def test_a_request_that_came_before_begins_nothing() -> None:
    def fail() -> None:
        raise AssertionError

    with StopRequest().catching() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(Interrupted):
            run(stop, fail)


def test_a_runner_goes_on_after_a_cancelled_run() -> None:
    async def one() -> int:
        return 1

    async def stopped() -> None:
        with stop.cancelling():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

    with asyncio.Runner() as runner, StopRequest().catching() as stop:
        with pytest.raises(Interrupted):
            runner.run(stopped())
        assert runner.run(one()) == 1


@pytest.mark.parametrize(
    ("start", "taken", "saved", "mode", "says"),
    [
        (0, 0, 0, "auto", "no step was finished, so nothing is lost; the same command starts over"),
        (4, 4, 4, "auto", "no step was finished, so nothing is lost; the same command resumes from step 4"),
        (0, 12, 12, "auto", "step 12 is saved; the same command resumes from step 12"),
        (0, 12, 8, "auto", "steps 9 to 12 are lost; the same command resumes from step 8"),
        (8, 9, 8, "auto", "step 9 is lost; the same command resumes from step 8"),
        (5, 7, 0, "resume_path", "steps 6 to 7 are lost; the same command starts again from step 5"),
        (0, 3, 0, "auto", "steps 1 to 3 are lost; the same command starts over"),
        (
            0, 3, 3, "disable",
            "step 3 is saved; the same command with trainer.resume_mode=auto resumes from step 3",
        ),
        (
            2, 3, 3, "resume_path",
            f"step 3 is saved; {BY_PATH} resumes from step 3",
        ),
    ],
)  # fmt: skip
def test_the_last_words_are_true(start: int, taken: int, saved: int, mode: str, says: str) -> None:
    assert how_to_resume(start, taken, saved, mode) == says
