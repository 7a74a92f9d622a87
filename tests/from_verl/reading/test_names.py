"""verl's names: every key of its guides leads somewhere, and the table itself is sound."""

from pathlib import Path

import pytest
import yaml

from agentrl.config import compose, resolve
from agentrl.config.keys import home, schema_keys, schema_sections
from agentrl.config.names import destination, table, translate, written
from agentrl.config.schema import Config
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError

KEYS = schema_keys(Config)
LINES = [line for line in Path(__file__).with_name("verl_keys.txt").read_text().splitlines() if " -> " in line]
CASES = [(*setting.split("=", 1), outcome) for setting, outcome in (line.split(" -> ") for line in LINES)]


def outcome_of(path: str, value: object) -> str:
    try:
        found = translate(path, value, KEYS)
    except UserError as error:
        return "refused" if str(error).startswith(path) else f"the culprit does not come first: {error}"
    if not found.path:
        return "ignored" if found.notes else "silent"
    assert home(found.path, KEYS), f"{path} leads to {found.path}, which is no key"
    assert bool(found.notes) or found.path == path, "a move is told"
    return found.path if written(found.value) == written(value) else f"{found.path}={written(found.value)}"


def test_every_key_of_the_guides() -> None:
    found = [(path, text, outcome_of(path, yaml.safe_load(text))) for path, text, _ in CASES]
    assert [case for case in found if case not in CASES] == []


def test_the_list_is_whole() -> None:
    assert len(CASES) > 300
    sections = {path.split(".")[0] for path, _, _ in CASES}
    assert sections >= {"data", "actor_rollout_ref", "critic", "reward_model", "custom_reward_function", "algorithm"}


def test_what_verl_begins_with_is_known_and_not_refused() -> None:
    """A file that verl wrote out whole, of any version, begins a run."""
    text = Path(__file__).with_name("verl_defaults.txt").read_text()
    settings = [line.partition("=")[::2] for line in text.splitlines()[1:]]
    assert len(settings) > 900
    strangers = []
    for path, value in settings:
        found = translate(path, yaml.safe_load(value), KEYS)
        if found.path and not home(found.path, KEYS):
            strangers.append(path)
    assert not strangers


def test_a_slip_in_a_section_that_is_half_ours_is_found() -> None:
    for section in ("actor.fsdp_config", "actor.profiler", "actor.checkpoint", "critic.fsdp_config", "ref.fsdp_config"):
        with pytest.raises(UserError, match=rf"{section}\.parm_offload"):
            resolve([f"{section}.parm_offload=true"], checks=())


def accepted() -> list[str]:
    """One value of every key that is not refused; words that are checked later must be ours."""
    taken: dict[str, str] = {}
    for path, text, outcome in CASES:
        wrong_word = "wandb" in text or "k3+" in text
        if outcome != "refused" and not wrong_word:
            taken.setdefault(path, f"{path}={text}")
    return [text for path, text in taken.items() if path != "actor_rollout_ref.rollout.multi_turn"]


def test_all_of_them_at_once_on_the_command_line() -> None:
    resolved = resolve(accepted(), checks=())
    assert resolved.config.model.lora_rank == 8
    assert len(resolved.notes) == len(set(resolved.notes))


def test_all_of_them_at_once_in_a_file(tmp_path: Path) -> None:
    tree: dict = {}
    for text in accepted():
        path, _, value = text.partition("=")
        *above, leaf = path.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[leaf] = yaml.safe_load(value)
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump({"defaults": ["train", "_self_"], **tree}))
    config = compose(config_dir=str(tmp_path), config_name="exp", checks=())
    assert config.model.lora_rank == 8
    assert config.rollout.val_kwargs.n == 2
    assert config.model.override_config["rope_theta"] == 1


def test_multi_turn_is_a_switch_or_a_section(tmp_path: Path) -> None:
    def enabled(text: str, *overrides: str) -> bool:
        (tmp_path / "exp.yaml").write_text(f"rollout: {{multi_turn: {text}}}\n")
        return compose(overrides, config_dir=str(tmp_path), config_name="exp", checks=()).rollout.multi_turn.enable

    assert enabled("true")
    assert enabled("{enable: true}")
    assert not enabled("{}")
    assert not enabled("null")
    assert not enabled("{enable: true}", "rollout.multi_turn=false")
    assert enabled("false", "actor_rollout_ref.rollout.multi_turn=true")


def test_moves_end_at_real_keys_or_at_another_entry() -> None:
    known = {**KEYS, **schema_keys(SftConfig)}
    sections = {*schema_sections(Config), *schema_sections(SftConfig)}
    for entry in table().values():
        if entry.action == "moved":
            target = destination(entry.text.partition("=")[0], known)
            covered = any(name.startswith(target) for name in table())
            assert home(target, known) or target in sections or covered, entry


def test_entries_for_real_keys_hold_for_single_values_only() -> None:
    """Otherwise the entry would never be met."""
    shared = set(KEYS) & set(schema_keys(SftConfig))
    assert not {name for name in table() if name in shared}


def test_reasons_are_short_and_name_real_keys() -> None:
    known = {**KEYS, **schema_keys(SftConfig)}
    sections = {*schema_sections(Config), *schema_sections(SftConfig)}
    for entry in table().values():
        if entry.action in ("ignored", "refused", "noted"):
            assert len(entry.text) < 160, entry
            for word in entry.text.replace(";", " ").replace(",", " ").replace("`", " ").split():
                path = word.partition("=")[0]
                if path.split(".")[0] in schema_sections(Config) and "." in path:
                    assert home(path, known) or path in sections or path in entry.name, (
                        f"{entry.name}: {path} is no key"
                    )


