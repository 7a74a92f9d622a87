"""Supervised fine-tuning on a real chat template: what is trained, what is written, what is refused."""

import copy
import json
import os
import signal
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from agentrl.chat import Chat
from agentrl.cli.main import main
from agentrl.config.schema import Model, Optim
from agentrl.config.schema.sft import SftConfig, SftData, SftTrainer
from agentrl.core.errors import UserError
from agentrl.core.stopping import Interrupted
from agentrl.sft import sft
from agentrl.tasks.models import tiny as tiny_model
from agentrl.tracking import read_metrics
from agentrl.training import load_model, load_tokenizer, pack_ledgers
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.sft.conversations import read_conversations
from agentrl.training.sft.custom_conversations import token_ledger
from agentrl.training.sft.run import Run
from tests.training.tiny import CPU

pytestmark = pytest.mark.integration

NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": NUMBERS}}}]


def conversation(i):
    call = {"id": "c0", "type": "function", "function": {"name": "add", "arguments": {"a": i, "b": 1}}}
    return {
        "messages": [
            {"role": "user", "content": f"What is {i} and 1?" + " Please!" * (i % 5)},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": str(i + 1), "tool_call_id": "c0", "name": "add"},
            {"role": "assistant", "content": f"It is {i + 1}."},
        ],
        "tools": TOOLS,
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with conversations and a tiny model whose tokenizer was made from them."""
    home = tmp_path_factory.mktemp("sft")
    (home / "rows.jsonl").write_text("\n".join(json.dumps(conversation(i)) for i in range(24)))
    shape = tiny_model.TinyShape(vocab_size=400, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                 num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    tiny_model.prepare(home / "model", [home / "rows.jsonl"], shape=shape, seed=0)
    return home


def config(home, **fields):
    data = SftData(train_files=str(home / "rows.jsonl"), train_batch_size=8)
    trainer = SftTrainer(output_dir=str(home / "out"), total_epochs=4, max_token_len_per_gpu=300, device="cpu")
    optim = Optim(lr=1e-2, lr_scheduler_type="cosine")
    return SftConfig(data=data, model=Model(path=str(home / "model")), optim=optim, trainer=trainer, **fields)


def held_loss(model_path, conversations):
    """Mean loss of the assistant's tokens, in nats."""
    batch = pack_ledgers(conversations.ledgers)
    module = load_model(Model(path=str(model_path)), device=CPU, seed=0).module
    with torch.no_grad():
        return -TokenLogprobs(module)(batch)[0][batch.mask].mean().item()


def test_a_source_of_prompts_is_refused_in_one_line(home):
    data = replace(config(home).data, train_files="tasks:demo")
    with pytest.raises(UserError, match="data.train_files: tasks:demo makes prompts without answers; name files of"):
        read_conversations(data, Chat(load_tokenizer(Model(path=str(home / "model"))), check="disable"))


def test_training_lowers_the_loss_of_the_model_that_is_written(home, tmp_path):
    seen = []
    settings = config(home)
    settings.trainer.output_dir = str(tmp_path / "out")
    result = sft(settings, lambda step, total, metrics: seen.append((step, total, metrics["lr"], metrics["loss"])))
    conversations = read_conversations(settings.data, Chat(load_tokenizer(settings.model), check="disable"))
    before, after = (held_loss(path, conversations) for path in (home / "model", result.path))
    assert [s[:2] for s in seen] == [(i, 12) for i in range(1, 13)]
    assert seen[0][2] == 1e-2
    assert seen[-1][2] < 1e-3
    assert seen[0][3] == pytest.approx(before, rel=0.05)
    assert after < 0.6 * before
    assert result.final_loss == pytest.approx(sum(s[3] for s in seen[-10:]) / 10)
    assert load_tokenizer(Model(path=str(result.path))).chat_template


def test_the_gradient_is_that_of_the_assistants_tokens_alone(home):
    settings = config(home)
    chat = Chat(load_tokenizer(settings.model), check="disable")
    ledger = read_conversations(settings.data, chat).ledgers[0]
    trained = chat.decode([t for t, m in zip(ledger.ids, ledger.mask, strict=True) if m])
    rest = chat.decode([t for t, m in zip(ledger.ids, ledger.mask, strict=True) if not m])
    assert "add" in trained
    assert "It is 1." in trained
    assert "What is" not in trained
    assert "What is" in rest


def test_stored_log_probs_of_a_teacher_are_the_target(home, tmp_path):
    """The loss is KL(teacher || model) over its k tokens and all others as one; rows without a teacher are as usual."""
    ids, k, weights = [5, 6, 7, 8, 9, 10], 3, [0, 0, 1, 1, 1, 1]
    best = torch.randn(len(ids), 300, generator=torch.Generator().manual_seed(0)).log_softmax(-1).topk(k)
    tokens = {"input_ids": ids, "loss_mask": weights}
    stored = {"teacher_topk_ids": best.indices.tolist(), "teacher_topk_logprobs": best.values.tolist()}
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in (tokens | stored, tokens)))
    settings = config(home)
    settings.data.train_files = str(tmp_path / "rows.jsonl")
    run = Run(settings)
    taught, plain = run.conversations.ledgers
    losses = [run.trainable.validation_loss(pack_ledgers(own)) for own in ([taught], [plain], [taught, plain])]
    with torch.no_grad():
        logprobs = run.model.module(torch.tensor([ids])).logits[0, 1:-1].float().log_softmax(-1)
    own, theirs = logprobs.gather(-1, best.indices[2:]), best.values[2:]
    own, theirs = (torch.cat([x, (1 - x.exp().sum(-1, keepdim=True)).log()], -1) for x in (own, theirs))
    assert losses[0] == pytest.approx((theirs.exp() * (theirs - own)).sum(-1).mean().item(), abs=1e-5)
    assert losses[2] == pytest.approx((losses[0] + losses[1]) / 2, abs=1e-5)
    with pytest.raises(UserError, match="row 3: .* must have k numbers a token"):
        token_ledger(tokens | stored | {"teacher_topk_logprobs": [[0.0]] * len(ids)}, 300, "row 3")
    with pytest.raises(UserError, match="ids below 9"):
        token_ledger(tokens | stored, 9, "row 3")


