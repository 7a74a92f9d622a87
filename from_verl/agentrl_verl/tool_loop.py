"""verl's tool agent loop for classes that derive from it: its states and handlers, over agentrl's tools and tokens.

Every handler may be overridden. Tools and the simulated user have one instance a conversation, with the time limits,
retries and outcomes of agentrl's own loop; `self.tools` and `self.interaction_map` hold the objects themselves.
"""

import asyncio
import inspect
import json
from typing import Any, ClassVar

from agentrl.chat.template import LEAD_TOKENS
from agentrl.core.errors import InfraError
from agentrl.interactions import InteractionSession
from agentrl.rollout.loops.tool_agent import ToolAgent
from agentrl.tools import ToolSession
from agentrl.tools.response import ToolResponse
from agentrl.trajectory.medium import media_of
from agentrl.trajectory.trajectory import Outcome, TurnReward
from agentrl_verl.agent_loop import AgentLoopBase, AgentLoopOutput, DictConfigWrap
from agentrl_verl.agent_state import AgentData, AgentState, asked_of
from agentrl_verl.tool_calls import FunctionCall, ToolParser
from agentrl_verl.tool_objects import lifecycle, owner_of
from agentrl_verl.tracing import simple_timer

LIMITS = ("max_user_turns", "max_assistant_turns", "max_parallel_calls", "max_tool_response_length")


