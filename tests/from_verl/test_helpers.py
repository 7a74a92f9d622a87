"""Small parts of verl that plug-in files import: batches, samplers, trainer parts, and files inside packages."""

import json

import numpy as np
import pytest
import torch

from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl_verl.data_proto import DataProto, DataProtoFuture, collate_fn, pad_dataproto_to_divisor, unpad_dataproto
from agentrl_verl.default_scores import parallel_compute_score_async, run_test
from agentrl_verl.machinery import AgentLoopManager, get_trajectory_info
from agentrl_verl.py_functional import (
    append_to_dict,
    convert_nested_value_to_list_recursive,
    rename_dict,
    timeout_limit,
    union_two_dict,
)
from tests.from_verl.test_names import provided  # noqa: F401

BATCH = {"ids": torch.arange(6).reshape(3, 2)}


def test_batches_are_cut_padded_and_put_together():
    data = DataProto.from_dict(BATCH, {"name": ["a", "b", "c"]}, {"validate": True})
    padded, added = pad_dataproto_to_divisor(data, 2)
    assert (len(padded), added, list(padded.non_tensor_batch["name"])) == (4, 1, ["a", "b", "c", "a"])
    assert len(unpad_dataproto(padded, added)) == 3
    whole = DataProtoFuture(futures=padded.chunk(2)).get()
    assert torch.equal(whole.batch["ids"], padded.batch["ids"])
    again = collate_fn(list(data))
    assert (again.batch["ids"].tolist(), list(again.non_tensor_batch["name"])) == (
        [[0, 1], [2, 3], [4, 5]],
        list("abc"),
    )
    assert not data.select(batch_keys=[]).batch
    assert {*data.union(DataProto({"more": torch.zeros(3)})).batch} == {"ids", "more"}


def test_dicts():
    data = {"a": [1]}
    append_to_dict(data, {"a": 2, "b": 3})
    assert data == {"a": [1, 2], "b": [3]}
    assert rename_dict({"a": 1, "x/b": 2}, "x/") == {"x/a": 1, "x/b": 2}
    assert union_two_dict({"a": 1}, {"b": 2}) == {"a": 1, "b": 2}
    assert convert_nested_value_to_list_recursive({"a": np.array([1, 2])}) == {"a": [1, 2]}
    with pytest.raises(TimeoutError):
        timeout_limit(0.05)(lambda: __import__("time").sleep(1))()


async def test_parts_of_the_trainer_can_be_derived_from_and_not_made():
    assert issubclass(type("Mine", (AgentLoopManager,), {}), AgentLoopManager)
    with pytest.raises(UserError, match="AgentLoopManager is a part of verl's trainer"):
        AgentLoopManager(None)
    assert [info["rollout_n"] for info in await get_trajectory_info(1, [4, 4, 5], validate=False)] == [0, 1, 0]


async def test_scores_in_parallel():
    def score(task, completion, reference, extra):
        return {"score": float(completion == reference)} if task else 1 / 0

    made = await parallel_compute_score_async(score, ["5", "6", "5"], ["5", "5", "5"], ["x", "x", ""])
    assert made == [1.0, 0.0, 0.0]


@pytest.mark.integration
def test_a_program_is_run_on_each_case():
    cases = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "8\n"]}
    results, _ = run_test(json.dumps(cases), "print(sum(map(int, input().split())))")
    assert results == [True, False]


def test_a_file_inside_a_package_imports_its_neighbours(tmp_path, provided):  # noqa: F811
    package = tmp_path / "mine" / "rewards"
    package.mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("import a_package_that_is_not_here\n")
    (package / "__init__.py").write_text("from .graders import Missing\n")
    (tmp_path / "mine" / "numbers.py").write_text("FIVE = 5.0\n")
    (package / "graders.py").write_text("from ..numbers import FIVE\n")
    (package / "score.py").write_text(
        "from verl import DataProto\nfrom .graders import FIVE\n\n\ndef compute_score(**_):\n    return FIVE\n"
    )
    assert load_attribute(str(package / "score.py"), "compute_score", what="reward")() == 5.0