def test_steps_and_micro_batches(home, tmp_path):
    settings = config(home)
    settings.trainer.total_training_steps = 2
    losses = {}
    for tokens in (90, 10_000):
        settings.trainer.max_token_len_per_gpu = tokens
        settings.trainer.output_dir = str(tmp_path / str(tokens))
        losses[tokens] = []
        sft(settings, lambda step, total, metrics, to=losses[tokens]: to.append(metrics["loss"]))
    assert len(losses[90]) == 2
    assert losses[90] == pytest.approx(losses[10_000], rel=1e-4)


def test_lora_is_merged_unless_told_otherwise(home, tmp_path):
    settings = config(home)
    settings.model.lora_rank = 4
    settings.trainer.total_training_steps = 3
    for merge in (True, False):
        settings.trainer.merge_lora = merge
        settings.trainer.output_dir = str(tmp_path / f"merge-{merge}")
        sft(copy.deepcopy(settings), lambda *_: None)
    assert (tmp_path / "merge-True" / "model.safetensors").exists()
    assert (tmp_path / "merge-False" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "merge-False" / "model.safetensors").exists()
    chat = Chat(load_tokenizer(settings.model), check="disable")
    conversations = read_conversations(settings.data, chat)
    merged, adapter = (held_loss(tmp_path / f"merge-{merge}", conversations) for merge in (True, False))
    assert merged == pytest.approx(adapter, rel=1e-3)


def test_parquet_says_the_same_as_jsonl(home, tmp_path):
    rows = [conversation(i) for i in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chat = Chat(load_tokenizer(Model(path=str(home / "model"))), check="disable")
    files = [str(tmp_path / f"rows.{kind}") for kind in ("jsonl", "parquet")]
    read = [read_conversations(SftData(train_files=file), chat) for file in files]
    assert [ledger.ids for ledger in read[0].ledgers] == [ledger.ids for ledger in read[1].ledgers]


def test_long_conversations_are_left_out_and_counted(home):
    chat = Chat(load_tokenizer(Model(path=str(home / "model"))), check="disable")
    everything = read_conversations(config(home).data, chat)
    lengths = sorted(map(len, everything.ledgers))
    some = read_conversations(SftData(train_files=str(home / "rows.jsonl"), max_length=lengths[10]), chat)
    assert all(len(ledger) <= lengths[10] for ledger in some.ledgers)
    assert some.too_long == 24 - len(some.ledgers) > 0
    with pytest.raises(UserError, match="none of 24 conversations fits into data.max_length=3"):
        read_conversations(SftData(train_files=str(home / "rows.jsonl"), max_length=3), chat)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"conversations": []}, "has no messages under 'messages'"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "needs a prompt and then an assistant message"),
        ({"messages": [{"content": "hi"}, {"role": "assistant", "content": "hi"}]}, "not OpenAI-style"),
    ],
)
def test_a_bad_row_is_named(home, tmp_path, row, message):
    (tmp_path / "bad.jsonl").write_text(json.dumps(conversation(0)) + "\n" + json.dumps(row))
    chat = Chat(load_tokenizer(Model(path=str(home / "model"))), check="disable")
    with pytest.raises(UserError, match=message) as caught:
        read_conversations(SftData(train_files=str(tmp_path / "bad.jsonl")), chat)
    assert "bad.jsonl:2" in str(caught.value)


