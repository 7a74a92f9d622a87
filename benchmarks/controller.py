"""Bytes and CPU seconds of the controller of a Ray run, by trajectory: they do not grow with its tokens.

    python benchmarks/controller.py                              # 512 to 128k tokens a trajectory, with routes
    python benchmarks/controller.py --tokens 512 --no-routes --estimator gae

Trajectories come as a rollout worker sends them. What the controller does with them in a step is measured: it receives
them, computes metrics, packs a batch, sends its shares to eight ranks for their log-probs, computes advantages, and
sends them again for the update. Neither Ray nor a model runs: what would go to another process is pickled and counted.
"""

import argparse
import pickle
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agentrl.config.schema import Algorithm, Config
from agentrl.runtime.ray.learner import RayLearner
from agentrl.tracking.metrics import rollout_metrics
from agentrl.training import ComputeAdvantages
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.outline import BatchPlan
from agentrl.training.batches.splitting import assign_shares
from agentrl.training.batches.transfer import computed_columns
from agentrl.training.update.advantages import columns_read
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.store import Outline, Stored
from agentrl.trajectory.trajectory import Trajectory

RANKS, GROUP, TURNS = 8, 8, 4
LAYERS, EXPERTS = 48, 8
"""Routes take 384 bytes a token: Qwen3-30B-A3B."""
WORD = "token "


def made(number: int, tokens: int, routes: bool) -> Trajectory:
    """A trajectory of some turns, half of its tokens the model's."""
    rng = np.random.default_rng(number)
    part, ledger = tokens // (2 * TURNS), Ledger()
    row = Row(f"r{number // GROUP}", [{"role": "user", "content": "Go on."}])
    messages = list(row.prompt)
    ledger.append_prompt(rng.integers(0, 50_000, part).tolist())
    for turn in range(TURNS):
        if turn:
            ledger.append_observation(rng.integers(0, 50_000, part).tolist(), Source.TOOL, turn=turn)
        drawn, known = rng.integers(0, 50_000, part).tolist(), len(ledger) + part - 1 - ledger.routed
        experts = rng.integers(0, 128, (known, LAYERS, EXPERTS), np.uint8) if routes else None
        ledger.append_model(drawn, (-rng.random(part)).tolist(), turn=turn, version=0, experts=experts)
        messages += [{"role": "assistant", "content": WORD * part}, {"role": "tool", "content": WORD * part}]
    trajectory = Trajectory(row, f"1/{row.uid}/{number % GROUP}", number % GROUP, messages, ledgers=[ledger])
    trajectory.reward, trajectory.turns = float(rng.random()), TURNS
    return trajectory


@dataclass
class Store:
    """Bodies by number, as Ray's references."""

    values: list[Any] = field(default_factory=list)

    def put(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def get(self, references: Sequence[int]) -> list[Any]:
        return [self.values[number] for number in references]


@dataclass
class Ranks:
    """Ranks that are sent pickles. Their own work is not measured."""

    store: Store
    passed: int = 0
    """Bytes."""
    elsewhere: float = 0.0
    """CPU seconds that are not the controller's."""

    def call(self, method: str, name: str, outline: Any) -> BatchPlan:
        self.passed += len(pickle.dumps(outline, 5))
        return BatchPlan(assign_shares(outline.lengths, [range(len(outline.lengths))], RANKS, hidden=2048), True)

    def scatter(self, method: str, values: Iterable[Any], copies: int) -> list[Any]:
        sent = [pickle.dumps(value, 5) for value in values]
        self.passed += sum(map(len, sent))
        begun = time.process_time()
        answers = [self.answer(method, pickle.loads(data)) for data in sent]
        self.passed += sum(map(len, answers))
        self.elsewhere += time.process_time() - begun
        return [pickle.loads(answer) for answer in answers]

    def answer(self, method: str, share: Any) -> bytes:
        if method == "update":
            return pickle.dumps({"actor/loss": 0.0}, 5)
        batch: Batch = share.batch(self.store.get(share.references))
        scored = replace(batch, old_logprobs=batch.rollout_logprobs, values=batch.rollout_logprobs)
        return pickle.dumps(self.store.put(computed_columns(scored, batch, share.wanted)), 5)


def measured(tokens: int, count: int, routes: bool, estimator: str) -> tuple[float, float]:
    """(bytes, CPU seconds) of the controller for each trajectory of `count`."""
    store = Store()
    ranks = Ranks(store)
    algorithm = Algorithm(adv_estimator=estimator)
    compute = ComputeAdvantages(algorithm, seed=0)
    trajectories = [made(number, tokens, routes) for number in range(count)]
    rows = [each.row for each in trajectories]
    learner = RayLearner(ranks, store, 1, reads=columns_read(Config(algorithm=algorithm)))  # type: ignore[arg-type]
    sent = [pickle.dumps(Outline.of(each, store.put), 5) for each in trajectories]
    del trajectories
    begun = time.process_time()
    received = [Stored(pickle.loads(data), row, store) for data, row in zip(sent, rows, strict=True)]
    rollout_metrics(received)
    batch = learner.compute_logprobs(learner.pack(received, None))
    batch, _ = compute(batch, received, None, 1)
    learner.update(batch)
    seconds = time.process_time() - begun - ranks.elsewhere
    return (sum(map(len, sent)) + ranks.passed) / count, seconds / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096, 32_768, 131_072])
    parser.add_argument("--count", type=int, default=16, help="trajectories of a step")
    parser.add_argument("--estimator", default="grpo")
    parser.add_argument("--no-routes", action="store_true")
    args = parser.parse_args()
    measured(512, 8, not args.no_routes, args.estimator)  # imports
    print(f"{'tokens':>8} {'bytes':>12} {'CPU ms':>8}   of the controller, for each of {args.count} trajectories")
    for tokens in args.tokens:
        count = max(GROUP, min(args.count, 2_000_000 // tokens))
        size, seconds = measured(tokens, count, not args.no_routes, args.estimator)
        print(f"{tokens:>8} {size:>12,.0f} {1000 * seconds:>8.2f}")


if __name__ == "__main__":
    main()
