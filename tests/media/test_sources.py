"""Rows with images, in every form that verl's files hold them, to tokens and tensors."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from agentrl.chat import Chat
from agentrl.chat.media.processor import Processor
from agentrl.chat.media.sources import open_image, open_video
from agentrl.config.schema import Data, Model
from agentrl.core.errors import InfraError, UserError
from agentrl.data import load_dataset, read_rows
from agentrl.training import load_processor
from agentrl.trajectory.medium import collapsed, media_of
from tests.chat import realia
from tests.media import vision_model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model.folder(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def chat(place: Path) -> Chat:
    tokenizer = vision_model.load(place)
    return Chat(tokenizer, processor=load_processor(Model(path=str(place)), tokenizer))


def png(colour: str = "red", size: tuple[int, int] = (56, 28)) -> bytes:
    buffer = BytesIO()
    vision_model.picture(colour, size).save(buffer, format="PNG")
    return buffer.getvalue()


def write(folder: Path, **columns: Any) -> str:
    file = folder / "rows.parquet"
    pq.write_table(pa.table({name: [value] for name, value in columns.items()}), file)
    return str(file)


ASK = [{"role": "user", "content": "<image>what colour, and <image>?"}]


def test_a_row_s_images_go_where_its_prompt_says(tmp_path: Path, chat: Chat) -> None:
    images = [{"bytes": png("red")}, {"bytes": png("blue", (28, 28))}]
    (row,) = read_rows(write(tmp_path, prompt=ASK, images=images))
    kinds = [part["type"] for part in row.prompt[0]["content"]]
    assert kinds == ["image", "text", "image", "text"]
    media = media_of(chat.see(row.prompt))
    assert [m.source.getpixel((0, 0)) for m in media] == [(255, 0, 0), (0, 0, 255)]
    assert [len(m.ids) for m in media] == [2, 1]


def test_other_columns_and_videos(tmp_path: Path) -> None:
    ask = [{"role": "user", "content": "<video>and <image>"}]
    file = write(tmp_path, prompt=ask, pictures=[{"bytes": png()}], films=[{"video": "a.mp4"}])
    (row,) = load_dataset(Data(image_key="pictures", video_key="films"), file, None)
    assert row.prompt[0]["content"][0] == {"type": "video", "video": {"video": "a.mp4"}}
    (plain,) = load_dataset(Data(), file, None)
    assert plain.prompt == ask


def test_parts_without_pictures_are_filled(tmp_path: Path) -> None:
    ask = [{"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "?"}]}]
    (row,) = read_rows(write(tmp_path, prompt=ask, images=["a.png"]))
    assert row.prompt[0]["content"] == [{"type": "image", "image": "a.png"}, {"type": "text", "text": "?"}]


@pytest.mark.parametrize(
    ("images", "words"), [([b"x"], "more places than its 'images'"), ([b"x"] * 3, "holds more than its prompt shows")]
)
def test_a_miscount_is_refused(tmp_path: Path, images: list[bytes], words: str) -> None:
    with pytest.raises(UserError, match=words):
        list(read_rows(write(tmp_path, prompt=ASK, images=images)))


def test_every_form_of_an_image_is_the_same(tmp_path: Path, chat: Chat) -> None:
    file = tmp_path / "a picture.png"
    file.write_bytes(png())
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    forms: list[Any] = [
        {"type": "image", "image": vision_model.picture()},
        {"type": "image", "image": png()},
        {"type": "image", "image": {"bytes": png()}},
        {"type": "image", "bytes": png()},
        {"type": "image", "image": {"image": vision_model.picture()}},
        {"type": "image", "image": str(file)},
        {"type": "image", "path": str(file)},
        {"type": "image", "image": f"file://{str(file).replace(' ', '%20')}"},
        {"type": "image", "image": url},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    media = media_of(chat.see([{"role": "user", "content": forms}]))
    assert len(media) == len(forms)
    for medium in media:
        assert medium.features["pixel_values"].equal(media[0].features["pixel_values"])
    # The same bytes are processed once.
    assert media[1] is not media[2]
    assert media_of(chat.see([{"role": "user", "content": forms[2:3]}]))[0] is media[2]


def test_pixels_are_bounded_as_the_processor_or_the_image_says(chat: Chat) -> None:
    sizes = {
        (): (84, 84),  # the processor's own bound
        (("max_pixels", 28 * 56),): (28, 28),
        (("min_pixels", 56 * 56), ("max_pixels", 56 * 56)): (56, 56),
        (("resized_height", 28), ("resized_width", 56)): (56, 28),
    }
    for wishes, size in sizes.items():
        part = {"type": "image", "image": vision_model.picture(size=(200, 200)), **dict(wishes)}
        (medium,) = media_of(chat.see([{"role": "user", "content": [part]}]))
        assert medium.source.size == size
        assert len(medium.ids) == size[0] * size[1] // 28**2
    with pytest.raises(ValueError, match="aspect ratio"):
        open_image(vision_model.picture(size=(1, 1000)), factor=28, bounds=(28 * 28, 10**6))


def test_transparent_is_white() -> None:
    glass = Image.new("RGBA", (28, 28), (255, 0, 0, 0))
    assert open_image(glass, factor=None, bounds=(0, 0)).getpixel((0, 0)) == (255, 255, 255)


def test_frames_make_a_video() -> None:
    frames, fps = open_video({"video": [vision_model.picture(), png()], "fps": 1}, factor=28, bounds=(784, 784))
    assert [frame.size for frame in frames] == [(28, 28)] * 2
    assert fps == 1


@pytest.mark.parametrize("part", [{"type": "image"}, {"type": "image", "image": "/no/such.png"}])
def test_what_cannot_be_read_is_said(chat: Chat, part: dict) -> None:
    with pytest.raises(UserError, match="an image cannot be read"):
        chat.see([{"role": "user", "content": [part]}])


def test_a_model_of_text_alone(chat: Chat) -> None:
    blind, part = Processor(), {"type": "image", "image": vision_model.picture()}
    with pytest.raises(UserError, match="cannot be shown an image: it reads text alone"):
        blind.see([{"role": "user", "content": [part]}])
    told = blind.see([{"role": "tool", "content": [part, {"type": "text", "text": "a dot"}]}])
    assert told[0]["content"] == "[image]\na dot"


def test_a_text_that_spells_the_image_token_is_text(chat: Chat) -> None:
    """Alone, and beside an image; tokens that claim to be of no image are refused."""
    alone = chat.prompt([{"role": "user", "content": "look: <|image_pad|>"}])
    chat.processor.check(alone, [])
    parts = [{"type": "text", "text": "<|vision_start|><|image_pad|>"}, {"type": "image", "image": {"bytes": png()}}]
    messages = chat.see([{"role": "user", "content": parts}])
    ids = chat.prompt(messages)
    chat.processor.check(ids, media_of(messages))
    assert "<|vision_start|><|image_pad|><|vision_start|>" in chat.decode(ids)
    with pytest.raises(InfraError, match="no image belongs to it"):
        chat.processor.check(ids, [])


@pytest.mark.parametrize("template", ["qwen2_5_vl", "qwen3_vl", "chatml_tools"])
def test_tokens_are_those_of_the_processor_itself(chat: Chat, place: Path, template: str) -> None:
    """With the models' real templates: one prompt as transformers' processor encodes it, and a tool's answer as the
    rest of a whole render."""
    tokenizer = vision_model.load(place)
    shown = Chat(tokenizer, chat_template=realia.template(template), processor=chat.processor)
    part = {"type": "image", "image": vision_model.picture(size=(84, 56))}
    asked = shown.see([{"role": "user", "content": [part, {"type": "text", "text": "what is it?"}, part]}])
    ids = shown.prompt(asked)
    processor: Any = chat.processor.processor
    text = tokenizer.apply_chat_template(
        asked, tokenize=False, add_generation_prompt=True, chat_template=realia.template(template)
    )
    pictures = [medium.source for medium in media_of(asked)]
    whole = processor(text=[text], images=pictures, return_tensors="pt")
    assert ids == whole["input_ids"][0].tolist()
    answer = {"role": "assistant", "content": "let me see"}
    looked = shown.see([{"role": "tool", "content": [part, {"type": "text", "text": "closer"}]}])
    said = tokenizer.encode("let me see<|im_end|>", add_special_tokens=False)
    pieces = shown.observation(looked, closed=True, last=said[-1])
    together = [*ids, *said, *(token for _, piece in pieces for token in piece)]
    assert together == shown.prompt([*asked, answer, *looked])
    assert shown.check_trajectory([*asked, answer, *looked], [*ids, *said]) is None
    media = media_of([*asked, *looked])
    short = collapsed(together, media)
    assert sum(token == media[0].short[0] for token in short) == 3
    assert len(together) - len(short) == 3 * 5


def test_a_processor_is_loaded_once(place: Path) -> None:
    """For those who train, those who sample and those who read rows."""
    tokenizer = vision_model.load(place)
    one, other = (load_processor(Model(path=str(place)), tokenizer) for _ in range(2))
    assert one.processor is other.processor
