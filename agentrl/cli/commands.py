"""The table of commands, and their parser. Imports no command."""

import argparse
from dataclasses import replace
from typing import NoReturn

from agentrl.core.compatibility import Command, layers
from agentrl.core.errors import UserError


class Parser(argparse.ArgumentParser):
    """argparse, with errors reported like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the usage."""
        raise UserError(f"{message}; see `{self.prog} --help`")


TABLE = (
    Command("data", "Prepare", "write training rows and demonstrations for a task"),
    Command("model", "Prepare", "prepare a model: a small pretrained chat model, or a tiny one from scratch"),
    Command("config", "Prepare", "explain keys, and check configurations written for verl"),
    Command("engine", "Prepare", "install an inference engine in an environment of its own"),
    Command("completion", "Prepare", "set up shell completion of commands, options, keys and values"),
    Command("sft", "Train", "fine-tune a model on demonstrations (supervised)", "sft"),
    Command("train", "Train", "train a model with reinforcement learning, with tools, over several turns", "train"),
    Command("merge", "Train", "export a checkpoint as a model folder in Hugging Face format"),
    Command("plan", "Prepare", "forecast layouts, memory and seconds of a run on GPUs", "train"),
    Command("doctor", "Inspect", "check a run before it spends GPU time", "train"),
    Command("cluster", "Inspect", "check the machines of a Ray cluster before a run", "train"),
    Command("generate", "Measure", "answer rows with a model and store the answers", "eval"),
    Command("eval", "Measure", "score stored answers or a model: means, pass@k, intervals", "eval"),
    Command("rollout", "Inspect", "run a few rows and show the conversations, with trained tokens coloured", "train"),
    Command("tasks", "Inspect", "check task folders; remove what runs with containers have left"),
    Command("tools", "Inspect", "call each tool of a YAML file once and show its schema and result"),
    Command("view", "Inspect", "show runs in a browser: curves, conversations, timelines"),
    Command("gateway", "Serve", "serve a model to agents in three vendors' protocols, recorded token by token"),
    Command("serve", "Serve", "serve a model to training programs over Tinker's API", "train"),
    Command("sandbox", "Serve", "run untrusted code in isolation: as a server, or one file"),
)

COMMANDS = {command.name: replace(command, module=f"agentrl.cli.{command.name}") for command in TABLE}


def commands() -> dict[str, Command]:
    """All commands by name, with those of compatibility layers."""
    return COMMANDS | {command.name: command for command in added_commands() if " " not in command.name}


def added_commands() -> list[Command]:
    """The commands of compatibility layers; one below `agentrl config` is called "config NAME"."""
    return [command for layer in layers() for command in layer.commands()]
