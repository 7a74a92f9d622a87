"""Completion: what a real shell is offered."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.cli.completion import SHELLS, candidates
from agentrl.config.keys import schema_keys
from agentrl.config.presets import shipped
from agentrl.config.schema import Config

pytestmark = pytest.mark.integration

ASK = """
eval "$(agentrl completion bash)"
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete agentrl "" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What bash offers at the end of a line, with the lines in place that the command writes."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    folder = tmp_path_factory.mktemp("shell")
    (folder / "rows.parquet").touch()
    program = folder / "bin" / "agentrl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agentrl "$@"\n')
    program.chmod(0o755)
    root = Path(__file__).parents[2]
    environment = os.environ | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'sandbox'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }

    def offered(line: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", line],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return [word.strip() for word in done.stdout.splitlines() if word.strip()]

    return offered


def test_a_shell_is_offered_what_there_is(bash: Callable[[str], list[str]]) -> None:
    assert bash("agentrl tr") == ["train"]
    assert bash("agentrl train rollout.name=") == ["auto", "openai", "hf", "sglang", "vllm"]
    assert bash("agentrl train data.train_files=ro") == ["rows.parquet"]
    assert "tiny" in bash("agentrl train --config-name ")
    assert "serve" in bash("agentrl sandbox ")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_its_lines(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    from agentrl.cli.main import main

    assert main(["completion", shell]) == 0
    assert "agentrl" in capsys.readouterr().out


def offered(word: str) -> list[str]:
    return candidates(word, schema_keys(Config), shipped())


def test_keys_come_a_section_at_a_time() -> None:
    assert {"rollout.", "algorithm.", "algorithm="} <= set(offered(""))
    assert "rollout.multi_turn." in offered("rollout.")
    assert offered("rollout.na") == ["rollout.name="]


def test_a_single_section_is_opened_so_that_no_blank_follows_a_dot() -> None:
    assert not any(word.endswith(".") for word in offered("rollout.multi_tu"))
    assert "rollout.multi_turn.enable=" in offered("rollout.multi_tu")


def test_keys_as_verl_spells_them() -> None:
    assert offered("actor_rollout_ref.rollout.na") == ["actor_rollout_ref.rollout.name="]
    assert "actor_rollout_ref.rollout.name=hf" in offered("actor_rollout_ref.rollout.name=")


def test_values() -> None:
    assert offered("actor.use_kl_loss=") == ["actor.use_kl_loss=true", "actor.use_kl_loss=false"]
    assert "algorithm=rloo" in offered("algorithm=")
    assert offered("actor.no_such_key=") == []
