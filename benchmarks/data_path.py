"""The controller's work per token, from the ledger to the dump: CPU seconds and bytes per million tokens, by stage.

    python benchmarks/data_path.py --out before.json            # on one tree
    python benchmarks/data_path.py --against before.json        # on another: the ratios

No model and no engine: trajectories of several turns are recorded as an agent loop records them, checked, packed,
scored and dumped as a step does it, after a few of them that do not count. CPU seconds are those of this process, all
threads together. Run it on a quiet machine. Bytes are exact on any machine.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from agentrl.algorithms import estimate
from agentrl.config import compose
from agentrl.config.schema import Config, Reward
from agentrl.tracking.metrics import rollout_metrics
from agentrl.tracking.run_tracker import RunTracker
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.packing import advantages_by_key, pack_tokens, place_rewards
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Span, Trajectory

VOCABULARY = 50_000
GROUP, TURNS, PROMPT, MODEL, REPLY = 8, 6, 200, 180, 60
STEPS = 2
"""The second counts: the first starts processes and fills caches."""


Figures = dict[str, float]


class Stages:
    """CPU seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: Figures = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[name] = time.process_time() - start


def tokenizer() -> PreTrainedTokenizerFast:
    """Words of a few letters, one token each."""
    words = {f" w{i:x}": i for i in range(VOCABULARY)}
    backend = Tokenizer(models.WordLevel(words, unk_token=" w0"))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def drawn(rng: Random, count: int) -> tuple[list[int], list[float]]:
    """Token ids and log-probs as an engine's JSON gives them: fresh Python numbers."""
    ids, logprobs = [rng.randrange(VOCABULARY) for _ in range(count)], [-rng.random() for _ in range(count)]
    return json.loads(json.dumps([ids, logprobs]))


def material(rng: Random, tokens: int) -> list[list[tuple[list[int], list[float]]]]:
    """For each trajectory its prompt, then model turns and replies by turns."""
    lengths = [PROMPT, *[MODEL, REPLY] * TURNS]
    return [[drawn(rng, n) for n in lengths] for _ in range(max(GROUP, tokens // sum(lengths) // GROUP * GROUP))]


def recorded(parts: Sequence[tuple[list[int], list[float]]]) -> Ledger:
    """A ledger as the agent loops fill it."""
    ledger = Ledger()
    ledger.append_prompt(parts[0][0])
    for turn in range(TURNS):
        (ids, logprobs), (reply, _) = parts[1 + 2 * turn], parts[2 + 2 * turn]
        ledger.append_model(ids, logprobs, turn=turn, version=turn)
        ledger.append_observation(reply, Source.TOOL, turn=turn)
    return ledger


def trajectory(number: int, ledger: Ledger, decode: Callable[[Sequence[int]], str]) -> Trajectory:
    row = Row(f"rows:{number // GROUP}", [{"role": "user", "content": decode(list(ledger.ids[:PROMPT]))}])
    said = {"role": "assistant", "content": decode(list(ledger.ids[PROMPT:]))}
    spans = [Span("generate", float(turn), turn + 0.5) for turn in range(TURNS)]
    fields: dict[str, Any] = {"messages": [*row.prompt, said], "spans": spans, "turns": TURNS}
    return Trajectory(
        row, f"1/{row.uid}/{number % GROUP}", number % GROUP, ledgers=[ledger], reward=number / 7, **fields
    )


def advantages(batch: Batch, name: str) -> torch.Tensor:
    columns = (batch.rewards, batch.mask, batch.cu_seqlens, batch.trajectory, batch.group)
    return estimate(name, *columns, values=batch.rollout_logprobs, gamma=0.99, lam=0.95)[0]


def measured(tokens: int, folder: Path) -> Figures:
    """CPU seconds by stage."""
    stages, fast = Stages(), tokenizer()
    import agentrl.training.update.micro_batches  # noqa: F401 - no stage has the seconds of imports

    def decode(ids: Sequence[int]) -> str:
        return fast.backend_tokenizer.decode(list(ids), skip_special_tokens=False)

    given = material(Random(1), tokens)
    with stages("record"):
        ledgers = [recorded(parts) for parts in given]
    trajectories = [trajectory(i, ledger, decode) for i, ledger in enumerate(ledgers)]
    with stages("check"):
        for ledger in ledgers:
            ledger.check()
    with stages("metrics"):
        rollout_metrics(trajectories)
    with stages("pack"):
        batch = pack_tokens(trajectories)
    batch = replace(batch, old_logprobs=batch.rollout_logprobs * 0.99)
    with stages("place rewards"):
        batch = place_rewards(batch, trajectories, Reward().turn_weights)
    with stages("grpo"):
        batch.advantages = advantages(batch, "grpo")
    with stages("gae"):
        advantages(batch, "gae")
    with tracker(folder, decode) as tracking:
        for step in range(1, STEPS + 1):
            with stages("dump"):
                tracking.record_rollouts(step, trajectories)
                tracking.record_advantages(lambda: advantages_by_key(trajectories, batch))
                tracking.wait_for_dumps()
    return stages.seconds


def tracker(folder: Path, decode: Callable[[Sequence[int]], str]) -> RunTracker:
    config: Config = compose(
        [f"trainer.default_local_dir={folder}", "trainer.live=false", "trainer.logger=[]"], checks=()
    )
    return RunTracker(config, STEPS, 0, decode)


def state_bytes(tokens: int) -> float:
    """Bytes that a token takes in a ledger, once its engine's answer is gone."""
    rng, ledgers = Random(2), []
    tracemalloc.start()
    for parts in (material(rng, 1)[0] for _ in range(max(2, tokens // 100_000))):
        ledgers.append(recorded(parts))
    del parts
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / sum(map(len, ledgers))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, default=1_000_000)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--against", type=Path, help="the --out of another tree")
    args = arguments.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured(1, Path(folder) / "first")  # imports, and what a first call sets up
        seconds = measured(args.tokens, Path(folder) / "run")
    lengths = PROMPT + TURNS * (MODEL + REPLY)
    count = max(GROUP, args.tokens // lengths // GROUP * GROUP) * lengths
    found = {name: value / count * 1e6 for name, value in seconds.items()}
    found |= {"all": sum(found.values()), "bytes a token": state_bytes(args.tokens)}
    before = json.loads(args.against.read_text()) if args.against else {}
    for name, value in found.items():
        ratio = f"{before[name] / max(value, 1e-9):8.1f} times less" if name in before else ""
        sys.stdout.write(f"{name:16} {value:10.3f}{ratio}\n")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
