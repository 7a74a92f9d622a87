"""One instance a trajectory, created once, released exactly once, whatever happens."""

import asyncio
import gc
from collections import Counter

import pytest

from agentrl.core.errors import InfraError, UserError
from agentrl.trajectory.trajectory import Outcome
from tests.waiting import skip_waits

BOOKKEEPER = """
    import asyncio, time
    from collections import Counter
    class Tool(BaseTool):
        def __init__(self, config, tool_schema):
            super().__init__(config, tool_schema)
            self.created, self.released, self.alive = Counter(), Counter(), {}
            self.scored = 0
        async def create(self, instance_id=None, start=0, delay=0.0, **kwargs):
            self.created[instance_id] += 1
            await asyncio.sleep(delay)
            if start == "broken":
                raise OSError("cannot begin")
            self.alive[instance_id] = start
            return instance_id
        async def execute(self, instance_id, parameters, step=1, **kwargs):
            if parameters["text"] == "hang":
                await asyncio.sleep(30)
            if parameters["text"] == "fail":
                raise OSError("broken")
            await asyncio.sleep(0.001)
            self.alive[instance_id] += step
            return str(self.alive[instance_id])
        async def calc_reward(self, instance_id, **kwargs):
            self.scored += 1
            return self.alive[instance_id]
        async def release(self, instance_id, slow=0.0, **kwargs):
            self.released[instance_id] += 1
            await asyncio.sleep(slow)
            self.alive.pop(instance_id, None)
"""


@pytest.fixture
def tools(one_tool):
    return one_tool(BOOKKEEPER, "{timeout: 0.2}")


def book(tools):
    return tools.runners["echo"].methods["create"].fn.__self__


def assert_all_released_once(tools):
    assert book(tools).released == book(tools).created
    assert set(book(tools).released.values()) <= {1}
    assert book(tools).alive == {}


async def test_created_at_start_where_the_row_has_arguments_and_at_the_first_call_otherwise(tools):
    named = tools.open("a", {"echo": {"create_kwargs": {"start": 5}}}, None)
    unnamed = tools.open("b", {}, None)
    await named.start()
    await unnamed.start()
    assert len(book(tools).created) == 1
    assert (await named.call("echo", {"text": "x"})).text == "6"
    assert (await unnamed.call("echo", {"text": "x"})).text == "1"
    await named.release()
    await unnamed.release()
    assert_all_released_once(tools)


async def test_parallel_first_calls_share_one_instance(tools):
    session = tools.open("k", {}, None)
    results = await asyncio.gather(*(session.call("echo", {"text": "x"}) for _ in range(8)))
    assert sorted(int(result.text) for result in results) == list(range(1, 9))
    assert list(book(tools).created.values()) == [1]
    await session.release()
    assert_all_released_once(tools)


async def test_nothing_is_created_or_released_for_a_trajectory_without_calls(tools):
    session = tools.open("k", {}, None)
    await session.start()
    assert await session.rewards() == {}
    await session.release()
    assert book(tools).created == Counter()
    assert book(tools).released == Counter()


async def test_rewards_are_those_of_calc_reward(tools):
    session = tools.open("k", {"echo": {"execute_kwargs": {"step": 10}}}, None)
    await session.start()
    await session.call("echo", {"text": "x"})
    assert await session.rewards() == {"echo": 10.0}
    assert book(tools).scored == 1
    await session.release()


async def test_release_twice_releases_once_and_later_calls_are_refused(tools):
    session = tools.open("k", {}, None)
    await session.call("echo", {"text": "x"})
    await asyncio.gather(session.release(), session.release())
    await session.release()
    late = await session.call("echo", {"text": "x"})
    assert late.outcome is Outcome.INFRA_ERROR
    assert_all_released_once(tools)


