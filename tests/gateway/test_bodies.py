"""Bodies that go on after the one before have the value of parsing all of their text, and share its items."""

import json
import random
from typing import Any

import pytest

from agentrl.gateway.bodies import JsonReader, parse
from agentrl.http.refusals import Refused

Fields = dict[str, Any]


def texts(before: Fields, after: Fields, compact: bool) -> list[bytes]:
    """Bodies of a conversation that grows, with fields before and after its history."""
    said: list[Any] = [{"role": "user", "content": 'say "messages":[1] \u00e9 ],}{'}]
    made = []
    for turn in range(6):
        body = {**before, "messages": said, **after}
        made.append(json.dumps(body, separators=(",", ":") if compact else None, ensure_ascii=turn == 0).encode())
        said = [*said, {"role": "assistant", "content": None, "calls": [[turn], {}]}, {"role": "tool", "content": "]"}]
    return made


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"model": "m"}, {}),
        ({}, {"model": "m", "stop": ["a"]}),
        ({"stop": ["a"]}, {"tools": [{"messages": []}], "stream": True}),
        ({"messages_": []}, {"stop": []}),
    ],
)
def test_a_body_that_goes_on_is_read_as_a_whole(before: Fields, after: Fields, compact: bool) -> None:
    reader, last = JsonReader(), None
    for text in texts(before, after, compact)[1:]:
        body = reader.read(text, "messages")
        assert body == json.loads(text)
        assert list(body) == list(json.loads(text))
        if last is not None:  # the items of the last body are not parsed again
            assert all(item is known for item, known in zip(body["messages"], last["messages"], strict=False))
        last = body


def test_any_other_body_is_read_as_a_whole() -> None:
    rng, reader = random.Random(0), JsonReader()
    lists = ("messages", "stop", "tools")
    for _ in range(2_000):
        names = rng.sample([*lists, "model"], rng.randint(1, 4))
        body = {name: rng.choices(["]", 1, [], [2], {"messages": []}], k=rng.randint(0, 3)) for name in names}
        for _ in range(rng.randint(1, 4)):
            text = json.dumps(body, separators=(",", ":")).encode()
            assert reader.read(text, "messages") == body
            name = rng.choice(names)
            body[name] = [*body[name], rng.choice(["]", {"stop": []}, 3])]


@pytest.mark.parametrize(
    "text",
    [
        b'{"messages":[1,2,],"model":"m"}',
        b'{"messages":[1,2,]],"model":"m"}',
        b'{"messages":[1,2,"model":"m"}],"model":"m"}',
        b'{"messages":[1,2,3],"model":"m"}]',
        b"[]",
    ],
)
def test_a_broken_body_is_refused_after_a_sound_one(text: bytes) -> None:
    reader = JsonReader()
    for sound in (b'{"messages":[1],"model":"m"}', b'{"messages":[1,2],"model":"m"}'):
        reader.read(sound, "messages")
    with pytest.raises(Refused):
        reader.read(text, "messages")
    assert reader.read(b'{"messages":[1,2,3],"model":"m"}', "messages") == parse(b'{"messages":[1,2,3],"model":"m"}')
