"""Runs an agent loop written for verl as one of agentrl's own.

What is trained on is what the engine drew: each token with mask 1 gets the log-prob and the weights of the request
that drew it at that very place. A token with mask 1 that no request drew there has mask 0 here, unless the loop gives a
log-prob of its own for it.
"""

import copy
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from agentrl.chat.template import LEAD_TOKENS
from agentrl.core.errors import InfraError, UserError, reported_as
from agentrl.core.json_text import cleaned
from agentrl.core.user_code import construct
from agentrl.engines.engine import Sampling
from agentrl.rollout.loops.base import AgentLoop
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.trajectory import Trajectory
from agentrl_verl.agent_loop import DictConfigWrap
from agentrl_verl.config_views import verl_config
from agentrl_verl.hf_tokenizers import normalize_token_ids, with_lists
from agentrl_verl.server_manager import Drawn, ServerManager, media_for
from agentrl_verl.tool_loop import ToolAgentLoop

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampled:
    """A token that an engine drew."""

    logprob: float
    version: int


class VerlLoop(AgentLoop):
    """Makes an object of `kind` for each conversation; see `adapted`."""

    kind: ClassVar[type]
    kwargs: ClassVar[Mapping[str, Any]]
    shared: ClassVar[dict[str, Any]]
    """What all conversations of a run share, made once."""
    reported: ClassVar[set[str]] = set()

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        """Let it hold the conversation, then write down what came of it."""
        manager = ServerManager(self.env, trajectory, sampling)
        if not self.shared:
            self.shared.update(self._given())
        with reported_as(f"agent loop {self.kind.__name__}(...)"):
            loop = construct(self.kind, {**self.shared, "server_manager": manager, **self.kwargs})
        async with AsyncExitStack() as partings:
            if isinstance(loop, ToolAgentLoop):
                partings.push_async_callback(loop.leave)
            outputs = await self._converse(loop, trajectory, manager)
            for each in outputs:
                self._write(trajectory, each, manager.drawn)
            if isinstance(loop, ToolAgentLoop):
                await loop.collect()
        self._conclude(trajectory, outputs[-1])

    async def _converse(self, loop: Any, trajectory: Trajectory, manager: ServerManager) -> list[Any]:
        """What the loop returned: at least one output."""
        if "messages" in inspect.signature(loop.run).parameters:  # verl 0.5
            output = await loop.run(copy.deepcopy(trajectory.row.prompt), manager.wishes)
        else:
            output = await loop.run(manager.wishes, **_columns(trajectory))
        outputs = output if isinstance(output, list) else [output]
        if not outputs or any(not hasattr(each, "response_mask") for each in outputs):
            raise UserError(f"agent loop {self.kind.__name__}: run() returned {output!r:.80}, no AgentLoopOutput")
        return outputs

    def _given(self) -> dict[str, Any]:
        """Arguments of the constructor that are the same for all."""
        from agentrl_verl.datasets import RLHFDataset

        config, chat = verl_config(self.env.settings), self.env.chat
        config.actor_rollout_ref.rollout.multi_turn.format = chat.format
        return {
            "trainer_config": DictConfigWrap(config),
            "tokenizer": with_lists(chat.tokenizer),
            "processor": chat.processor.processor,
            "dataset_cls": RLHFDataset,
            "data_config": DictConfigWrap(config.data),
        }

    def _write(self, trajectory: Trajectory, output: Any, drawn: Sequence[Drawn]) -> None:
        """One output as one training sample."""
        prompt, response = normalize_token_ids(output.prompt_ids), normalize_token_ids(output.response_ids)
        mask = list(output.response_mask)
        if len(mask) != len(response):
            raise InfraError(f"{self.kind.__name__} returned {len(response)} response_ids and {len(mask)} mask entries")
        limit = self.env.limits.response_length
        response, mask = response[:limit], mask[:limit]
        tokens = placed(prompt, response, drawn)
        own = getattr(output, "response_logprobs", None) or []
        for i in [i for i, (token, trained) in enumerate(zip(tokens, mask, strict=True)) if trained and not token]:
            if i < len(own) and own[i] < 0 and drawn:
                tokens[i] = Sampled(float(own[i]), drawn[-1].versions[-1])
        self._tell(sum(bool(trained) and not token for token, trained in zip(tokens, mask, strict=True)))
        tokens = [token if trained else None for token, trained in zip(tokens, mask, strict=True)]
        pictures = getattr(output, "multi_modal_data", None) or {}
        media = media_for(self.env, *(pictures.get(f"{k}s") or pictures.get(k) for k in ("image", "video")))
        ledger = Ledger()
        ledger.append_prompt(prompt, media)
        trajectory.ledgers.append(ledger)
        trajectory.messages = copy.deepcopy(trajectory.row.prompt)
        trajectory.turns = self._fill(ledger, trajectory, response, tokens)

    def _fill(
        self, ledger: Ledger, trajectory: Trajectory, response: Sequence[int], tokens: Sequence[Sampled | None]
    ) -> int:
        """Write stretches of drawn and other tokens, each as a message too; returns the turns."""
        turn = 0
        for sampled, places in _stretches(tokens):
            ids = [response[i] for i in places]
            if sampled:
                made = [token for i in places if (token := tokens[i])]
                logprobs, versions = [token.logprob for token in made], [token.version for token in made]
                lead = ledger.ids[-LEAD_TOKENS:]
                ledger.append_model(ids, logprobs, turn=turn, version=versions)
                trajectory.messages.append(self.env.chat.parse(ids, lead=lead).message)
                turn += 1
            else:
                ledger.append_observation(ids, Source.TOOL, turn=max(turn - 1, 0))
                trajectory.messages.append({"role": "tool", "content": self.env.chat.decode(ids)})
        return turn

    def _conclude(self, trajectory: Trajectory, output: Any) -> None:
        """Score, further fields, and how it ended."""
        ledger = trajectory.ledgers[-1]
        trajectory.templated = False
        trajectory.user_turns = max(0, int(getattr(output, "num_turns", 0) or 0) - 1 - trajectory.turns)
        ended = (
            ledger.ids[-1] in self.env.chat.stop_token_ids or ledger.response_length < self.env.limits.response_length
        )
        trajectory.finish = "stop" if ended else "length"
        trajectory.extra |= getattr(output, "extra_fields", None) or {}
        trajectory.reward_extra |= cleaned(trajectory.extra.pop("reward_extra_info", None) or {})
        trajectory.reward = getattr(output, "reward_score", None)

    def _tell(self, lost: int) -> None:
        """Say once that some tokens are not trained on."""
        name = self.kind.__name__
        if lost and name not in self.reported:
            self.reported.add(name)
            log.warning(
                "%s gives mask 1 to %d tokens that the engine did not draw at their place; they are not trained on "
                "(further ones are not reported)",
                name,
                lost,
            )


