"""Environments of verifiers' older API: a module's `load_environment`, whose object runs rows of its dataset."""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

MODEL = "policy"


def module_of(id: str) -> str:
    """The name of the module that has an environment."""
    return id.rpartition("/")[2].replace("-", "_")


def is_classic(id: str) -> bool:
    """Whether both verifiers and the environment have the older API."""
    import verifiers

    there = hasattr(verifiers, "load_environment") and find_spec(module_of(id)) is not None
    return there and hasattr(import_module(module_of(id)), "load_environment")


class ClassicEnvironment:
    """An environment, and the rows of its training dataset."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Raises ValueError for settings, which this API does not have."""
        os.environ["TQDM_DISABLE"] = "1"  # a bar for each rollout
        import verifiers

        if settings["settings"]:
            raise ValueError("environments of verifiers' older API have no settings: write their arguments in kwargs")
        self.env = verifiers.load_environment(settings["id"], **settings["kwargs"])
        limits = [turns for turns in (getattr(self.env, "max_turns", -1), settings["turns"]) if turns and turns > 0]
        self.env.max_turns = min(limits, default=-1)
        rows = self.env.get_dataset()
        self.rows = rows.select(range(min(len(rows), settings["count"])))

    def prompts(self) -> list[list[dict[str, Any]]]:
        """The messages of each row's prompt."""
        return [messages_of(prompt) for prompt in self.rows["prompt"]]

    async def roll_out(self, number: int, url: str) -> dict[str, Any]:
        """Run a row once against the model at `url`. Raises what the environment does."""
        run = self.env.a_generate if hasattr(self.env, "a_generate") else self.env.generate
        found = await run(self.rows.select([number]), client=client_of(url), model=MODEL)
        columns = found if isinstance(found, dict) else vars(found)
        if "outputs" not in columns:  # the first releases give a list for each value
            return {"reward": columns["reward"][0], "metrics": {k: v[0] for k, v in columns["metrics"].items()}}
        (output,) = columns["outputs"]
        if error := output.get("error"):
            return {"error": f"{error.get('error', '')}: {error.get('error_chain_str', error)}"}
        full = output.get("stop_condition") == "max_turns_reached" and self.env.max_turns > 1
        return {"reward": output["reward"], "metrics": output.get("metrics"), "full": full}


def messages_of(prompt: Any) -> list[dict[str, Any]]:
    """A prompt as messages; a dataset gives each of them the names of all."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{name: value for name, value in message.items() if value is not None} for message in prompt]


def client_of(url: str) -> Any:
    """A client of a model, as this release takes it."""
    if find_spec("verifiers.clients") is None:
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=None)
    from verifiers.types import ClientConfig

    return ClientConfig(api_base_url=url, api_key_var="AGENTRL_NO_KEY", max_retries=0)
