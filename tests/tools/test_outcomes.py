"""Whose fault it was: timeouts, retries, on_error, concurrency, with real clocks and real threads."""

import asyncio
import logging
import sys
import time

import pytest

from agentrl.core.clocks import listening
from agentrl.core.errors import InfraError
from agentrl.trajectory.trajectory import Outcome

CALL = ("echo", {"text": "hi"})


async def one_call(tools, *call):
    session = tools.open("k", {}, None)
    try:
        return await session.call(*(call or CALL))
    finally:
        await session.release()


async def test_the_model_s_mistakes_come_back_in_words(one_tool):
    tools = one_tool("""
        class Tool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                raise {"m": ModelError, "a": ToolArgumentError}[parameters["text"]]("Not like this.")
    """)
    for text in ("m", "a"):
        result = await one_call(tools, "echo", {"text": text})
        assert (result.text, result.outcome) == ("Not like this.", Outcome.MODEL_ERROR)
    unknown = await one_call(tools, "eco", {})
    assert (unknown.text, unknown.outcome) == (
        "Error: there is no tool 'eco'. The tools are: echo.",
        Outcome.MODEL_ERROR,
    )
    wrong = await one_call(tools, "echo", {"text": 1})
    assert "parameter 'text' must be string, got integer 1" in wrong.text


async def test_a_bad_call_never_reaches_the_tool(one_tool):
    tools = one_tool("""
        class Tool(BaseTool):
            async def create(self, instance_id=None, **kwargs):
                raise RuntimeError("must not be called")
            async def execute(self, instance_id, parameters, **kwargs):
                raise RuntimeError("must not be called")
    """)
    assert (await one_call(tools, "echo", {})).outcome is Outcome.MODEL_ERROR


BROKEN = """
    class Tool(BaseTool):
        tries = 0
        async def execute(self, instance_id, parameters, **kwargs):
            type(self).tries += 1
            if self.tries < self.config.get("right_at", 99):
                raise OSError("the disk\\nis full")
            return f"try {self.tries}"
"""


async def test_an_exception_is_an_infrastructure_error_of_one_line(one_tool):
    result = await one_call(one_tool(BROKEN))
    assert (result.outcome, result.text) == (Outcome.INFRA_ERROR, "")
    assert result.error == "tool 'echo': execute failed: OSError: the disk is full"


async def test_tell_model_shows_it_instead(one_tool):
    result = await one_call(one_tool(BROKEN, "{on_error: tell_model, retries: 5}"))
    assert (result.outcome, result.text) == (Outcome.MODEL_ERROR, "Error: the disk\nis full")
    slow = one_tool(
        """
        import asyncio
        class Tool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                return await asyncio.sleep(30)
        """,
        "{on_error: tell_model, timeout: 0.05}",
    )
    assert (await one_call(slow)).text == "Error: no answer within 0.05 s"


async def test_retries_mend_what_passes(one_tool):
    assert (await one_call(one_tool(BROKEN, "{retries: 2, right_at: 3}"))).text == "try 3"


async def test_retries_end(one_tool):
    tools = one_tool(BROKEN, "{retries: 1, right_at: 3}")
    assert (await one_call(tools)).outcome is Outcome.INFRA_ERROR
    assert tools.runners["echo"].methods["execute"].fn.__self__.tries == 2


async def test_the_model_s_mistakes_are_not_retried(one_tool):
    tools = one_tool(
        """
        class Tool(BaseTool):
            tries = 0
            async def execute(self, instance_id, parameters, **kwargs):
                type(self).tries += 1
                raise ModelError(f"try {self.tries}")
        """,
        "{retries: 3}",
    )
    assert (await one_call(tools)).text == "try 1"


