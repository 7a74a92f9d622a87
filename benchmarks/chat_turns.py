"""The cost of the tokens around a sampled turn, early and late in a long conversation.

Two ways, over several real templates: the fixed base (the default), and the whole conversation rendered again
(`rollout.multi_turn.use_inference_chat_template`). Read the ratios, turn 50 over turn 5 in one run; `from scratch`
renders, decodes and encodes everything without a cache.

    python benchmarks/chat_turns.py --turns 50 --tokens 30000
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl.chat import Chat, Split
from agentrl.chat.incremental import RenderCache
from tests.chat.conversations import TOOLS, answer, calls, result, user
from tests.chat.pairs import PAIRS, chat_for

TEMPLATES = ("qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "deepseek_v3_1", "glm4moe", "chatml_tools")
EARLY = 5
REPEATS = 5


def conversation(turns: int, words: int, follow_ups: bool) -> list[dict]:
    """Calls and results, or a simulated user's follow-ups, whose thinking some templates strip."""
    thought, long = "Let me see. " * 5, "so it is " * words
    messages = [user("Go on.")]
    for i in range(turns):
        if follow_ups:
            messages += [answer(f"{i}.", reasoning_content=thought), user(long)]
        else:
            messages += [calls(f"{i}", start=i, reasoning_content=thought), result(long, i)]
    return messages


def best(action: Callable[[], object]) -> float:
    """Milliseconds, the least of a few tries."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def fixed_base(chat: Chat, messages: list[dict], tools: list[dict] | None) -> float:
    """The cost of the last message, in milliseconds."""
    new, history = messages[-1:], messages[:-1]
    return best(lambda: chat.observation(new, closed=True, tools=tools, last=None, history=history))


def rendered_again(chat: Chat, messages: list[dict], tools: list[dict] | None) -> tuple[float, float, bool]:
    """The cost of the last message with a memory of the turn before and without, and whether history was rewritten."""
    ids = chat.transcript(messages[:-3], tools).ids
    step = chat.continuation(ids, messages[:-2], tools)
    before = step.ids if isinstance(step, Split) else [*ids, *(i for _, segment in step for i in segment)]
    ledger = chat.transcript(messages[:-1], tools)
    columns = zip(ledger.ids, ledger.mask, ledger.turns, strict=True)
    grown = [*before, *(i for i, mask, turn in columns if mask and turn == ledger.turns[-1])]
    times = []
    for _ in range(REPEATS):
        memory = RenderCache()
        chat.continuation(ids, messages[:-2], tools, memory)
        start = time.perf_counter()
        step = chat.continuation(grown, messages, tools, memory)
        times.append(time.perf_counter() - start)
    return 1000 * min(times), best(lambda: chat.continuation(grown, messages, tools)), isinstance(step, Split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=30_000, help="of the conversation at its end")
    parser.add_argument("--templates", nargs="*", default=TEMPLATES)
    given = parser.parse_args()
    words = given.tokens // given.turns // 3
    print(f"milliseconds at turn {EARLY} and {given.turns}, and their ratio; about {given.tokens} tokens at the end")
    print(f"{'template':16}{'after':12}{'fixed base':>24}{'rendered again':>26}{'from scratch':>14}")
    for name in given.templates:
        pair = next(pair for pair in PAIRS if pair.template == name)
        chat = chat_for(pair)
        for kind, tools in (("tool", TOOLS), ("user", None)):
            row = [conversation(n, words, kind == "user") for n in (EARLY, given.turns)]
            base = [fixed_base(chat, messages, tools) for messages in row]
            again = [rendered_again(chat, messages, tools) for messages in row]
            split = " (new sample)" if again[-1][2] else ""
            print(
                f"{name:16}{kind:12}{base[0]:8.2f}{base[1]:8.2f}{base[1] / base[0]:8.2f}"
                f"{again[0][0]:10.2f}{again[1][0]:8.2f}{again[1][0] / again[0][0]:8.2f}{again[1][1]:14.1f}{split}"
            )


if __name__ == "__main__":
    main()
