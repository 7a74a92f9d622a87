"""The examples in the docs run as they stand there."""

import re
from pathlib import Path

from agentrl.interactions import load_interactions
from agentrl.trajectory.trajectory import Outcome

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name):
    """Code blocks of a page, by language."""
    found = {}
    for language, code in re.findall(r"```(\w+)\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL):
        found.setdefault(language, []).append(code)
    return found


async def test_the_tool_and_the_function(write, load):
    page = blocks("tools.md")
    dice, functions = page["python"]
    write("dice.py", dice)
    tools = load(write("dice.yaml", page["yaml"][0]), write("functions.py", functions))
    session = tools.open("k", {"roll": {"create_kwargs": {"seed": 7}}}, None)
    await session.start()
    rolled = await session.call("roll", {"sides": 6})
    assert re.fullmatch(r"You rolled [1-6]\.", rolled.text)
    assert (await session.call("roll", {"sides": 101})).text == "Error: there are no dice with more than 100 sides."
    assert (await session.call("roll", {"sides": 1})).outcome is Outcome.MODEL_ERROR
    assert (await session.call("convert", {"kilometres": 10})).text == "6.21 miles"
    assert await session.rewards() == {"roll": 0.0}
    await session.release()


async def test_the_interaction(write):
    page = blocks("interactions.md")
    write("polite.py", page["python"][0])
    interactions = load_interactions(write("polite.yaml", page["yaml"][0]))
    session = interactions.open("k", {"name": "polite", "word": "bitte"})
    await session.start()
    first = await session.respond([{"role": "assistant", "content": "Give me that."}])
    assert (first.stop, first.text) == (False, "Say bitte!")
    second = await session.respond([{"role": "assistant", "content": "Bitte!"}])
    assert (second.stop, await session.score()) == (True, 1.0)
    await session.finalize()


def test_every_ready_made_file_is_in_the_tables():
    for folder, page in (("tools", "tools.md"), ("interactions", "interactions.md")):
        text = (DOCS / page).read_text(encoding="utf-8")
        for file in sorted((DOCS.parent / folder).glob("*.yaml")):
            assert f"`{folder}/{file.name}`" in text
