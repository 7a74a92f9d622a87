"""Flags that make servers fast, by the machine that they find; the command lines hold them."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Config, Rollout
from agentrl.core.errors import UserError
from agentrl.engines.backends import server_backend
from agentrl.engines.launching import check_addresses
from agentrl.engines.servers.host import Host, inspect_host
from agentrl.engines.servers.settings import AdapterSpec, ServerSettings, graph_sizes, memory_share
from agentrl.engines.sglang import SGLang
from agentrl.engines.sglang.backend import described
from agentrl.engines.sglang.flags import PACKAGES, fast_flags
from agentrl.engines.sharing import Sharing, sequences, sequences_in_process, server_bytes, trainer_bytes
from agentrl.engines.vllm import VLLM

pytestmark = pytest.mark.integration

GIB = 1 << 30
HOPPER = (9, 0)
SETTINGS = ServerSettings("python", "model", "cuda", "bfloat16", 1024, 512)
FAST = {
    "cuda_graph_bs_decode": graph_sizes(512, 0),
    "cuda_graph_bs_prefill": [32, 64, 128, 256, 512],
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    inspect_host.cache_clear()
    yield
    inspect_host.cache_clear()


def package(folder: Path, *files: str, text: str = "") -> Path:
    """A package's folder with some files."""
    for name in ("__init__.py", *files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, Path]:
    """SGLang with all of its kernels, by package."""
    source = package(tmp_path / "sglang", "srt/server_args.py", text="cuda_graph_bs_decode")
    kernels = package(tmp_path / "sgl_kernel", "flash_ops.abi3.so")
    return {
        "sglang": source,
        "sgl_kernel": kernels,
        "flashinfer": package(tmp_path / "flashinfer", "data/aot/sampling/a"),
    }


def test_a_complete_hopper_gets_graphs_for_all_sequences_and_sglangs_own_kernels(installed: dict[str, Path]) -> None:
    assert fast_flags(SETTINGS, Host(installed, HOPPER, 141 * GIB)) == FAST
    assert graph_sizes(512, 0)[-1] == 512


def test_requests_are_read_a_few_at_a_time_where_rollouts_run_ahead(installed: dict[str, Path]) -> None:
    host, ahead = Host(installed, HOPPER, 141 * GIB), replace(SETTINGS, ahead=True)
    assert fast_flags(ahead, host) == FAST | {"scheduler_recv_interval": 4}
    assert fast_flags(replace(ahead, extra={"enable-dp-attention": True}), host) == FAST
    assert fast_flags(replace(ahead, extra={"scheduler_recv_interval": 1}), host) == FAST


