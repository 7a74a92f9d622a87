"""verl's single turn loop, for classes that derive from it."""

from typing import Any, ClassVar

from agentrl.rollout.loops import SingleTurn
from agentrl.verl.agent_data import asked_of
from agentrl.verl.agent_loop import AgentLoopBase, AgentLoopOutput


class SingleTurnAgentLoop(AgentLoopBase):
    """One answer. `run(sampling_params, **columns)`, or verl 0.5's `run(messages, sampling_params)`."""

    served_by: ClassVar[type] = SingleTurn
    """agentrl's loop that stands for the class itself."""

    async def run(self, *asked: Any, **kwargs: Any) -> Any:
        """Ask once."""
        messages, sampling_params = asked_of(asked, kwargs)
        prompt_ids = await self.apply_chat_template(messages)
        seen = await self.process_vision_info(messages)
        output = await self.server_manager.generate(
            prompt_ids=prompt_ids, sampling_params=sampling_params, image_data=seen.get("images")
        )
        ids = list(output.token_ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids,
            response_mask=[1] * len(ids),
            response_logprobs=output.log_probs,
            multi_modal_data=seen,
            num_turns=2,
        )