async def test_a_failing_create_is_an_infrastructure_error_and_still_released(tools):
    kwargs = {"echo": {"create_kwargs": {"start": "broken"}}}
    session = tools.open("k", kwargs, None)
    with pytest.raises(InfraError, match="tool 'echo': create failed: OSError: cannot begin"):
        await session.start()
    # The failure is remembered: parallel calls do not each wait for it again.
    assert (await session.call("echo", {"text": "x"})).outcome is Outcome.INFRA_ERROR
    await session.release()
    assert list(book(tools).created.values()) == [1]
    assert_all_released_once(tools)


async def test_a_create_that_hangs_is_released(tools):
    session = tools.open("k", {"echo": {"create_kwargs": {"delay": 30}}}, None)
    with pytest.raises(InfraError, match=r"no answer within 0.2 s"):
        await session.start()
    await session.release()
    assert_all_released_once(tools)


async def test_a_plain_create_that_overstays_is_released_after_it_ends(one_tool):
    tools = one_tool(
        """
        import time
        class Tool(BaseTool):
            log = []
            async def execute(self, instance_id, parameters, **kwargs):
                return "done"
            def create(self, instance_id=None, **kwargs):
                time.sleep(0.3)
                self.log.append("created")
            def release(self, instance_id, **kwargs):
                self.log.append("released")
        """,
        "{timeout: 0.2}",
    )
    session = tools.open("k", {"echo": {}}, None)
    with pytest.raises(InfraError):
        await session.start()
    await session.release()
    assert book(tools).log == ["created", "released"]


@pytest.mark.parametrize("text", ["hang", "fail"])
async def test_released_after_a_timeout_and_after_a_failure(tools, text):
    session = tools.open("k", {}, None)
    assert (await session.call("echo", {"text": text})).outcome is Outcome.INFRA_ERROR
    await session.release()
    assert_all_released_once(tools)


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.06])
async def test_released_after_cancellation_at_any_moment(tools, moment):
    async def trajectory():
        session = tools.open("k", {"echo": {"create_kwargs": {"delay": 0.04}}}, None)
        try:
            await session.start()
            await session.call("echo", {"text": "hang"})
        finally:
            await session.release()

    task = asyncio.create_task(trajectory())
    await asyncio.sleep(moment)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_all_released_once(tools)


async def test_a_second_cancellation_does_not_cut_the_release_short(tools):
    async def trajectory():
        session = tools.open("k", {"echo": {"release_kwargs": {"slow": 0.1}}}, None)
        try:
            await session.call("echo", {"text": "hang"})
        finally:
            await session.release()

    task = asyncio.create_task(trajectory())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(book(tools).alive) == 1
    await tools.close()
    assert_all_released_once(tools)


async def test_a_failing_or_hanging_release_raises_nothing(one_tool):
    for body in ("raise OSError('no')", "await asyncio.sleep(30)"):
        tools = one_tool(
            f"""
            import asyncio
            class Tool(BaseTool):
                async def execute(self, instance_id, parameters, **kwargs):
                    return "done"
                async def release(self, instance_id, **kwargs):
                    {body}
            """,
            "{timeout: 0.1}",
        )
        session = tools.open("k", {"echo": {}}, None)
        await session.start()
        await session.release()


async def test_the_id_that_create_returns_is_used(one_tool):
    for returned in ("'my-own'", "('my-own', ToolResponse(text='welcome'))"):
        tools = one_tool(f"""
            class Tool(BaseTool):
                seen = []
                async def create(self, instance_id=None, **kwargs):
                    return {returned}
                async def execute(self, instance_id, parameters, **kwargs):
                    return instance_id
                async def release(self, instance_id, **kwargs):
                    self.seen.append(instance_id)
        """)
        session = tools.open("k", {}, None)
        assert (await session.call("echo", {"text": "x"})).text == "my-own"
        await session.release()
        assert book(tools).seen == ["my-own"]