def adapted(kind: type, kwargs: Mapping[str, Any] | None = None) -> type[VerlLoop]:
    """agentrl's loop around a class of verl's kind; `kwargs` are further arguments of its constructor."""
    return type(kind.__name__, (VerlLoop,), {"kind": kind, "kwargs": dict(kwargs or {}), "shared": {}})


def placed(prompt: list[int], response: list[int], drawn: Sequence[Drawn]) -> list[Sampled | None]:
    """For each token of the response: who drew it there, after just what stands before it; None for the others."""
    whole, found = prompt + response, [None] * len(response)  # type: list[int], list[Sampled | None]
    for request in drawn:
        start = len(request.prompt)
        if whole[:start] != request.prompt:
            continue
        for i, token in enumerate(request.ids):
            place = start + i - len(prompt)
            if not 0 <= place < len(response) or response[place] != token:
                break
            found[place] = Sampled(min(request.logprobs[i], 0.0), request.versions[i])
    return found


def _columns(trajectory: Trajectory) -> dict[str, Any]:
    """The row as verl's dataset hands it to a loop; a copy, for rows are shared."""
    row = trajectory.row
    known = {
        "raw_prompt": row.prompt,
        "data_source": row.data_source,
        "ability": row.ability,
        "reward_model": row.reward_model,
        "extra_info": row.extra_info,
        "tools_kwargs": row.tools_kwargs,
        "interaction_kwargs": row.interaction_kwargs or {},
        "index": row.extra_info.get("index", 0),
        "uid": row.uid,
    }
    return copy.deepcopy(row.others | known)


def _stretches(tokens: Sequence[Sampled | None]) -> Iterator[tuple[bool, list[int]]]:
    for sampled, group in groupby(range(len(tokens)), key=lambda i: tokens[i] is not None):
        yield sampled, list(group)