@pytest.mark.parametrize(
    "answer", ["('a', 0, {}, 1)", "()", "('a', 'reward')", "ToolResponse(image='p.png')", "('a', float('nan'))"]
)
async def test_a_tool_that_returns_nonsense_is_an_infrastructure_error(one_tool, answer):
    tools = one_tool(f"""
        class Tool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                return {answer}
    """)
    assert (await one_call(tools)).outcome is Outcome.INFRA_ERROR


@pytest.mark.parametrize("body", ["sys.exit(0)", "raise asyncio.CancelledError", "raise StopIteration"])
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_nothing_a_tool_raises_gets_out(one_tool, body, kind):
    tools = one_tool(f"""
        import asyncio, sys
        class Tool(BaseTool):
            {kind} execute(self, instance_id, parameters, **kwargs):
                {body}
                return "done"
    """)
    assert (await one_call(tools)).outcome is Outcome.INFRA_ERROR


HANGS = {
    "async": """
        import asyncio
        class Tool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                if parameters["text"] == "hang":
                    await asyncio.sleep(90)
                return "done"
    """,
    "deaf": """
        import asyncio
        class Tool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                while parameters["text"] == "hang":
                    try:
                        await asyncio.sleep(3)
                        return
                    except asyncio.CancelledError:
                        pass
                return "done"
    """,
    "sync": """
        import time
        class Tool(BaseTool):
            def execute(self, instance_id, parameters, **kwargs):
                if parameters["text"] == "hang":
                    time.sleep(90)
                return "done"
    """,
}


@pytest.mark.prevents("one slow tool blocks everything until a collective times out")
@pytest.mark.parametrize("kind", HANGS)
async def test_a_hung_tool_costs_its_own_timeout_and_nothing_else(one_tool, kind):
    tools = one_tool(HANGS[kind], "{timeout: 0.3, max_concurrency: 4}")

    async def timed(text):
        start = time.perf_counter()
        result = await one_call(tools, "echo", {"text": text})
        return result, time.perf_counter() - start

    hung = [asyncio.create_task(timed("hang")) for _ in range(3)]
    await asyncio.sleep(0.05)
    fine = await asyncio.gather(*(timed("go") for _ in range(20)))
    assert all(result.text == "done" for result, _ in fine)
    assert max(seconds for _, seconds in fine) < 60
    # The deaf one gets a second to clean up before it is left behind.
    for result, seconds in await asyncio.gather(*hung):
        assert result.outcome is Outcome.INFRA_ERROR
        assert "no answer within 0.3 s" in result.error
        assert seconds < 60


async def test_hung_threads_do_not_use_up_the_places(one_tool):
    tools = one_tool(HANGS["sync"], "{timeout: 0.1, max_concurrency: 2}")
    hung = await asyncio.gather(*(one_call(tools, "echo", {"text": "hang"}) for _ in range(6)))
    assert all(result.outcome is Outcome.INFRA_ERROR for result in hung)
    assert (await one_call(tools, "echo", {"text": "go"})).text == "done"


COUNTING = """
    import asyncio, threading, time
    class Tool(BaseTool):
        now = most = 0
        lock = threading.Lock()
        def count(self, step):
            with self.lock:
                Tool.now += step
                Tool.most = max(Tool.most, Tool.now)
"""
SYNC = """
        def execute(self, instance_id, parameters, **kwargs):
            self.count(1); time.sleep(0.02); self.count(-1)
            return str(self.most)
"""
ASYNC = """
        async def execute(self, instance_id, parameters, **kwargs):
            self.count(1); await asyncio.sleep(0.02); self.count(-1)
            return str(self.most)
"""


@pytest.mark.parametrize("execute", [SYNC, ASYNC], ids=["sync", "async"])
async def test_max_concurrency_holds_over_all_trajectories(one_tool, execute):
    tools = one_tool(COUNTING + execute, "{max_concurrency: 3, timeout: 0.5}")
    # Waiting for a place does not count against the time limit: 60 calls of 0.02 s, three at once, take 0.4 s.
    results = await asyncio.gather(*(one_call(tools) for _ in range(60)))
    assert all(result.outcome is Outcome.OK for result in results)
    assert max(int(result.text) for result in results) == 3


