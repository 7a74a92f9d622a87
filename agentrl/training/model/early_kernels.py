"""Chooses the attention kernel of a policy while its weights load: newer ones are compiled, which takes ten seconds."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import torch
from transformers import AutoConfig

from agentrl.config.schema import Model
from agentrl.training.model.adapter import base_and_adapter
from agentrl.training.model.attention import kernel_shares


@contextmanager
def kernel_chosen(model: Model, device: torch.device) -> Iterator[None]:
    """The kernel of a model that is on this machine is chosen in a thread while the body runs, and at its end."""
    if device.type != "cuda" or model.trust_remote_code:
        yield
        return
    thread = Thread(target=_choose, args=(str(model.path), model.lora_rank, device), daemon=True)
    with warnings.catch_warnings():  # the thread and the body both change filters, and put back what they found
        thread.start()
        yield
        thread.join()


def _choose(path: str, lora_rank: int, device: torch.device) -> None:
    with suppress(Exception):  # it comes again, and is reported, where the kernel is needed
        source, _ = base_and_adapter(path, lora_rank)
        kernel_shares(AutoConfig.from_pretrained(source, local_files_only=True), device)
