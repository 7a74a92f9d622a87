"""A tool, a dataset and a reward function in one file, as a ReTool run has them; verl's own tools and programs."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.schema import Data
from agentrl.config.schema.data import CustomClass
from agentrl.core.errors import UserError
from agentrl.data import load_dataset
from agentrl.rewards.function import load_reward_function
from agentrl.tools import load_tools
from agentrl_verl.programs import merge_arguments, run

pytestmark = pytest.mark.integration

RETOOL = Path(__file__).parent / "files" / "retool.py"

YAML = """
tools:
  - class_name: {}
    config: {{type: native}}
    tool_schema:
      type: function
      function:
        name: tried
        description: Tried.
        parameters:
          type: object
          properties: {{{}: {{type: string}}}}
          required: [{}]
"""


@pytest.fixture
def tool(tmp_path):
    def tool(class_name, parameter):
        (tmp_path / "retool.py").write_text(RETOOL.read_text())
        (tmp_path / "tools.yaml").write_text(YAML.format(class_name, parameter, parameter))
        return load_tools(str(tmp_path / "tools.yaml"), None, max_response=256, unit="characters", side="middle")

    return tool


async def test_a_tool_that_derives_from_verl_s_sandbox_tool(tool):
    tools = tool("retool.CustomSandboxFusionTool", "code")
    session = tools.open("k", {}, None)
    result = await session.call("tried", {"code": "```python\nx = 6\nx * 7\n```"})
    assert (result.text.strip(), result.reward) == ("42", 0.0)
    await session.release()
    await tools.close()


async def test_the_geometry_tool_compares_mathematics(tool):
    session = tool("verl.tools.geo3k_tool.Geo3kTool", "answer").open(
        "k", {"tried": {"create_kwargs": {"ground_truth": "1/2"}}}, None
    )
    await session.call("tried", {"answer": "0.5"})
    assert await session.rewards() == {"tried": 1.0}
    await session.release()


def test_a_class_of_verl_s_that_is_not_there_says_what_to_do(tool):
    with pytest.raises(UserError, match=r"agentrl has no such class; copy its file beside the YAML"):
        tool("verl.tools.image_zoom_in_tool.ImageZoomInTool", "x")


def test_a_dataset_that_derives_from_verl_s(tmp_path):
    pq.write_table(pa.Table.from_pylist([{"problem": "2 * 3?", "answer": 6}]), tmp_path / "rows.parquet")
    data = Data(custom_cls=CustomClass(path=str(RETOOL), name="CustomRLHFDataset"))
    (row,) = load_dataset(data, [str(tmp_path / "rows.parquet")], None)
    assert row.prompt[0]["content"].startswith("2 * 3?")
    assert (row.ground_truth, row.data_source, row.agent_name) == ("6", "math_dapo", "tool_agent")


def test_verl_s_dataset_as_it_is(tmp_path):
    record = {"prompt": [{"role": "user", "content": "q"}], "extra_info": {"index": 3}, "level": "hard"}
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "rows.parquet")
    (tmp_path / "mine.py").write_text(
        "from verl.utils.dataset.rl_dataset import RLHFDataset\nclass Mine(RLHFDataset): pass\n"
    )
    data = Data(custom_cls=CustomClass(path=str(tmp_path / "mine.py"), name="Mine"))
    (row,) = load_dataset(data, str(tmp_path / "rows.parquet"), None)
    assert row.extra_info["index"] == 3
    assert row.others["level"] == "hard"


def test_its_reward_function():
    fn = load_reward_function(str(RETOOL), "compute_score", {})
    assert fn.function("math_dapo", r"so \boxed{6}", "6", {"num_turns": 2})["score"] == 1.0
    assert fn.function("math_dapo", "no idea", "6", {"num_turns": 4})["score"] == pytest.approx(-0.9)


def test_torchrun_s_further_processes_have_nothing_to_do(monkeypatch):
    monkeypatch.setitem(os.environ, "RANK", "3")
    assert run("verl.trainer.fsdp_sft_trainer", ["nonsense"]) == 0


def test_as_many_processes_as_torchrun_was_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("agentrl_verl.programs.become", lambda arguments: seen.append(arguments) or 0)
    told = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 16, "LOCAL_WORLD_SIZE": 8, "TORCHELASTIC_USE_AGENT_STORE": True}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    assert run("verl.trainer.fsdp_sft_trainer", ["model.path=m"]) == 0
    program = "--program=verl.trainer.fsdp_sft_trainer"
    assert seen == [["sft", program, "trainer.n_gpus_per_node=8", "trainer.nnodes=2", "model.path=m"]]
    assert run("verl.trainer.sft_trainer_ray", []) == 0  # what torchrun said is taken back
    assert seen[1] == ["sft", "--program=verl.trainer.sft_trainer_ray"]
    assert told.keys().isdisjoint(os.environ)


def test_what_the_merger_is_asked():
    asked = ["merge", "--backend", "fsdp", "--local_dir", "run/global_step_4/actor/", "--target_dir", "out"]
    assert merge_arguments(asked) == ["run/global_step_4", "out", "--overwrite"]
    with pytest.raises(UserError, match="a critic is not merged"):
        merge_arguments([*asked, "--is-value-model"])
    with pytest.raises(UserError, match="Megatron"):
        merge_arguments(["merge", "--backend", "megatron", "--local_dir", "a", "--target_dir", "b"])


def test_the_merger_finds_the_checkpoint_where_verl_has_it(tmp_path):
    """verl writes RUN/global_step_4; ours is in RUN/checkpoints."""
    asked = ["merge", "--local_dir", f"{tmp_path}/global_step_4/actor", "--target_dir", "out"]
    assert merge_arguments(asked) == [f"{tmp_path}/global_step_4", "out", "--overwrite"]
    (tmp_path / "checkpoints" / "global_step_4").mkdir(parents=True)
    assert merge_arguments(asked) == [f"{tmp_path}/checkpoints/global_step_4", "out", "--overwrite"]