@pytest.mark.prevents("host memory grows")
async def test_a_thousand_trajectories_leave_nothing_behind(one_tool, monkeypatch):
    """With hangs, failures and cancellations among them, on one tool object."""
    skip_waits(monkeypatch)
    tools = one_tool(BOOKKEEPER, "{timeout: 2}")

    async def trajectory(i):
        session = tools.open(f"t{i}", {"echo": {"create_kwargs": {"start": i}}}, None)
        try:
            await session.start()
            for text in ("a", "b", {0: "hang", 1: "fail"}.get(i % 10, "c")):
                await session.call("echo", {"text": text})
            return await session.rewards()
        finally:
            await session.release()

    tasks = [asyncio.create_task(trajectory(i)) for i in range(1000)]
    await asyncio.sleep(0.0015)  # in their second call
    for task in tasks[5::10]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await tools.close()
    assert results[2] == {"echo": 5.0}
    assert sum(isinstance(r, asyncio.CancelledError) for r in results) == 100
    assert len(book(tools).created) == 1000
    assert_all_released_once(tools)
    assert tools.cleanup.tasks == set()


async def test_a_session_keeps_nothing_alive(tools):
    import weakref

    session = tools.open("k", {}, None)
    await session.call("echo", {"text": "x"})
    await session.release()
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


async def test_the_framework_compiles_no_schema_and_reads_no_signature_per_call(tools, monkeypatch):
    """What keeps a call cheap: all that is costly happened when the tools were loaded."""
    import inspect

    from jsonschema import Draft202012Validator

    def never(*args, **kwargs):
        raise AssertionError("not per call")

    monkeypatch.setattr(inspect, "signature", never)
    monkeypatch.setattr(Draft202012Validator, "check_schema", never)
    session = tools.open("k", {"echo": {"create_kwargs": {"start": 1}}}, None)
    await session.start()
    assert (await session.call("echo", {"text": "x"})).text == "2"
    await session.release()


async def test_row_arguments_that_nothing_takes_are_refused(one_tool):
    tools = one_tool("""
        class Tool(BaseTool):
            async def create(self, instance_id=None, start=0):
                return instance_id
            async def execute(self, instance_id, parameters):
                return "ok"
    """)
    with pytest.raises(UserError, match=r"extra_info.tools_kwargs.echo: no parameter takes create\(begin\)"):
        tools.open("k", {"echo": {"create_kwargs": {"begin": 3}}}, None)
    with pytest.raises(UserError, match=r"write a mapping of create_kwargs"):
        tools.open("k", {"echo": ["create_kwargs"]}, None)
    # What parquet fills in for other rows' keys is no mistake.
    session = tools.open("k", {"echo": {"create_kwargs": {"begin": None}, "execute_kwargs": None}, "other": None}, None)
    await session.start()
    assert (await session.call("echo", {"text": "x"})).text == "ok"
    await session.release()


async def test_arguments_for_a_tool_that_is_not_loaded_warn_once(tools, caplog):
    for _ in range(3):
        await tools.open("k", {"nope": {"create_kwargs": {}}}, None).start()
    assert [r.getMessage() for r in caplog.records] == [
        "rows have tools_kwargs for 'nope', which is not loaded: the tools are echo"
    ]


async def test_agent_data_goes_to_tools_that_ask_for_it(one_tool):
    class Loop:
        request_id = "mine"

    for signature in ("parameters, agent_data", "parameters, **kwargs"):
        tools = one_tool(f"""
            class Tool(BaseTool):
                async def execute(self, instance_id, {signature}):
                    return (agent_data if "agent_data" in locals() else kwargs["agent_data"]).request_id
        """)
        for agent_data, expected in ((Loop(), "mine"), (None, "k"), (object(), "k")):
            session = tools.open("k", {}, agent_data)
            assert (await session.call("echo", {"text": "x"})).text == expected
            await session.release()


async def test_a_selection_limits_what_may_be_called(tools):
    session = tools.open("k", {"echo": {}}, None, selection=[])
    await session.start()
    assert (await session.call("echo", {"text": "x"})).text.startswith("Error: there is no tool 'echo'")
    assert book(tools).created == Counter()
