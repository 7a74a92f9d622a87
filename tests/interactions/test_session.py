"""Started once, finalized exactly once, whatever happens; trouble is an InfraError."""

import asyncio
from collections import Counter

import pytest

from agentrl.core.errors import InfraError

MESSAGES = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]

BOOKKEEPER = """
    import asyncio
    from collections import Counter
    class UserInteraction(BaseInteraction):
        def __init__(self, config):
            super().__init__(config)
            self.started, self.ended, self.turns = Counter(), Counter(), {}
        async def start_interaction(self, instance_id=None, delay=0.0, **kwargs):
            self.started[instance_id] += 1
            await asyncio.sleep(delay)
            self.turns[instance_id] = 0
            return instance_id
        async def generate_response(self, instance_id, messages, mood="calm", **kwargs):
            if mood == "hang":
                await asyncio.sleep(30)
            if mood == "fail":
                raise KeyError("mood")
            self.turns[instance_id] += 1
            messages[-1]["content"] = "changed"
            return self.turns[instance_id] >= 2, f"turn {self.turns[instance_id]}, {mood}", 0.25, {"n": 1}
        async def calculate_score(self, instance_id, **kwargs):
            return self.turns[instance_id] / 2
        async def finalize_interaction(self, instance_id, **kwargs):
            self.ended[instance_id] += 1
            self.turns.pop(instance_id, None)
"""


@pytest.fixture
def interactions(one):
    return one(BOOKKEEPER, "{timeout: 0.2}")


def book(interactions):
    return interactions.runners["user"].methods["start_interaction"].fn.__self__


def assert_all_ended_once(interactions):
    assert book(interactions).ended == book(interactions).started
    assert set(book(interactions).ended.values()) <= {1}
    assert book(interactions).turns == {}


@pytest.mark.prevents("interactions, MCP and tool classes of older versions are gone")
async def test_a_conversation(interactions):
    session = interactions.open("k", {"mood": "glad"})
    await session.start()
    first, second = await session.respond(MESSAGES), await session.respond(MESSAGES)
    assert (first.stop, first.text, first.score, first.extra) == (False, "turn 1, glad", 0.25, {"n": 1})
    assert second.stop
    assert await session.score() == 1.0
    await session.finalize()
    await session.finalize()
    assert_all_ended_once(interactions)


async def test_the_user_s_code_cannot_change_the_history(interactions):
    session = interactions.open("k", {})
    await session.start()
    await session.respond(MESSAGES)
    assert MESSAGES[-1]["content"] == "answer"
    await session.finalize()


@pytest.mark.parametrize(("mood", "words"), [("hang", "no answer within 0.2 s"), ("fail", "KeyError: 'mood'")])
async def test_trouble_is_an_infrastructure_error(interactions, mood, words):
    session = interactions.open("k", {"mood": mood})
    await session.start()
    with pytest.raises(InfraError, match=f"interaction 'user': generate_response failed: .*{words}"):
        await session.respond(MESSAGES)
    await session.finalize()
    assert_all_ended_once(interactions)


async def test_a_start_that_hangs_is_finalized(interactions):
    session = interactions.open("k", {"delay": 30})
    with pytest.raises(InfraError):
        await session.start()
    await session.finalize()
    assert_all_ended_once(interactions)


async def test_a_session_that_never_started_is_not_finalized(interactions):
    await interactions.open("k", {}).finalize()
    assert book(interactions).ended == Counter()


async def test_a_thousand_conversations_leave_nothing_behind(one):
    interactions = one(BOOKKEEPER, "{timeout: 2}")

    async def conversation(i):
        session = interactions.open(f"t{i}", {"mood": {0: "hang", 1: "fail"}.get(i % 10, "calm")})
        try:
            await session.start()
            await session.respond(MESSAGES)
            return await session.score()
        finally:
            await session.finalize()

    tasks = [asyncio.create_task(conversation(i)) for i in range(1000)]
    await asyncio.sleep(0.02)
    for task in tasks[5::10]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await interactions.close()
    assert results[2] == 0.5
    assert sum(isinstance(r, InfraError) for r in results) == 200
    assert_all_ended_once(interactions)


async def test_plain_methods_run_off_the_event_loop(one):
    interactions = one("""
        import threading
        class UserInteraction(BaseInteraction):
            def start_interaction(self, instance_id=None):
                return "own-id"
            def generate_response(self, instance_id, messages):
                return False, f"{instance_id} {threading.current_thread() is threading.main_thread()}", 1, None
            def finalize_interaction(self, instance_id):
                pass
    """)
    session = interactions.open("k", {"ground_truth": "not taken by any"})
    await session.start()
    assert (await session.respond(MESSAGES)).text == "own-id False"
    await session.finalize()


async def test_without_calculate_score_the_last_turn_s_score_counts(one):
    interactions = one("""
        class UserInteraction(BaseInteraction):
            async def generate_response(self, instance_id, messages, **kwargs):
                return False, "", len(messages), {}
    """)
    session = interactions.open("k", {})
    await session.start()
    assert await session.score() == 0.0
    session = interactions.open("k", {})
    await session.start()
    await session.respond(MESSAGES)
    await session.respond(MESSAGES[:1])
    assert await session.score() == 1.0
    await session.finalize()


@pytest.mark.parametrize("answer", ["'text'", "(True,)", "(True, 'a', 'b', {})", "(True, 'a', float('nan'), {})"])
async def test_returns_of_another_shape_say_what_was_expected(one, answer):
    interactions = one(f"""
        class UserInteraction(BaseInteraction):
            async def generate_response(self, instance_id, messages, **kwargs):
                return {answer}
    """)
    session = interactions.open("k", {})
    await session.start()
    with pytest.raises(InfraError, match="generate_response failed"):
        await session.respond(MESSAGES)
    await session.finalize()


async def test_a_failing_finalize_raises_nothing(one):
    for body in ("raise OSError('no')", "await asyncio.sleep(30)"):
        interactions = one(
            f"""
            import asyncio
            class UserInteraction(BaseInteraction):
                async def generate_response(self, instance_id, messages, **kwargs):
                    return True, ""
                async def finalize_interaction(self, instance_id, **kwargs):
                    {body}
            """,
            "{timeout: 0.1}",
        )
        session = interactions.open("k", {})
        await session.start()
        await session.finalize()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [("self", 3.0), ("self, instance_id, answer", 0.5), ("self, instance_id, ground_truth", 3.0)],
)
async def test_verl_s_base_signatures_have_no_instance_id(one, scores, expected):
    interactions = one(f"""
        class UserInteraction(BaseInteraction):
            ended = 0
            async def generate_response(self, instance_id, messages, **kwargs):
                return True, "", 0.5, {{}}
            async def calculate_score({scores}) -> float:
                return 3.0
            async def finalize_interaction(self) -> None:
                UserInteraction.ended += 1
    """)
    session = interactions.open("k", {"ground_truth": "5"})
    await session.start()
    await session.respond(MESSAGES)
    assert await session.score() == expected
    await session.finalize()
    assert type(session.runner.methods["finalize_interaction"].fn.__self__).ended == 1
