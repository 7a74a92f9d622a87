"""One run at a time writes to a folder, and a kill frees it."""

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from agentrl.config.schema import Config, Trainer
from agentrl.core.errors import UserError
from agentrl.training.checkpoint.run_lock import LOCK, locked
from agentrl.training.checkpoint.run_start import supervise
from tests.warm import Process

pytestmark = pytest.mark.integration


def hold(folder: Path) -> None:
    with locked(folder, "trainer.default_local_dir"):
        if os.fork() == 0:  # a child that outlives its parent does not keep the lock
            time.sleep(60)
            os._exit(0)
        print("locked", flush=True)
        time.sleep(60)


@pytest.mark.prevents("two experiments use one folder: at once, one after the other, or with another model")
def test_a_second_run_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    holder = Process(hold, tmp_path, start_new_session=True)
    try:
        holder.wait_for(lines=1)
        with pytest.raises(UserError) as caught, locked(tmp_path, "trainer.output_dir"):
            pass
        message = str(caught.value)
        assert message.startswith(f"{tmp_path} is in use by another run (process {holder.pid} on {os.uname().nodename}")
        assert message.endswith("give this run trainer.output_dir=FOLDER")
        config = Config(trainer=Trainer(default_local_dir=str(tmp_path)))
        with pytest.raises(UserError, match=f"process {holder.pid} on .* run trainer.default_local_dir=FOLDER"):
            supervise(lambda _: None, config, "trainer.default_local_dir")
        holder.kill()
        with locked(tmp_path, "trainer.output_dir"):
            assert f"process {os.getpid()} on" in (tmp_path / LOCK).read_text()
    finally:
        os.killpg(holder.pid, 9)


def try_to_lock(folder: Path) -> None:
    try:
        locked(folder, "trainer.output_dir").__enter__()
    except UserError as error:
        print(error, flush=True)


def test_a_process_has_one_run_in_a_folder(tmp_path: Path) -> None:
    """A record lock would let the second one in, and would be lost when it ends."""
    with locked(tmp_path, "trainer.output_dir"):
        with pytest.raises(UserError, match="this very process"), locked(tmp_path / "x" / "..", "trainer.output_dir"):
            pass
        other = Process(try_to_lock, tmp_path)
        other.wait()
        assert "is in use by another run" in other.said()[0]
    with locked(tmp_path, "trainer.output_dir"):
        pass


def test_a_file_system_without_locks_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with locked(tmp_path, "trainer.default_local_dir"):
        assert "cannot be locked (No locks available)" in caplog.text


def test_a_run_is_not_written_to_a_url() -> None:
    config = Config(trainer=Trainer(default_local_dir="s3://bucket/run"))
    with pytest.raises(UserError, match=r"trainer\.default_hdfs_dir=s3://bucket/run gets copies"):
        supervise(lambda _: None, config, "trainer.default_local_dir")


@pytest.mark.prevents("a run takes steps for hours, and then cannot write its first checkpoint")
def test_a_checkpoint_folder_that_cannot_be_written_is_found_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    config = Config(trainer=Trainer(default_local_dir=str(tmp_path)))
    with pytest.raises(UserError, match=r"default_local_dir: .*checkpoints cannot be written: it is a file; name"):
        supervise(lambda _: pytest.fail("it ran"), config, "trainer.default_local_dir")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    key = "trainer.default_local_dir"
    with pytest.raises(UserError, match=f"{key}=.*file/run: nothing can be written there"):
        locked(tmp_path / "file" / "run", key).__enter__()


def test_a_run_that_is_refused_leaves_no_folder_behind(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    with pytest.raises(UserError, match="refused"), locked(run_dir, "trainer.default_local_dir"):
        raise UserError("refused")
    assert list(tmp_path.iterdir()) == []
    run_dir.mkdir(parents=True)
    with locked(run_dir, "trainer.default_local_dir"):
        (run_dir / "metrics.jsonl").touch()
    assert (run_dir / LOCK).exists()