def test_a_null_or_empty_value_of_a_dead_name_is_silent() -> None:
    for value in (None, {}, [], ""):
        assert translate("reward.reward_model.path", value, KEYS).notes == ()


def test_the_flipped_truncation_side_is_told_once_and_to_verl_users_only() -> None:
    new = "rollout.multi_turn.tool_response_truncate_side=left"
    assert resolve([new], checks=()).notes == []
    notes = resolve([f"actor_rollout_ref.{new}", f"actor_rollout_ref.{new}"], checks=()).notes
    assert sum("cuts the beginning away" in note for note in notes) == 1


def test_sft_takes_its_own_old_names() -> None:
    overrides = ["optim.clip_grad=0.5", "optim.lr_scheduler=wsd", "model.partial_pretrain=m", "data.pad_mode=right"]
    resolved = resolve([*overrides, "trainer.default_local_dir=out"], config_name="sft", schema=SftConfig, checks=())
    assert resolved.config.trainer.grad_clip == 0.5
    assert resolved.config.optim.lr_scheduler_type == "wsd"
    assert (resolved.config.model.path, resolved.config.trainer.output_dir) == ("m", str(Path("out").absolute()))
    assert any(note.startswith("data.pad_mode has no effect") for note in resolved.notes)


def sft_of(*overrides: str) -> SftConfig:
    config: SftConfig = resolve(overrides, config_name="sft", schema=SftConfig, checks=()).config
    return config


def test_an_sft_script_of_verl_0_5() -> None:
    config = sft_of(
        *("data.prompt_key=extra_info", "data.response_key=extra_info", "data.prompt_dict_keys=['question']"),
        *("+data.response_dict_keys=['answer']", "data.multiturn.enable=false", "data.truncation=right"),
        *("model.fsdp_config.cpu_offload=true", "ulysses_sequence_parallel_size=2", "use_remove_padding=true"),
        *("model.strategy=fsdp", "trainer.default_hdfs_dir=null", "data.balance_dp_token=False", "data.use_shm=False"),
    )
    assert (config.data.prompt_dict_keys, config.data.response_dict_keys) == (["question"], ["answer"])
    assert (config.data.conversations, config.data.truncation) == (False, "right")
    assert config.fsdp_config.offload_policy
    assert config.trainer.ulysses_sequence_parallel_size == 2


def test_an_sft_script_of_verl_0_9() -> None:
    config = sft_of(
        *("engine=fsdp", "model=hf_model", "optim=fsdp", "engine.strategy=fsdp2", "engine.fsdp_size=-1"),
        *("engine.ulysses_sequence_parallel_size=2", "optim.lr=2e-5", "optim.betas=[0.9,0.95]", "optim.clip_grad=0.5"),
        *("optim.warmup_style=cosine", "optim.min_lr_ratio=0.1", "data.max_token_len_per_gpu=9", "data.pad_mode=right"),
        *("data.messages_key=m", "data.enable_thinking_key=e", "data.enable_thinking_default=none"),
        *("trainer.test_freq=after_each_epoch", "checkpoint.save_contents=[model,optimizer]"),
    )
    assert (config.optim.lr, config.optim.betas, config.optim.min_lr_ratio) == (2e-5, [0.9, 0.95], 0.1)
    assert (config.trainer.grad_clip, config.trainer.max_token_len_per_gpu) == (0.5, 9)
    assert (config.data.messages_key, config.data.enable_thinking_key) == ("m", "e")
    assert config.data.enable_thinking_default is None
    assert config.trainer.test_freq == "after_each_epoch"


@pytest.mark.parametrize("engine", ["automodel", "megatron", "mindspeed", "torchtitan", "veomni"])
def test_other_engines_are_fsdp2_here(engine: str) -> None:
    config = sft_of(
        f"engine={engine}", f"optim={engine}", "engine.context_parallel_size=2", "optim.lr_decay_style=linear"
    )
    assert (config.trainer.ulysses_sequence_parallel_size, config.optim.lr_scheduler_type) == (2, "linear")


MEGATRON = "actor_rollout_ref.actor.megatron"


def test_what_megatron_alone_has_is_one_note_for_each_reason() -> None:
    layout = [f"{role}.megatron.tensor_model_parallel_size=4" for role in ("actor_rollout_ref.actor", "ref", "critic")]
    kernels = [
        f"{MEGATRON}.override_transformer_config.{name}=true" for name in ("moe_permute_fusion", "apply_rope_fusion")
    ]
    notes = resolve([*layout, *kernels, f"{MEGATRON}.pipeline_model_parallel_size=2"], checks=()).notes
    assert [note.partition(" has no effect")[0] for note in notes] == ["parallel layout", "choice of kernels"]


def test_a_number_of_megatrons_that_is_not_here_names_the_way_out() -> None:
    for setting in ("moe_z_loss_coeff=0.001", "moe_expert_capacity_factor=1.5", "fp8=e4m3", "hidden_dropout=0.1"):
        with pytest.raises(UserError, match="remove it|set fields of the model's own configuration"):
            resolve([f"{MEGATRON}.override_transformer_config.{setting}"], checks=())


def test_megatrons_modules_for_lora_are_all_linear_layers() -> None:
    config = resolve(["model.lora.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]"], checks=()).config
    assert config.model.target_modules == "all-linear"


def test_megatrons_alpha_yields_to_the_key_of_the_other_engines() -> None:
    assert resolve(["model.lora.alpha=64"], checks=()).config.model.lora_alpha == 64
    assert resolve(["model.lora_alpha=8", "model.lora.alpha=64"], checks=()).config.model.lora_alpha == 8