def test_a_question_and_its_answer_make_a_conversation(home, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "What is 1 and 1?", "answer": "It is 2."}))
    chat = Chat(load_tokenizer(Model(path=str(home / "model"))), check="disable")
    data = SftData(train_files=str(tmp_path / "rows.jsonl"), prompt_key="question", response_key="answer")
    ledger = read_conversations(data, chat).ledgers[0]
    messages = [{"role": "user", "content": "What is 1 and 1?"}, {"role": "assistant", "content": "It is 2."}]
    assert ledger.ids == chat.transcript(messages).ids


def test_a_part_of_the_rows_and_arguments_for_the_template(home, tmp_path):
    settings = config(home)
    settings.data.train_max_samples = 5
    settings.data.val_files, settings.data.val_max_samples = settings.data.train_files, 3
    run = Run(settings)
    assert (len(run.conversations.ledgers), len(run.held_out)) == (5, 3)
    settings.data.train_max_samples = settings.data.val_max_samples = settings.trainer.total_training_steps = 0
    every = Run(settings)
    assert len(every.conversations.ledgers) == len(every.held_out) > 5
    assert every.total == settings.trainer.total_epochs * every.loader.steps_per_epoch
    settings.model.chat_template = "{{ motto }}" + load_tokenizer(settings.model).chat_template
    settings.data.apply_chat_template_kwargs = {"motto": "carry on"}
    run = Run(settings)
    assert run.tokenizer.decode(run.held_out[0].ids).startswith("carry on")


def test_held_out_conversations_are_validated_not_trained_on(home, tmp_path):
    (tmp_path / "held.jsonl").write_text("\n".join(json.dumps(conversation(i)) for i in range(30, 39)))
    settings = config(home)
    settings.data.val_files = str(tmp_path / "held.jsonl")
    settings.trainer.output_dir = str(tmp_path / "out")
    settings.trainer.total_training_steps = 5
    settings.trainer.test_freq = 2
    settings.trainer.logger = ["console", "file"]
    seen = {}
    result = sft(settings, lambda step, total, metrics: seen.update({step: metrics.get("val_loss")}))
    assert [step for step, loss in seen.items() if loss is not None] == [2, 4, 5]
    logged = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert [step.get("val/loss") for step in logged] == list(seen.values())
    chat = Chat(load_tokenizer(settings.model), check="disable")
    held = read_conversations(settings.data, chat, settings.data.val_files)
    assert result.val_loss == seen[5] == pytest.approx(held_loss(result.path, held), rel=1e-3)
    assert seen[5] < seen[2]


