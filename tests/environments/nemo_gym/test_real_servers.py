"""Resource servers of the real nemo-gym package, in the environment that `make test-agents` makes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import UserError
from agentrl.environments import worker
from agentrl.environments.nemo_gym import server as servers
from agentrl.environments.rows import environment_rows
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome
from tests.environments.nemo_gym.test_nemo_gym import play
from tests.rollout.scripted import calls

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

ENTRY = "{}: {{nemo_gym: {}, python: {}, data: {}/{}/data/example.jsonl}}"
ENTRIES = {
    "counter": ("example_session_state_mgmt", "example_session_state_mgmt"),
    "others": ("example_session_state_mgmt", "workplace_assistant"),
    "unknown": ("conuter", "blackjack"),
    "arguments": ("single_step_tool_use_with_argument_comparison",) * 2,
    "calls": ("xlam_fc",) * 2,
    "components": ("example_tool_call_multireward",) * 2,
    "office": ("workplace_assistant", "workplace_assistant"),
    "follow": ("example_multi_turn_gymnasium", "example_multi_turn_gymnasium"),
}
SEARCH = calls("company_directory_find_email_address", '{"name": "carlos"}')


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Data]:
    folder = Path(os.environ.get("AGENTRL_NEMO_GYM", ""))
    found = sorted(folder.glob("lib/python*/site-packages/resources_servers"))
    if not found:
        pytest.skip("AGENTRL_NEMO_GYM is no environment: run `make test-agents`")
    python = folder / "bin/python"
    lines = [ENTRY.format(name, id, python, found[0], rows) for name, (id, rows) in ENTRIES.items()]
    (tmp_path / "environments.yaml").write_text("\n".join(lines))
    yield Data(environment_config_path=str(tmp_path / "environments.yaml"))
    servers.started.cache_clear()


def rows(name: str, data: Data) -> list[Row]:
    return list(environment_rows(name, data=data))


def add(n: int) -> str:
    return calls("increment_counter", f'{{"count": {n}}}')


async def test_sessions_verdicts_and_a_death(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(worker, "ProgramProcess", lambda program: made.append(started_once(program)) or made[-1])
    row = rows("counter", data)[0]
    right = await play(row, calls("increment_counter", "{}"), add(1) + add(2), calls("get_counter_value", "{}"), "Six.")
    wrong = await play(row, add(1), "Four.")
    assert (right.reward, right.reward_extra["success"], wrong.reward) == (1, 1, 0)
    assert [call.outcome for call in right.tool_calls] == [Outcome.MODEL_ERROR] + [Outcome.OK] * 3
    assert "Field required" in right.tool_calls[0].response
    assert right.tool_calls[3].response == '{"count":6}'
    with pytest.raises(UserError, match="example.jsonl:1: it has no initial_count, which .*/seed_session asks for"):
        rows("others", data)
    with pytest.raises(UserError, match="environment unknown: there is no resources_servers/conuter/app.py here or in"):
        rows("unknown", data)
    made[0].end()
    assert (await play(row, add(1) + add(2), "Six.")).reward == 1  # it is started again


@pytest.mark.parametrize("name", ["arguments", "calls", "components"])
async def test_calls_that_are_verified_and_not_carried_out(data: Data, name: str) -> None:
    row = rows(name, data)[0]
    wide = {"prompt_length": 40_000, "model_length": 60_000}
    said = await play(row, "I do not call.", **wide)
    assert (row.extra_info["executed"], said.turns, said.reward) == (False, 1, 0)
    if name == "components":
        wanted = row.extra_info["line"]["expected_call"]
        arguments = wanted["arguments"] if isinstance(wanted["arguments"], str) else json.dumps(wanted["arguments"])
        right = await play(row, calls(wanted["name"], arguments), **wide)
        assert right.reward > said.reward
        assert right.tool_calls == []


started_once = worker.ProgramProcess


async def test_many_tools_and_steps(data: Data) -> None:
    row = rows("office", data)[0]
    assert row.prompt[0]["role"] == "system"
    found = await play(row, SEARCH, "Done.", prompt_length=40_000, model_length=60_000)
    assert "carlos" in found.tool_calls[0].response
    assert (found.tool_calls[0].outcome, found.reward) == (Outcome.OK, 0)
    follow = rows("follow", data)[0]
    talk = await play(follow, "Paris.", "Two million.", "The Eiffel tower.")
    assert (talk.finish, talk.reward, talk.turns) == ("terminated", 1, 3)
    assert talk.messages[2]["content"].startswith("What is the approximate population")
