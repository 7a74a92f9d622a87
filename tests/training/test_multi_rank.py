"""Two processes train as one does: log-probs, loss, gradient norm and weights after two steps, whatever is sharded
and however the batch is cut; and checkpoints go from two processes to one and back.

Tolerance: 1e-5 for weights (they move by up to 3e-2) and 2e-5 for everything else, relative where it is above 1. That
is for sums of float32 in another order.
"""

import socket
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as multiprocessing

from agentrl.config.schema import Model
from agentrl.training import load_model
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.lineage import latest
from agentrl.training.parallel.ranks import ALONE
from tests.training import multi_rank
from tests.training.tiny import CPU, tiny
from tests.warm import START_METHOD

pytestmark = [pytest.mark.timeout(300), pytest.mark.integration]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind, fields in multi_rank.MODELS.items():
        tiny(kind, **fields).save_pretrained(folder / kind)
    return folder


@pytest.fixture(scope="module")
def results(models, tmp_path_factory) -> Path:
    return run(models, tmp_path_factory.mktemp("results"), list(multi_rank.CASES), multi_rank.RESUMED)


@pytest.fixture(scope="module")
def further(models, tmp_path_factory) -> Path:
    return run(models, tmp_path_factory.mktemp("further"), list(multi_rank.FURTHER), multi_rank.FURTHER_RESUMED)


@pytest.fixture(scope="module")
def on_four(models, tmp_path_factory) -> Path:
    return run(models, tmp_path_factory.mktemp("four"), list(multi_rank.ON_FOUR), multi_rank.ON_FOUR_RESUMED, world=4)


