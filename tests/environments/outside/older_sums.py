"""An environment of verifiers' older API, as those of its hub: `load_environment`, a dataset, a rubric."""

import verifiers as vf
from datasets import Dataset


def right(completion, answer, **kwargs):
    if "break" in completion[-1]["content"]:
        raise ValueError("this answer breaks the scorer")
    return float(answer in completion[-1]["content"])


def turns(completion, **kwargs):
    return float(sum(message["role"] == "assistant" for message in completion))


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


class Asked(vf.MultiTurnEnv):
    """Asks once more."""

    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "Are you sure?"}]


def load_environment(kind="single"):
    dataset = Dataset.from_list([{"question": f"Add {n} and 5.", "answer": str(n + 5)} for n in range(6)])
    common = {
        "dataset": dataset,
        "system_prompt": "Be exact.",
        "rubric": vf.Rubric(funcs=[right, turns], weights=[2, 0]),
    }
    if kind == "single":
        return vf.SingleTurnEnv(**common)
    return vf.ToolEnv(tools=[add], max_turns=4, **common) if kind == "tool" else Asked(max_turns=2, **common)