class ToolAgentLoop(AgentLoopBase):
    """Calls tools until the model answers; a simulated user, where the row has one, reacts to its answers."""

    served_by: ClassVar[type] = ToolAgent
    """agentrl's loop that stands for the class itself."""
    max_user_turns: int | None
    max_assistant_turns: int | None
    max_parallel_calls: int
    max_tool_response_length: int
    tools: dict[str, Any]
    tool_schemas: list[dict[str, Any]]
    tool_parser_name: str
    response_length: int
    interaction_map: dict[str, Any]

    def __init__(
        self, trainer_config: DictConfigWrap, server_manager: Any, tokenizer: Any, processor: Any = None, **kwargs: Any
    ) -> None:
        env, row = server_manager.env, server_manager.trajectory.row
        rollout = trainer_config.config.actor_rollout_ref.rollout
        runners = env.tools.runners.items()
        found: dict[str, Any] = {name: getattr(rollout.multi_turn, name, None) for name in LIMITS}
        found |= {
            "tool_response_truncate_side": rollout.multi_turn.tool_response_truncate_side,
            "tools": {name: owner_of(runner.methods["execute"]) for name, runner in runners},
            "tool_schemas": env.tools.schemas(row.tool_selection),
            "tool_parser_name": rollout.multi_turn.format,
            "prompt_length": rollout.prompt_length,
            "response_length": env.limits.response_length,
            "interaction_config_file": rollout.multi_turn.interaction_config_path,
            "interaction_map": {
                name: owner_of(runner.methods["generate_response"]) for name, runner in env.interactions.runners.items()
            },
        }
        for name, value in found.items():  # verl 0.6 keeps them in the class, where its init_class finds them
            setattr(type(self), name, value)
        vars(self).update(found)
        self.tool_parser = ToolParser.get_tool_parser(self.tool_parser_name, tokenizer)
        self.env = env
        self._opening = asyncio.Lock()
        self._tools: ToolSession | None = None
        self._interaction: InteractionSession | None = None
        super().__init__(trainer_config, server_manager, tokenizer, processor, **kwargs)

    async def run(self, *asked: Any, **kwargs: Any) -> Any:
        """Hold the conversation: `run(sampling_params, **columns)`, or verl 0.5's `run(messages, sampling_params)`."""
        messages, sampling_params = asked_of(asked, kwargs)
        agent_data = await self._begin(messages)
        state = AgentState.PENDING
        while state is not AgentState.TERMINATED:
            state = await self._next(state, agent_data, sampling_params)
        return self._output(agent_data)

    async def _begin(self, messages: list[dict[str, Any]]) -> AgentData:
        """The conversation's state, with its simulated user started."""
        row = self.server_manager.trajectory.row
        seen = await self.process_vision_info(messages)
        kwargs = row.interaction_kwargs if self.env.interactions else None
        agent_data = AgentData(
            messages=messages,
            image_data=seen.get("images"),
            video_data=seen.get("videos"),
            request_id=self.server_manager.trajectory.key,
            tools_kwargs=row.tools_kwargs,
            interaction=None if kwargs is None else self.interaction_map.get(kwargs.get("name", ""), True),
            interaction_kwargs=kwargs,
        )
        chosen = self.tools if row.tool_selection is None else row.tool_selection
        vars(agent_data)["_active_tools"] = {name: self.tools[name] for name in chosen if name in self.tools}
        if kwargs is not None:
            await self._user()
        return agent_data

    async def _next(self, state: AgentState, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        if state is AgentState.PENDING:
            return await self._handle_pending_state(agent_data, sampling_params)
        if state is AgentState.GENERATING:
            return await self._handle_generating_state(agent_data, sampling_params)
        if state is AgentState.PROCESSING_TOOLS:
            return await self._handle_processing_tools_state(agent_data)
        if state is AgentState.INTERACTING:
            return await self._handle_interacting_state(agent_data)
        raise InfraError(f"{type(self).__name__}: a handler returned {state!r}, which is no AgentState")

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        """Write the prompt."""
        agent_data.prompt_ids = await self.apply_chat_template(agent_data.messages, tools=self._schemas(agent_data))
        return AgentState.GENERATING

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        """Let the model take a turn, within what is left of the response length."""
        room = self.response_length - len(agent_data.response_mask)
        lead = agent_data.prompt_ids[-LEAD_TOKENS:]
        with simple_timer("generate_sequences", agent_data.metrics):
            output = await self.server_manager.generate(
                request_id=agent_data.request_id,
                prompt_ids=list(agent_data.prompt_ids),
                sampling_params={"max_tokens": room} | sampling_params,
                image_data=agent_data.image_data,
                video_data=agent_data.video_data,
            )
        agent_data.assistant_turns += 1
        agent_data.response_ids = list(output.token_ids)
        agent_data.prompt_ids += agent_data.response_ids
        agent_data.response_mask += [1] * len(agent_data.response_ids)
        agent_data.response_logprobs += output.log_probs or []
        said = self.env.chat.parse(agent_data.response_ids, self._schemas(agent_data), lead=lead)
        agent_data.messages.append(said.message)
        if self._used_up(agent_data, ignore_termination):
            return AgentState.TERMINATED
        agent_data.tool_calls = await self._calls(agent_data)
        if agent_data.tool_calls:
            return AgentState.PROCESSING_TOOLS
        return AgentState.INTERACTING if agent_data.interaction is not None else AgentState.TERMINATED

    async def _calls(self, agent_data: AgentData) -> list[FunctionCall]:
        """The turn's calls; none where no tool could take them, for a call is text then."""
        takers = ("_call_tool", "_handle_processing_tools_state")
        takes = any(getattr(type(self), name) is not getattr(ToolAgentLoop, name) for name in takers)
        if not takes and not self._active(agent_data):
            return []
        return (await self.tool_parser.extract_tool_calls(agent_data.response_ids))[1]

    def _schemas(self, agent_data: AgentData) -> list[dict[str, Any]]:
        """Schemas of the conversation's tools."""
        found: list[dict[str, Any]] = getattr(agent_data, "_active_tool_schemas", self.tool_schemas)
        return found

    def _active(self, agent_data: AgentData) -> dict[str, Any]:
        """The conversation's tools by name; a loop may set others."""
        found: dict[str, Any] = getattr(agent_data, "_active_tools", self.tools)
        return found

    def _used_up(self, agent_data: AgentData, ignore_length: bool) -> bool:
        if not ignore_length and len(agent_data.response_mask) >= self.response_length:
            return True
        turns = (agent_data.assistant_turns, self.max_assistant_turns), (agent_data.user_turns, self.max_user_turns)
        return any(limit and taken >= limit for taken, limit in turns)

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        """Run the calls together and show their answers, in order."""
        with simple_timer("tool_calls", agent_data.metrics):
            calls = agent_data.tool_calls[: self.max_parallel_calls]
            answers = await asyncio.gather(*(self._answer(call, agent_data) for call in calls))
        agent_data.tool_rewards += [reward for _, reward in answers if reward is not None]
        return self._show([message for message, _ in answers], agent_data)

    async def _handle_interacting_state(self, agent_data: AgentData) -> AgentState:
        """Hear the simulated user."""
        user = await self._user()
        reply = await user.respond(agent_data.messages)
        agent_data.turn_scores.append(reply.score)
        self.server_manager.trajectory.turn_rewards.append(reply.turn_reward(agent_data.assistant_turns - 1))
        if reply.stop:
            return AgentState.TERMINATED
        return self._show([{"role": "user", "content": reply.text}], agent_data)

    async def _call_tool(
        self, tool_call: FunctionCall, tools_kwargs: dict[str, Any], agent_data: AgentData
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """(response, reward, metrics) of one call. Raises InfraError where the tool itself fails."""
        active, name = self._active(agent_data), tool_call.name
        if name not in active:
            return ToolResponse(f"There is no tool {name!r}; there are {', '.join(active) or 'none'}."), 0.0, {}
        try:
            arguments = json.loads(tool_call.arguments)
        except ValueError as error:  # of a parser of the user's own
            return ToolResponse(f"The arguments of {name} are no JSON: {error}."), 0.0, {}
        runner = self.env.tools.runners.get(name)
        if runner is None or active[name] is not owner_of(runner.methods["execute"]):
            return await lifecycle(active[name], arguments, tools_kwargs.get(name) or {}, agent_data)
        tools = await self._session(tools_kwargs, agent_data)
        result = await tools.call(tool_call.name, arguments)
        trajectory, turn = self.server_manager.trajectory, agent_data.assistant_turns - 1
        trajectory.tool_calls.append(result.record(turn, tool_call.name, arguments))
        if result.reward:
            trajectory.turn_rewards.append(TurnReward(turn, result.reward, "tool"))
        if result.outcome is Outcome.INFRA_ERROR:
            raise InfraError(result.error or "a tool failed")
        return ToolResponse(result.text, result.images or None, result.videos or None), result.reward, result.metrics

    async def _answer(self, call: FunctionCall, agent_data: AgentData) -> tuple[dict[str, Any], float | None]:
        """(message, reward) of a call; `_call_tool` may be one of an older verl, with fewer arguments."""
        given: tuple[Any, ...] = (call, agent_data.tools_kwargs, agent_data)
        taken = inspect.signature(self._call_tool).parameters
        said: Any = await self._call_tool(*given[: len(taken)])
        response, reward = (said[0], said[1]) if isinstance(said, tuple) else (said, None)
        if isinstance(response, Exception):
            raise InfraError(f"tool {call.name!r} failed: {response}")
        if isinstance(response, dict):  # verl 0.5: the message itself
            return response, reward
        content: Any = [{"type": "image", "image": image} for image in response.image or ()]
        content += [{"type": "text", "text": response.text}] if content and response.text else []
        return {"role": "tool", "name": call.name, "content": content or response.text or ""}, reward

    def _show(self, messages: list[dict[str, Any]], agent_data: AgentData) -> AgentState:
        """Append messages, unless they leave no room for an answer."""
        chat = self.env.chat
        messages = chat.see(messages)
        segments = chat.observation(
            messages,
            closed=agent_data.prompt_ids[-1] in chat.stop_token_ids,
            tools=self._schemas(agent_data),
            last=agent_data.prompt_ids[-1],
            history=list(agent_data.messages),
        )
        ids = [token for _, tokens in segments for token in tokens]
        agent_data.messages += messages
        agent_data.user_turns += 1
        if len(agent_data.response_mask) + len(ids) >= self.response_length:
            return AgentState.TERMINATED
        if pictures := [medium.source for medium in media_of(messages)]:
            agent_data.image_data = [*(agent_data.image_data or ()), *pictures]
        agent_data.prompt_ids += ids
        agent_data.response_mask += [0] * len(ids)
        agent_data.response_logprobs += [0.0] * len(ids)
        return AgentState.GENERATING

    def _output(self, agent_data: AgentData) -> AgentLoopOutput:
        begin = len(agent_data.prompt_ids) - len(agent_data.response_mask)
        media = {"images": agent_data.image_data, "videos": agent_data.video_data}
        return AgentLoopOutput(
            prompt_ids=agent_data.prompt_ids[:begin],
            response_ids=agent_data.prompt_ids[begin:][: self.response_length],
            response_mask=agent_data.response_mask[: self.response_length],
            response_logprobs=agent_data.response_logprobs[: self.response_length],
            multi_modal_data={name: value for name, value in media.items() if value},
            num_turns=agent_data.user_turns + agent_data.assistant_turns + 1,
            metrics=agent_data.metrics,
            extra_fields={"turn_scores": agent_data.turn_scores, "tool_rewards": agent_data.tool_rewards}
            | agent_data.extra_fields,
        )

    async def _session(self, tools_kwargs: dict[str, Any], agent_data: AgentData) -> ToolSession:
        """The tools of this conversation, started when one is first called."""
        async with self._opening:
            if self._tools is None:
                trajectory = self.server_manager.trajectory
                selection = trajectory.row.tool_selection
                self._tools = self.env.tools.open(trajectory.key, tools_kwargs, agent_data, selection)
                await self._tools.start()
            return self._tools

    async def _user(self) -> InteractionSession:
        """The simulated user of this conversation, started when it is first asked for."""
        if self._interaction is None:
            trajectory = self.server_manager.trajectory
            self._interaction = self.env.interactions.open(trajectory.key, trajectory.row.interaction_kwargs or {})
            await self._interaction.start()
        return self._interaction

    async def collect(self) -> None:
        """The final scores of tools and simulated user, while both are there."""
        trajectory = self.server_manager.trajectory
        if self._tools is not None:
            trajectory.tool_rewards = await self._tools.rewards()
        if self._interaction is not None:
            trajectory.interaction_score = await self._interaction.score()

    async def leave(self) -> None:
        """Release tools and simulated user. Never raises."""
        if self._tools is not None:
            await self._tools.release()
        if self._interaction is not None:
            await self._interaction.finalize()

    def _build_assistant_message(self, content: str, agent_data: AgentData) -> dict[str, Any]:
        """The model's turn as a message."""
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            for call in agent_data.tool_calls[: self.max_parallel_calls]
        ]
        return {"role": "assistant", "content": content or ""} | ({"tool_calls": calls} if calls else {})

    def _initialize_interactions(self, interaction_config_file: Any = None) -> dict[str, Any]:
        return dict(self.interaction_map)