async def test_without_it_parallel_calls_run_together(one_tool):
    tools = one_tool("""
        import threading
        class Tool(BaseTool):
            together = threading.Barrier(20, timeout=60)
            def execute(self, instance_id, parameters, **kwargs):
                self.together.wait()  # until all have begun
                return "done"
    """)
    results = await asyncio.gather(*(one_call(tools) for _ in range(20)))
    assert [result.text for result in results] == ["done"] * 20


async def test_plain_methods_leave_the_event_loop_free(one_tool):
    tools = one_tool("""
        import threading, time
        class Tool(BaseTool):
            def create(self, instance_id=None, **kwargs):
                time.sleep(0.1)
                return instance_id
            def execute(self, instance_id, parameters, **kwargs):
                time.sleep(0.1)
                return str(threading.current_thread() is threading.main_thread())
    """)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticker = asyncio.create_task(tick())
    assert (await one_call(tools)).text == "False"
    ticker.cancel()
    assert ticks > 8


async def test_a_plain_wrapper_around_an_async_method_is_awaited(one_tool):
    tools = one_tool("""
        def logged(method):
            def wrapper(*args, **kwargs):
                return method(*args, **kwargs)
            return wrapper
        class Tool(BaseTool):
            @logged
            async def execute(self, instance_id, parameters, **kwargs):
                return "awaited"
    """)
    assert (await one_call(tools)).text == "awaited"


async def test_long_answers_are_cut(one_tool):
    source = """
        class Tool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                if parameters["text"] == "wrong":
                    raise ModelError("a" * 100)
                return "a" * 100 + "b" * 100
    """
    tools = one_tool(source, max_response=21, side="left")
    assert (await one_call(tools)).text == "(truncated)bbbbbbbbbb"
    assert len((await one_call(tools, "echo", {"text": "wrong"})).text) == 21


async def test_the_same_failure_is_logged_once(one_tool, caplog):
    tools = one_tool(BROKEN)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            await one_call(tools)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].exc_info is not None


async def test_failing_rewards_are_infrastructure_errors(one_tool):
    for answer in ("'high'", "float('inf')", "1 / 0"):
        session = one_tool(f"""
            class Tool(BaseTool):
                async def execute(self, instance_id, parameters, **kwargs):
                    return ""
                async def calc_reward(self, instance_id, **kwargs):
                    return {answer}
        """).open("k", {}, None)
        await session.call(*CALL)
        with pytest.raises(InfraError, match="tool 'echo': calc_reward failed"):
            await session.rewards()
        await session.release()


async def test_seconds_are_measured(one_tool):
    tools = one_tool("""
        import asyncio
        class Tool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                await asyncio.sleep(0.05)
                return "done"
    """)
    assert 0.05 <= (await one_call(tools)).seconds < 60


async def test_who_waits_for_a_place_hears_when_it_comes(one_tool):
    tools = one_tool(
        """
        import asyncio
        inside, leave = asyncio.Event(), asyncio.Event()
        class Tool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                inside.set()
                await leave.wait()
                return "done"
    """,
        "{max_concurrency: 1}",
    )
    module = sys.modules[type(tools.runners["echo"].methods["execute"].fn.__self__).__module__]

    async def call(heard_by):
        with listening() as heard:
            heard_by.append(heard)
            if len(heard_by) == 2:
                second_called.set()
            return await one_call(tools)

    heard, second_called = [], asyncio.Event()
    first = asyncio.create_task(call(heard))
    await module.inside.wait()
    second = asyncio.create_task(call(heard))
    await second_called.wait()
    assert heard[0]
    assert not heard[1]
    module.leave.set()
    await asyncio.gather(first, second)
    assert heard[1][0] >= heard[0][0]
