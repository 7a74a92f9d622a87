import pytest

from agentrl.core.errors import InfraError, UserError
from agentrl.interactions import load_interactions

CLASS = """
from verl.interactions.base import BaseInteraction

class WeatherInteraction(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        return True, f"{self.name} {self.config}", 0.5, {}

class Silent(BaseInteraction):
    pass

class Forgot(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        print(messages)

class Few(BaseInteraction):
    async def generate_response(self, messages):
        return True, ""

class NotOne:
    def __init__(self, config):
        pass
"""


@pytest.fixture
def load(write):
    def load(text):
        write("weather.py", CLASS)
        return load_interactions(write("interactions.yaml", text))

    return load


def test_no_path_gives_an_empty_set():
    interactions = load_interactions(None)
    assert not interactions
    with pytest.raises(UserError, match="names 'x': name one of those loaded .none, set rollout.multi_turn"):
        interactions.open("k", {"name": "x"})


async def test_the_name_comes_from_the_class_and_reaches_the_config(load):
    interactions = load("interaction:\n  - {class_name: weather.WeatherInteraction, config: {city: Paris}}\n")
    session = interactions.open("k", {})
    await session.start()
    reply = await session.respond([{"role": "assistant", "content": "hi"}])
    assert reply.text == "weather {'city': 'Paris', 'name': 'weather'}"
    await session.finalize()


TWO = """
interaction:
  - {name: a, class_name: weather.WeatherInteraction}
  - {class_name: weather.WeatherInteraction}
"""


async def test_rows_choose_by_name(load):
    interactions = load(TWO)
    assert interactions.open("k", {"name": "a"}).runner.name == "a"
    for kwargs, words in (({}, "has no name"), ({"name": "c"}, "names 'c'")):
        with pytest.raises(UserError, match=rf"interaction_kwargs {words}: name one of those loaded \(a, weather\)"):
            interactions.open("k", kwargs)


async def test_a_method_that_blocks_runs_in_a_thread_where_asked(write):
    source = CLASS.replace("        return True", "        import time\n        time.sleep(30)\n        return True")
    write("slow_weather.py", source)
    config = "{timeout: 0.2, in_thread: true}"
    yaml = f"interaction:\n  - {{class_name: slow_weather.WeatherInteraction, config: {config}}}\n"
    session = load_interactions(write("slow.yaml", yaml)).open("k", {})
    await session.start()
    with pytest.raises(InfraError, match="TimeoutError: no answer within 0.2 s"):
        await session.respond([{"role": "assistant", "content": "hi"}])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "interaction:\n" + "  - {name: a, class_name: weather.WeatherInteraction}\n" * 2,
            "named 'a' is listed already",
        ),
        ("interactions: []\n", "has no list 'interaction'"),
        ("interaction:\n  - {name: a}\n", "interaction[0] has no class_name"),
        ("interaction:\n  - {class_name: weather.NotOne}\n", "lacks start_interaction, generate_response"),
        ("interaction:\n  - {class_name: weather.Missing}\n", "has no class 'Missing'"),
        ("interaction:\n  - {class_name: weather.WeatherInteraction, config: {timeout: -1}}\n", "config.timeout is -1"),
        (
            "interaction:\n  - {class_name: weather.Silent}\n",
            "weather.Silent has no generate_response(): write `async def",
        ),
        (
            "interaction:\n  - {class_name: weather.Forgot}\n",
            "Forgot.generate_response never returns anything: return (sh",
        ),
        ("interaction:\n  - {class_name: weather.Few}\n", "Few.generate_response(messages) cannot be called with"),
        (
            "interaction:\n  - {class_name: weather.WeatherInteraction, timeout: 1}\n",
            "interaction[0]: unknown key 'timeout'",
        ),
        (
            "interaction:\n  - {class_name: weather.WeatherInteraction, config: {time_out: 1}}\n",
            "did you mean timeout?",
        ),
        (
            "interaction:\n  - {class_name: weather.WeatherInteraction, config: {in_thread: 1}}\n",
            "in_thread is 1: write",
        ),
    ],
)
def test_mistakes_give_one_line(load, text, words):
    with pytest.raises(UserError) as caught:
        load(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_verl_s_gsm8k_interaction_by_its_name(load):
    name = "verl.interactions.gsm8k_interaction.Gsm8kInteraction"
    assert list(load(f"interaction:\n  - {{name: gsm8k, class_name: {name}, config: {{}}}}\n").runners) == ["gsm8k"]