@pytest.mark.parametrize("bound", [0, 1])
def test_a_bound_above_0_runs_ahead(bound: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = config_of(trainer__max_staleness=bound, model__path=str(tmp_path), rollout__engine_python=sys.executable)
    backend: Any = server_backend("sglang", config, "cuda", Sharing())
    assert backend.settings.ahead is (bound > 0)


@pytest.mark.parametrize(
    ("missing", "capability", "flag"),
    [
        ("sgl_kernel", HOPPER, {"attention_backend": "triton"}),
        ("sgl_kernel", (8, 0), {}),
        ("flashinfer", HOPPER, {"sampling_backend": "pytorch"}),
    ],
)
def test_missing_kernels_are_replaced(
    installed: dict[str, Path], missing: str, capability: tuple[int, int], flag: dict[str, str]
) -> None:
    found = {name: folder for name, folder in installed.items() if name != missing}
    flags = fast_flags(SETTINGS, Host(found, capability, 80 * GIB))
    assert flags == FAST | flag


def test_a_compiler_makes_up_for_missing_kernels_of_sampling(installed: dict[str, Path]) -> None:
    del installed["flashinfer"]
    assert "sampling_backend" not in fast_flags(SETTINGS, Host(installed, HOPPER, 80 * GIB, compiles=True))


def test_an_older_sglang_gets_the_flag_that_it_knows(installed: dict[str, Path]) -> None:
    (installed["sglang"] / "srt/server_args.py").write_text("cuda_graph_bs")
    assert list(fast_flags(SETTINGS, Host(installed, HOPPER, 80 * GIB))) == ["cuda_graph_bs"]


def flags_of(backend: Any) -> dict[str, str]:
    words = backend.command(1)
    return {word: after for word, after in pairwise(words) if word.startswith("--")}


def test_sglang_takes_rounded_weights_where_it_rounds_updates(
    installed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own loader does; an older one spoils weights. The base of an adapter is never updated."""
    fp8 = replace(SETTINGS, rollout=Rollout(quantization="fp8"))
    monkeypatch.setattr("agentrl.engines.sglang.flags.inspect_host", lambda *_: Host(installed, HOPPER, 80 * GIB))
    with pytest.raises(UserError, match="this SGLang cannot round updated weights"):
        SGLang(fp8).command(1)
    package(installed["sglang"] / "srt/model_loader", "loader.py", text="_supports_quantized_rl_reload")
    flags = flags_of(SGLang(fp8))
    assert (flags["--quantization"], flags["--load-format"]) == ("fp8", "flash_rl")
    adapted = flags_of(
        SGLang(replace(fp8, rollout=replace(fp8.rollout, load_format="auto"), adapter=AdapterSpec(8, ("q_proj",))))
    )
    assert (adapted["--quantization"], adapted["--load-format"]) == ("fp8", "auto")


def test_drafts_are_one_guess_of_four_tokens(installed: dict[str, Path]) -> None:
    drafts = replace(SETTINGS, rollout=Rollout(speculative_algorithm="ngram"))
    sglang, vllm = flags_of(SGLang(replace(drafts, device="cpu"))), flags_of(VLLM(replace(drafts, device="cpu")))
    assert (sglang["--speculative-algorithm"], sglang["--speculative-num-draft-tokens"]) == ("NGRAM", "5")
    assert sglang["--speculative-ngram-max-bfs-breadth"] == "1"
    assert json.loads(vllm["--speculative-config"])["num_speculative_tokens"] == 4
    assert not {"--speculative-config", "--quantization"} & {*flags_of(VLLM(replace(SETTINGS, device="cpu")))}


def test_vllm_captures_graphs_for_drafted_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = package(tmp_path / "vllm", "engine/arg_utils.py", text="--cudagraph-capture-sizes")
    monkeypatch.setattr("agentrl.engines.vllm.flags.inspect_host", lambda *_: Host({"vllm": found}, HOPPER, 80 * GIB))
    many = replace(SETTINGS, max_num_seqs=128)
    drafting = replace(many, rollout=Rollout(speculative_algorithm="ngram"))
    plain, drafts = (VLLM(settings).command(1) for settings in (many, drafting))
    assert "640" in drafts
    assert "640" not in plain


@pytest.mark.parametrize("key", ["quantization", "speculative_algorithm"])
def test_only_servers_of_the_run_take_them(key: str) -> None:
    config = config_of(**{f"rollout__{key}": "x"})
    for name, url in (("hf", None), ("sglang", "http://there:1")):
        config.rollout.base_url = url
        with pytest.raises(UserError, match=f"rollout.{key}: only a server that the run starts"):
            check_addresses(config.rollout, name)
    config.rollout.base_url = None
    check_addresses(config.rollout, "vllm")
    with pytest.raises(UserError, match="are for servers on a GPU"):
        server_backend("vllm", config, "cpu", Sharing())


GRAPHS = {"cuda_graph_bs_decode", "cuda_graph_bs_prefill"}
KERNELS = {"attention_backend", "sampling_backend"}


@pytest.mark.parametrize(
    ("extra", "gone"),
    [
        ({"cuda-graph-max-bs-decode": 16}, GRAPHS),
        ({"cuda_graph_bs": [1]}, GRAPHS),
        ({"decode_attention_backend": "fa3"}, {"attention_backend"}),
        ({"sampling_backend": "flashinfer"}, {"sampling_backend"}),
        ({"log_level": "debug"}, set()),
    ],
)
def test_flags_of_the_user_win(installed: dict[str, Path], extra: dict[str, Any], gone: set[str]) -> None:
    host = Host({"sglang": installed["sglang"]}, HOPPER, 80 * GIB)
    assert {*FAST, *KERNELS} - {*fast_flags(replace(SETTINGS, extra=extra), host)} == gone


def test_graphs_of_prefills_fit_into_a_sequence(installed: dict[str, Path]) -> None:
    host = Host(installed, HOPPER, 80 * GIB)
    assert fast_flags(replace(SETTINGS, max_model_len=100), host)["cuda_graph_bs_prefill"] == [32, 64]
    assert fast_flags(replace(SETTINGS, max_model_len=20), host)["cuda_graph_bs_prefill"] is None


def test_eager_servers_capture_nothing(installed: dict[str, Path]) -> None:
    flags = fast_flags(replace(SETTINGS, rollout=Rollout(enforce_eager=True)), Host(installed, HOPPER, 80 * GIB))
    assert not GRAPHS & {*flags}


@pytest.mark.parametrize(
    ("sequences", "memory", "largest"),
    [(1, 0, 1), (20, 0, 20), (512, 80 * GIB, 512), (5000, 80 * GIB, 1024), (5000, 40 * GIB, 512), (512, 24 * GIB, 256)],
)
def test_graphs_reach_the_sequences_or_what_fits(sequences: int, memory: int, largest: int) -> None:
    sizes = graph_sizes(sequences, memory)
    assert sizes[0] == 1
    assert sizes[-1] == largest
    assert sizes == sorted(set(sizes))
    assert len(sizes) < 30  # each costs time at the start
    assert all(after <= 2 * before for before, after in pairwise(sizes))


def fake_python(folder: Path, packages: Path) -> str:
    """An interpreter that finds packages in a folder."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nenv > {folder}/env.txt\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_the_engines_interpreter_is_asked_and_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as Ray does
    packages = tmp_path / "packages"
    package(packages / "sglang", text="raise SystemExit('imported')")
    host = inspect_host(fake_python(tmp_path, packages), *PACKAGES)
    assert host.packages["sglang"] == packages / "sglang"
    assert host.has("sglang")
    assert not host.has("sgl_kernel")
    assert "CUDA_VISIBLE_DEVICES" not in (tmp_path / "env.txt").read_text()


def test_the_command_line_holds_what_was_found(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    package(packages / "sglang", "srt/arg_groups/fields/exec_.py", text="cuda_graph_bs_decode: int")
    package(packages / "vllm", "engine/arg_utils.py", text='"--cudagraph-capture-sizes"')
    settings = replace(SETTINGS, python=fake_python(tmp_path, packages), max_num_seqs=3)
    assert " --cuda-graph-bs-decode 1 2 3 --" in " ".join([*SGLang(settings).command(80), "--"])
    assert " --cudagraph-capture-sizes 1 2 4 6" in " ".join(VLLM(settings).command(80))
    assert "--cudagraph-capture-sizes" not in VLLM(replace(settings, extra={"compilation_config": {}})).command(80)
    assert "--cudagraph-capture-sizes" not in VLLM(replace(settings, rollout=Rollout(enforce_eager=True))).command(80)


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_an_interpreter_that_does_not_answer_has_nothing(python: str) -> None:
    assert inspect_host(python, "sglang") == Host()
    assert "--attention-backend" not in SGLang(replace(SETTINGS, python=python)).command(80)


def test_what_a_server_says_of_itself_is_one_line() -> None:
    newer = {"cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 512]}}, "attention_backend": "fa3"}
    known = {"sampling_backend": "flashinfer", "max_running_requests": 512, "max_total_num_tokens": 99}
    assert described(newer | known) == (
        "attention fa3, sampling flashinfer, CUDA graphs to 512, 512 sequences, 99 tokens of cache"
    )
    assert "CUDA graphs to 64" in described(known | {"cuda_graph_bs": [1, 64]})
    assert "no CUDA graphs" in described(known | {"cuda_graph_bs": [1, 64], "disable_cuda_graph": True})


def config_of(**changes: Any) -> Config:
    """The defaults, with `section__key=value` in them."""
    config = Config()
    for path, value in changes.items():
        *sections, key = path.split("__")
        setattr(reduce(getattr, sections, config), key, value)
    return config


@pytest.mark.parametrize(
    ("changes", "sharing", "expected"),
    [
        ({}, Sharing(), 128),  # 16 prompts, 8 answers each
        ({"data__train_batch_size": 512}, Sharing(), 1024),
        ({"rollout__max_concurrent_trajectories": 30}, Sharing(), 30),
        ({}, Sharing(replicas=3), 43),
        ({"rollout__max_num_seqs": 7}, Sharing(replicas=3), 7),
        ({"algorithm__filter_groups__enable": True, "data__gen_batch_size": 20}, Sharing(), 160),
        ({"data__gen_batch_size": 20}, Sharing(), 128),
        ({"trainer__max_staleness": 2}, Sharing(), 384),  # three batches are under way
        ({"trainer__max_staleness": 2}, Sharing(replicas=2), 192),
        ({"trainer__max_staleness": 9}, Sharing(), 1024),
        ({"trainer__max_staleness": 2, "rollout__max_num_seqs": 7}, Sharing(), 7),
        (
            {"trainer__max_staleness": 1, "algorithm__filter_groups__enable": True, "data__gen_batch_size": 16},
            Sharing(),
            256,
        ),
    ],
)
def test_as_many_sequences_run_as_are_under_way(changes: dict[str, Any], sharing: Sharing, expected: int) -> None:
    assert sequences(config_of(rollout__n=8, **changes), sharing) == expected


def test_an_engine_in_the_trainers_process_has_a_size_of_its_own() -> None:
    assert sequences_in_process(config_of(data__train_batch_size=512)) == 64
    assert sequences_in_process(config_of(rollout__max_num_seqs=300)) == 300


def model_of(folder: Path, size: int, **shape: int) -> str:
    """A folder with a bfloat16 model's configuration, and files of so many bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"dtype": "bfloat16", **shape}))
    for i in range(2):
        with (folder / f"model-{i}.safetensors").open("wb") as file:
            os.truncate(file.fileno(), size // 2)
    return str(folder)


def test_a_sleeping_engine_gets_what_the_trainer_leaves(tmp_path: Path) -> None:
    config = config_of(model__path=model_of(tmp_path / "model", 4 * GIB))  # 2 Gi parameters
    alone = trainer_bytes(config, Sharing(sleeps=True))
    assert alone == 2 * GIB * (4 + 8 + 2)
    assert trainer_bytes(config, Sharing(sleeps=True, ranks=4)) == 2 * GIB * 3  # nothing is gathered
    assert trainer_bytes(config, Sharing(apart=True)) == 0
    assert trainer_bytes(config, Sharing()) is None
    shared = replace(SETTINGS, trainer_bytes=alone)
    assert memory_share(shared, 140 * GIB) == 0.65
    assert memory_share(shared, 30 * GIB) == 0.2
    assert memory_share(replace(shared, servers_per_gpu=2), 140 * GIB) == 0.325
    assert memory_share(replace(SETTINGS, trainer_bytes=0.0), 80 * GIB) == 0.85
    assert memory_share(SETTINGS, 80 * GIB) == memory_share(shared, 0) == 0.5
    assert memory_share(replace(shared, rollout=Rollout(gpu_memory_utilization=0.7)), 80 * GIB) == 0.7


def test_it_takes_no_more_than_a_step_needs(tmp_path: Path) -> None:
    shape = {"num_attention_heads": 8, "num_hidden_layers": 4, "num_key_value_heads": 2, "hidden_size": 512}
    config = config_of(model__path=model_of(tmp_path / "model", 4 * GIB, **shape), rollout__n=8)
    token = 2 * 4 * 2 * (512 // 8)  # keys and values, layers, heads, width
    needed = 2 * (2 * GIB + 128 * 1000 * token)
    assert server_bytes(config, Sharing(), 1000, "bfloat16") == needed
    assert server_bytes(config, Sharing(replicas=2), 1000, "float32") == 4 * (2 * GIB + 64 * 1000 * token)
    config.trainer.max_staleness = 3
    assert server_bytes(config, Sharing(), 1000, "bfloat16") == 2 * (2 * GIB + 512 * 1000 * token)
    config.rollout.max_num_seqs = 600
    assert server_bytes(config, Sharing(), 1000, "bfloat16") == 2 * (2 * GIB + 600 * 1000 * token)
    config.rollout.quantization, vocabulary = "fp8", 50_000  # embeddings and head keep two bytes
    shape |= {"vocab_size": vocabulary}
    config.model.path = model_of(tmp_path / "fp8", 4 * GIB, **shape)
    rounded = 2 * (2 * GIB + 600 * 1000 * token) - (2 * GIB - 2 * vocabulary * 512)
    assert server_bytes(config, Sharing(), 1000, "bfloat16") == rounded
    config.rollout.speculative_algorithm = "ngram"
    assert server_bytes(config, Sharing(), 1000, "bfloat16") == rounded + 12 * 5 * 600 * vocabulary
    few = replace(SETTINGS, trainer_bytes=0.0, needed_bytes=20.0 * GIB)
    assert memory_share(few, 80 * GIB) == 0.4  # a fifth more, and 8 GiB
    assert memory_share(replace(few, needed_bytes=200.0 * GIB), 80 * GIB) == 0.85
    assert memory_share(replace(few, needed_bytes=1.0), 80 * GIB) == 0.2


@pytest.mark.parametrize(
    ("changes", "bytes_a_parameter"),
    [
        ({"actor__fsdp_config__optimizer_offload": True}, 6),
        ({"actor__fsdp_config__param_offload": True, "actor__fsdp_config__optimizer_offload": True}, 2),
        ({"actor__use_kl_loss": True}, 14 + 4),
        ({"algorithm__use_kl_in_reward": True, "model__dtype": "bfloat16"}, 14 + 2),
        ({"algorithm__adv_estimator": "gae"}, 14 + 12),
        ({"model__lora_rank": 8}, 4),
    ],
)
def test_what_the_trainer_keeps(tmp_path: Path, changes: dict[str, Any], bytes_a_parameter: int) -> None:
    config = config_of(model__path=model_of(tmp_path / "model", 2 << 20), **changes)
    assert trainer_bytes(config, Sharing(sleeps=True)) == bytes_a_parameter * (1 << 20)


@pytest.mark.parametrize("path", ["some/model", "no place at all", None])
def test_a_model_that_is_not_here_yet_is_unknown(path: str | None) -> None:
    assert trainer_bytes(config_of(model__path=path), Sharing(sleeps=True)) is None


def test_a_downloaded_model_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "models--some--model"
    (cache / "snapshots").mkdir(parents=True)
    model_of(cache / "snapshots/abc", 2 << 20)
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert trainer_bytes(config_of(model__path="some/model"), Sharing(sleeps=True)) == 14 << 20


def test_sglang_gets_the_tokens_that_it_keeps_back() -> None:
    """It ends a sequence 2 tokens before its context: an answer of the full length would be 2 tokens short."""
    words = SGLang(replace(SETTINGS, device="cpu", max_model_len=768)).command(1)
    assert words[words.index("--context-length") + 1] == "770"
