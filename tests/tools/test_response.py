import math

import pytest

from agentrl.tools import ToolResponse
from agentrl.tools.response import read_answer, read_number
from agentrl.trajectory.trajectory import Outcome


def same(text):
    return text


@pytest.mark.parametrize(
    ("answer", "text", "reward", "metrics"),
    [
        ("hello", "hello", 0.0, {}),
        (None, "", 0.0, {}),
        (7, "7", 0.0, {}),
        ({"a": "ä"}, '{"a": "ä"}', 0.0, {}),
        ([1, 2], "[1, 2]", 0.0, {}),
        ({"text": "only text"}, "only text", 0.0, {}),
        (ToolResponse(text="t"), "t", 0.0, {}),
        (("one",), "one", 0.0, {}),
        (("two", 1), "two", 1.0, {}),
        (("three", None, None), "three", 0.0, {}),
        ((ToolResponse(text="t"), 0.5, {"k": 1}), "t", 0.5, {"k": 1}),
        (({"text": "t", "image": ["i"]}, True, {}), "t", 1.0, {}),
    ],
)
def test_every_form_of_return_is_read(answer, text, reward, metrics):
    result = read_answer(answer, same)
    assert (result.text, result.reward, result.metrics, result.outcome) == (text, reward, metrics, Outcome.OK)


def test_images_and_videos_come_along():
    result = read_answer((ToolResponse(image=["i"], video=["v"]), 0.0, {}), same)
    assert (result.text, result.images, result.videos) == ("", ["i"], ["v"])


def test_objects_of_verl_s_own_class_are_read():
    class Foreign:
        text, image, video = "from elsewhere", None, ["v"]

    assert read_answer(Foreign(), same).videos == ["v"]


@pytest.mark.parametrize("answer", [(), ("a", 0.0, {}, "more"), ("a", "many"), ("a", math.nan), ("a", 0.0, 3)])
def test_broken_returns_raise(answer):
    with pytest.raises((TypeError, ValueError)):
        read_answer(answer, same)


@pytest.mark.parametrize("field", ["image", "video"])
def test_an_image_or_video_outside_a_list_raises(field):
    with pytest.raises(ValueError, match=f"{field} is a str: put it in a list"):
        ToolResponse(**{field: "picture.png"})


def test_empty_and_text_only():
    assert ToolResponse().is_empty()
    assert ToolResponse(text="x").is_text_only()
    assert not ToolResponse(text="x", image=["i"]).is_text_only()


def test_infinite_rewards_raise():
    with pytest.raises(ValueError, match="inf"):
        read_number(math.inf)
