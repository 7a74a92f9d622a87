"""Supervised training on conversations with images: what the model is shown, what it learns, what is refused."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.chat import Chat
from agentrl.config.schema import Model, Optim
from agentrl.config.schema.sft import SftConfig, SftData, SftTrainer
from agentrl.core.errors import UserError
from agentrl.sft import sft
from agentrl.training import load_processor
from agentrl.training.sft.conversations import read_conversations
from tests.media import vision_model


def png(colour: str) -> dict[str, Any]:
    buffer = BytesIO()
    vision_model.picture(colour).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that sees, and captions in the layout of verl's VLM example."""
    place = vision_model.folder(tmp_path_factory.mktemp("vision"))
    talk = [{"role": "user", "content": "<image>Which colour?"}, {"role": "assistant", "content": "COLOUR"}]
    rows = [
        {"messages": [talk[0], {**talk[1], "content": colour}], "images": [png(colour)]}
        for colour in ("red", "blue") * 4
    ]
    pq.write_table(pa.Table.from_pylist(rows), place / "rows.parquet")
    return place


def test_a_run_learns_what_it_sees(place: Path, tmp_path: Path) -> None:
    config = SftConfig(
        data=SftData(train_files=str(place / "rows.parquet"), train_batch_size=4),
        model=Model(path=str(place)),
        optim=Optim(lr=1e-2),
        trainer=SftTrainer(output_dir=str(tmp_path), total_training_steps=16, device="cpu"),
    )
    losses = []
    sft(config, lambda step, total, metrics: losses.append(metrics["loss"]))
    assert losses[-1] < 0.1 < losses[0]  # of "red" and "blue" after equal words, a blind model knows 4 of 5 letters
    assert load_processor(Model(path=str(tmp_path)), vision_model.load(tmp_path)).processor is not None


def test_what_a_row_becomes(place: Path) -> None:
    data = SftData(train_files=str(place / "rows.parquet"))
    tokenizer = vision_model.load(place)
    chat = Chat(tokenizer, check="disable", processor=load_processor(Model(path=str(place)), tokenizer))
    ledger = read_conversations(data, chat).ledgers[0]
    assert [medium.kind for medium in ledger.media] == ["image"]
    assert chat.decode([i for i, trained in zip(ledger.ids, ledger.mask, strict=True) if trained]) == "red<|im_end|>"
    data.max_length, data.truncation = len(ledger) - 1, "right"
    with pytest.raises(UserError, match=r"rows.parquet:1: a conversation of \d+ tokens with images .* cannot be cut"):
        read_conversations(data, chat)
    with pytest.raises(UserError, match=r"rows.parquet:1: model.path cannot be shown an image"):
        read_conversations(data, Chat(tokenizer, check="disable"))
    data = SftData(train_files=str(place / "rows.parquet"), image_key="pictures")
    ledger = read_conversations(data, Chat(tokenizer, check="disable")).ledgers[0]
    assert "<image>Which colour?" in chat.decode(ledger.ids)
