import pytest

from agentrl.core.errors import UserError
from agentrl.interactions import load_interactions


def said(text):
    return [{"role": "user", "content": "99?"}, {"role": "assistant", "content": text}]


@pytest.fixture
def checker():
    return load_interactions("interactions/checker.yaml")


async def test_right_ends_the_conversation_with_a_score(checker):
    session = checker.open("k", {"ground_truth": 72})
    await session.start()
    reply = await session.respond(said("48 + 24 = 72"))
    assert (reply.stop, reply.score, await session.score()) == (True, 1.0, 1.0)
    await session.finalize()


async def test_wrong_earns_a_hint_then_the_end(checker):
    session = checker.open("k", {"name": "checker", "ground_truth": "1,000", "hint": "Mind the zeros."})
    await session.start()
    replies = [await session.respond(said(text)) for text in ("#### 100", "No idea.", r"\boxed{10}")]
    assert [reply.stop for reply in replies] == [False, False, True]
    assert replies[0].text == "100 is wrong. Mind the zeros."
    assert replies[1].text == "There is no answer in what you wrote. Mind the zeros."
    assert await session.score() == 0.0
    await session.finalize()


async def test_mended_in_time(checker):
    session = checker.open("k", {"ground_truth": "5"})
    await session.start()
    assert not (await session.respond(said("4"))).stop
    assert (await session.respond(said("#### 5"))).stop
    assert await session.score() == 1.0
    await session.finalize()


async def test_only_the_model_s_last_words_count(checker):
    session = checker.open("k", {"ground_truth": "99"})
    await session.start()
    assert not (await session.respond(said("I cannot tell."))).stop
    assert not (await session.respond([*said("98"), {"role": "tool", "content": "99"}])).stop
    assert not (
        await session.respond([{"role": "user", "content": "99"}, {"role": "assistant", "content": None}])
    ).score
    await session.finalize()


async def test_a_row_without_ground_truth_is_the_user_s_mistake(checker):
    session = checker.open("k", {})
    with pytest.raises(UserError, match="interaction_kwargs has no ground_truth: add it to the row"):
        await session.start()
    await session.finalize()


async def test_gsm8k_has_no_limit_of_its_own():
    session = load_interactions("interactions/gsm8k.yaml").open(
        "k", {"name": "gsm8k", "query": "?", "ground_truth": "3"}
    )
    await session.start()
    assert not any([(await session.respond(said("4"))).stop for _ in range(20)])
    assert (await session.respond(said("#### 3"))).stop
    await session.finalize()


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("#### 72", True),
        ("so\n#### 7,2 apples", True),
        ("The answer is 72", False),
        ("#### $72", False),
        ("#### 72.0", False),
        ("#### 72" + "." * 400, False),
        ("#### 71\n#### 72", True),
        ("", False),
    ],
)
async def test_gsm8k_says_what_verl_s_interaction_says(words, right):
    session = load_interactions("interactions/gsm8k.yaml").open("k", {"name": "gsm8k", "ground_truth": "72"})
    await session.start()
    assert await session.score() == 0.0
    reply = await session.respond(said(words))
    wrong = "Your response is incorrect! You need to reflect on your answer and try again."
    assert (reply.stop, reply.score) == (right, float(right))
    assert reply.text == ("Your response is correct!" if right else wrong)
    assert await session.score() == float(right)
    await session.finalize()


async def test_gsm8k_without_ground_truth_is_the_user_s_mistake():
    session = load_interactions("interactions/gsm8k.yaml").open("k", {"name": "gsm8k"})
    with pytest.raises(UserError, match="interaction_kwargs has no ground_truth: add it to the row"):
        await session.start()
    await session.finalize()


async def test_nothing_is_kept_after_the_end(checker):
    session = checker.open("k", {"ground_truth": "1"})
    await session.start()
    await session.finalize()
    assert checker.runners["checker"].methods["finalize_interaction"].fn.__self__.questions == {}
