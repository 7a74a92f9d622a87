"""agentrl's extension of vLLM workers; on PYTHONPATH of that server alone, so it imports vLLM and nothing of agentrl.

Every method of `Extension` runs between vLLM's own start_weight_update and finish_weight_update, which take a model
back to the form of its checkpoint and bring it into the form of its kernels again.
"""

import json
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _new_process_group_helper, _world, rendezvous
from vllm.platforms import current_platform

TIMEOUT = timedelta(minutes=5)
GROUPS: dict[str, Any] = {}
"""Process groups of this worker with the trainer."""


def rewind_on_cpu() -> None:
    """Rewind the random generator after a chunk of a prompt on a CPU as well.

    vLLM draws a token after each chunk, discards it, and rewinds the generator by a method that CPU generators lack:
    without this, a seeded request with a chunked prompt ends the whole server.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    original = CPUModelRunner._bookkeeping_sync

    def keep_books(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        for i, generator in batch.generators.items():
            if self.discard_request_mask.np[i]:
                request = self.requests[batch.req_ids[i]]
                # Another seed after each token, so that no random numbers are used twice.
                generator.manual_seed((request.sampling_params.seed + len(request.output_token_ids)) % 2**63)
        generators, batch.generators = batch.generators, {}
        try:
            return original(self, *args, **kwargs)
        finally:
            batch.generators = generators

    CPUModelRunner._bookkeeping_sync = keep_books


class Extension:
    """Mixed into vLLM's worker by --worker-extension-cls; its methods are called over /collective_rpc."""

    device: torch.device
    model_runner: Any
    vllm_config: Any
    rank: int

    def agentrl_load_files(self, folder: str) -> None:
        """Take the weights of a folder's safetensors files."""
        for file in sorted(Path(folder).glob("*.safetensors")):
            self._agentrl_load(load_file(file, device=str(self.device)).items())

    def agentrl_join(self, group: str) -> None:
        """Join the process group that JSON describes; the server's first worker has the rank `first`."""
        about = json.loads(group)
        rank, size, name, backend = about["first"] + self.rank, about["size"], about["name"], about["backend"]
        url = f"tcp://{about['address']}:{about['port']}"
        store, _, _ = next(rendezvous(url, rank, size, timeout=TIMEOUT))
        store.set_timeout(TIMEOUT)
        prefixed = PrefixStore(name, store)
        made, _ = _new_process_group_helper(
            size, rank, [], dist.Backend(backend), prefixed, group_name=name, timeout=TIMEOUT
        )
        _world.pg_group_ranks[made] = {i: i for i in range(size)}
        GROUPS[name] = made

    def agentrl_receive(self, name: str, size: str, entries: str) -> None:
        """Take part in the broadcast of `size` bytes, and load the weights in them; `entries`: layout, as JSON."""
        flat = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(flat, src=0, group=GROUPS[name])
        self._agentrl_load(
            (key, flat[start:end].view(getattr(torch, dtype)).reshape(shape))
            for key, dtype, shape, start, end in json.loads(entries)
        )

    def agentrl_repack(self) -> None:
        """Pack the output layer of tied embeddings again.

        On a CPU vLLM computes with packed copies of the weights. It packs each layer that got weights; the tied output
        layer gets none, and would keep its old copy.
        """
        if self.device.type == "cpu":
            for layer in self.model_runner.get_model().modules():
                if type(layer).__name__ == "ParallelLMHead":
                    layer.quant_method.process_weights_after_loading(layer)

    def _agentrl_load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(weights)


if current_platform.is_cpu():
    rewind_on_cpu()