def run(models: Path, folder: Path, names: list[str], resumed: tuple[str, ...], world: int = multi_rank.WORLD) -> Path:
    """Everything that the processes do, once for all tests; they resume from what this process wrote first."""
    for name in resumed:
        case = multi_rank.ALL[name]
        trainable = case.actor_on(models, ALONE)
        multi_rank.outcome(case, trainable, range(1))
        multi_rank.write_checkpoint(trainable, folder / f"alone-{name}", ALONE, background=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = (world, port, models, folder, names, resumed)
    multiprocessing.start_processes(multi_rank.rank, given, nprocs=world, start_method=START_METHOD)
    return folder


@pytest.fixture(scope="module")
def alone(models):
    return cache(lambda name: multi_rank.alone(name, models))


def joined(found):
    """The columns of all ranks' shares, in the order of the whole batch."""
    tokens = torch.cat([tokens for tokens, _ in found])
    columns = torch.cat([columns for _, columns in found], dim=-1)
    whole = torch.full_like(columns[..., : int(tokens.max()) + 1], torch.nan)
    whole[..., tokens] = columns
    return whole


def assert_agree(mine, theirs, rounding=2e-5):
    assert [m.keys() for m in mine["metrics"]] == [t.keys() for t in theirs["metrics"]]
    for one, other in zip(mine["metrics"], theirs["metrics"], strict=True):
        assert one == {name: pytest.approx(value, rel=rounding, abs=rounding) for name, value in other.items()}
    for one, other in zip(mine["scored"], theirs["scored"], strict=True):
        torch.testing.assert_close(joined(one), joined([other]), atol=rounding, rtol=rounding)
    assert mine["weights"].keys() == theirs["weights"].keys()
    for name, weight in mine["weights"].items():
        torch.testing.assert_close(
            weight, theirs["weights"][name], atol=max(1e-5, rounding - 2e-5), rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )


def loaded(results: Path, name: str, rank: int):
    found = torch.load(results / f"{name}-{rank}.pt")
    assert "error" not in found, found["error"]
    return found


def together(results: Path, name: str):
    """What rank 0 found, with the columns of all."""
    ranks = [loaded(results, name, rank) for rank in range(len(list(results.glob(f"{name}-?.pt"))))]
    return ranks[0] | {"scored": list(zip(*(found["scored"] for found in ranks), strict=True))}


# In bfloat16 the rounding of such a model is of the size of what it learns, and depends on how it was packed.
ALIKE = [name for name in multi_rank.CASES if name != "float32-head"]


@pytest.mark.parametrize("name", [*ALIKE, "critic"])
def test_two_processes_train_as_one(name, results, alone):
    rounding = multi_rank.ALL[name].rounding if name in multi_rank.ALL else 2e-5
    assert_agree(together(results, name), alone(name), rounding)


@pytest.mark.parametrize("name", multi_rank.CASES)
def test_every_rank_knows_the_same(name, results):
    one, other = (loaded(results, name, rank) for rank in range(multi_rank.WORLD))
    assert one["metrics"] == other["metrics"]
    for tensors in ("weights",):
        assert all(torch.equal(tensor, other[tensors][key]) for key, tensor in one[tensors].items())


@pytest.mark.parametrize("name", multi_rank.CASES)
def test_no_rank_has_more_than_its_share(name, results):
    """Of batches of two mini-batches: each sequence is on one rank, and each rank has about half of the tokens."""
    ranks = [loaded(results, name, rank)["shares"] for rank in range(multi_rank.WORLD)]
    for shares in zip(*ranks, strict=True):
        lengths = shares[0][2]
        assert all(tokens == sum(lengths[i] for i in sequences) for sequences, tokens, _ in shares)
        if multi_rank.CASES[name].seq_world > 1:  # these split the tokens of each pass
            assert [sequences for sequences, *_ in shares] == [list(range(len(lengths)))] * multi_rank.WORLD
            continue
        assert sorted(i for sequences, *_ in shares for i in sequences) == list(range(len(lengths)))
        assert max(tokens for _, tokens, _ in shares) <= max(0.65 * sum(lengths), max(lengths))


def test_ranks_compute_equal_prompts_once(results, alone):
    computed = sum(loaded(results, "full-kl-shared", rank)["computed"] for rank in range(multi_rank.WORLD))
    assert computed < alone("full-kl-shared")["computed"]


def test_the_output_layer_is_in_float32_on_every_rank(results):
    assert all(loaded(results, "float32-head", rank)["head_error"] < 1e-4 for rank in range(multi_rank.WORLD))


def last_step(found):
    return {"metrics": found["metrics"][1:], "scored": found["scored"][1:], "weights": found["weights"]}


@pytest.mark.parametrize("name", multi_rank.RESUMED)
def test_two_ranks_resume_a_checkpoint_of_one(name, results, alone):
    assert_agree(together(results, f"{name}-resumed"), last_step(alone(name)), multi_rank.ALL[name].rounding)


@pytest.mark.parametrize("name", multi_rank.RESUMED)
def test_one_process_resumes_a_checkpoint_of_two_ranks(name, results, models, alone):
    loaded(results, f"{name}-wrote", 0)
    found = multi_rank.resume(multi_rank.ALL[name], models, results / f"many-{name}", ALONE)
    assert_agree(
        found | {"scored": [[column] for column in found["scored"]]},
        last_step(alone(name)),
        multi_rank.ALL[name].rounding,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", multi_rank.FURTHER)
def test_further_ways_to_train(name, further, alone):
    test_two_processes_train_as_one(name, further, alone)
    test_every_rank_knows_the_same(name, further)


@pytest.mark.slow
@pytest.mark.parametrize("name", multi_rank.FURTHER_RESUMED)
def test_further_checkpoints(name, further, models, alone):
    test_two_ranks_resume_a_checkpoint_of_one(name, further, alone)
    test_one_process_resumes_a_checkpoint_of_two_ranks(name, further, models, alone)


def without_loads(found):
    """Figures but for loads of experts: the shares of four are so small that what fills up a CPU's rows shows there."""
    loads = ("router/max_load", "router/max_load_worst")
    return found | {"metrics": [{n: v for n, v in step.items() if n not in loads} for step in found["metrics"]]}


@pytest.mark.slow
@pytest.mark.parametrize("name", multi_rank.ON_FOUR)
def test_four_processes_train_as_one(name, on_four, alone):
    assert_agree(without_loads(together(on_four, name)), without_loads(alone(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", multi_rank.ON_FOUR_RESUMED)
def test_checkpoints_of_four(name, on_four, models, alone):
    wanted = without_loads(last_step(alone(name)))
    assert_agree(without_loads(together(on_four, f"{name}-resumed")), wanted)
    loaded(on_four, f"{name}-wrote", 0)
    found = multi_rank.resume(multi_rank.ALL[name], models, on_four / f"many-{name}", ALONE)
    assert_agree(without_loads(found | {"scored": [[column] for column in found["scored"]]}), wanted)


@pytest.mark.parametrize("name", ["fsdp2", "split-experts"])
def test_checkpoints_of_two_ranks_are_pruned_and_have_a_loadable_model(name, results, models):
    path = latest(results / f"many-{name}")
    assert [p.name for p in path.parent.iterdir()] == ["global_step_2"]
    assert {"policy-00000.safetensors", "policy-00001.safetensors"} <= {p.name for p in path.iterdir()}
    _, state = checkpoints.load(path)
    assert state["rows"] == {"at": 2}
    module = load_model(Model(path=str(path / "huggingface")), device=CPU, seed=0).module
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, state["policy"]["parameters"][name].whole())


def test_two_ranks_skip_a_damaged_checkpoint_and_start_a_branch(results):
    found = [loaded(results, "lineage", rank) for rank in range(multi_rank.WORLD)]
    left = ["damaged_1/global_step_3", "global_step_1", "superseded_1/global_step_2"]
    assert found == [{"steps": [2, 1], "left": left}] * multi_rank.WORLD


def test_an_adapter_that_two_wrote_loads(results, models):
    path = latest(results / "many-lora")
    module = load_model(Model(path=str(path / "huggingface")), device=CPU, seed=0).module
    saved = checkpoints.load(path)[1]["policy"]["parameters"]
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    assert trained.keys() == saved.keys()
    assert all(torch.equal(p, saved[name].whole()) for name, p in trained.items())