def test_what_is_due_after_each_epoch(home, tmp_path):
    settings = config(home)
    settings.data.val_files, settings.data.val_max_samples = settings.data.train_files, 2
    settings.trainer = replace(settings.trainer, output_dir=str(tmp_path), total_epochs=2)
    settings.trainer.test_freq = settings.trainer.save_freq = "after_each_epoch"
    seen = {}
    sft(settings, lambda step, total, metrics: seen.update({step: metrics.get("val_loss")}))
    assert [step for step, loss in seen.items() if loss is not None] == [3, 6]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["global_step_3", "global_step_6"]


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_resumed_run_ends_like_an_unbroken_one(home, tmp_path, lora_rank):
    def run(name, stop_at=None):
        settings = config(home)
        settings.model.lora_rank = lora_rank
        settings.trainer.output_dir = str(tmp_path / name)
        settings.trainer.total_training_steps = 6
        settings.trainer.save_freq = 2
        losses = {}

        def on_step(step, total, metrics):
            losses[step] = metrics["loss"]
            if step == stop_at:
                raise KeyboardInterrupt

        try:
            return losses, sft(settings, on_step)
        except KeyboardInterrupt:
            return losses, None

    whole, result = run("whole")
    broken, nothing = run("broken", stop_at=5)
    assert nothing is None
    rest, resumed = run("broken")
    assert list(rest) == [5, 6]
    assert broken | rest == whole
    weights = [load_model(Model(path=str(r.path)), device=CPU, seed=0).module.state_dict() for r in (result, resumed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert sorted(f.name for f in (tmp_path / "broken" / "checkpoints").iterdir()) == ["global_step_4", "global_step_6"]
    again, finished = run("broken")
    assert again == {}
    assert finished.steps == 6


def test_ctrl_c_saves_and_the_same_command_resumes(home, tmp_path, caplog):
    settings = config(home)
    settings.trainer.output_dir = str(tmp_path)
    settings.trainer.total_training_steps = 4
    taken = []

    def on_step(step, total, metrics):
        taken.append(step)
        if len(taken) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="step 2 is saved; the same command resumes from step 2"):
        sft(copy.deepcopy(settings), on_step)
    assert not (tmp_path / "model.safetensors").exists()
    sft(copy.deepcopy(settings), on_step)
    assert taken == [1, 2, 3, 4]
    assert "Resuming from step 2" in caplog.text
    # Once more: it says that all is done, and leaves the model as it is.
    assert sft(copy.deepcopy(settings), on_step).final_loss is None
    assert "This run has finished: all 4 steps are taken" in caplog.text
    assert taken == [1, 2, 3, 4]


def test_a_model_of_other_settings_is_set_aside(home, tmp_path, caplog):
    settings = config(home)
    settings.trainer.output_dir = str(tmp_path)
    settings.trainer.total_training_steps = 1
    for lr in (1e-2, 1e-2, 1e-3):
        settings.optim.lr = lr
        sft(copy.deepcopy(settings), lambda *_: None)
    (aside,) = (tmp_path / "checkpoints").iterdir()
    assert {"config.yaml", "model.safetensors", "tokenizer.json"} <= {path.name for path in aside.iterdir()}
    assert f"all its files are now in {aside}" in caplog.text
    assert load_model(Model(path=str(tmp_path)), device=CPU, seed=0).module is not None


def test_a_run_that_starts_over_keeps_its_own_checkpoints(home, tmp_path):
    def run(steps, **trainer):
        settings = config(home)
        settings.trainer = replace(
            settings.trainer,
            output_dir=str(tmp_path),
            total_training_steps=steps,
            save_freq=1,
            max_ckpt_to_keep=1,
            logger=["console", "file"],
            **trainer,
        )
        return sft(settings, lambda *_: None)

    saved = tmp_path / "checkpoints"
    run(3)
    run(2, resume_mode="disable")
    assert sorted(path.name for path in saved.iterdir()) == ["global_step_2", "superseded_1"]
    aside = {path.name for path in (saved / "superseded_1").iterdir()}
    assert aside > {"global_step_3", "metrics.jsonl", "config.yaml", "model.safetensors", "tokenizer.json"}
    assert main(["merge", str(tmp_path), str(tmp_path / "merged")]) == 0
    merged, own = (
        load_model(Model(path=str(p)), device=CPU, seed=0).module.state_dict() for p in (tmp_path / "merged", tmp_path)
    )
    assert all(torch.equal(tensor, merged[name]) for name, tensor in own.items())
    path = str(saved / "superseded_1" / "global_step_3")
    run(4, resume_mode="resume_path", resume_from_path=path)
    assert sorted(path.name for path in saved.iterdir()) == ["global_step_4", "superseded_1", "superseded_2"]
    run(4)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) >= 1


def test_the_command(home, tmp_path, capfd, monkeypatch):
    arguments = [
        "sft",
        f"model.path={home / 'model'}",
        f"data.train_files={home / 'rows.jsonl'}",
        f"trainer.output_dir={tmp_path / 'out'}",
        "trainer.device=cpu",
        "trainer.total_training_steps=3",
        "trainer.log_freq=2",
    ]
    assert main(arguments) == 0
    shown = capfd.readouterr().err
    assert [line.split()[2] for line in shown.splitlines() if line.startswith("sft step")] == ["1/3", "2/3", "3/3"]
    assert "24 conversations, 3 steps, final loss" in shown
    assert (tmp_path / "out" / "model.safetensors").is_file()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(arguments) == 2
    assert "without torchrun" in capfd.readouterr().err
    monkeypatch.undo()
    assert main(["sft", "model.path=null"]) == 2
    capfd.readouterr()
    for wrong in ("trainer.save_freq=each_epoch", "data.max_length=0"):
        assert main([*arguments, wrong]) == 2
        assert f"{wrong}: must be " in capfd.readouterr().err
    assert main([*arguments, "optim.lr_scheduler_type=wrong"]) == 2
