"""Images through an engine's own server: a run, on a GPU where there is one, and its parts one by one."""

import asyncio
import time
from pathlib import Path
from typing import Any

import torch

from agentrl.chat import Chat
from agentrl.config import compose
from agentrl.config.schema import Model
from agentrl.engines.engine import Sampling
from agentrl.engines.servers import RemoteEngine, Replica, ServerBackend, ServerProcess
from agentrl.engines.servers.process import free_port
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.files import FilesTransport
from agentrl.engines.servers.weights.transport import Link
from agentrl.tracking import read_metrics
from agentrl.train import train
from agentrl.training import load_model, load_processor, pack_ledgers
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import media_of
from tests.media import test_run, vision_model

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


def check_run(folder: Path, engine: str, told: list[bool], *flags: str) -> None:
    """Four steps on rows with images; prints what it found. `told`: for each request, whether its tokens were read."""
    place = vision_model.folder(folder / "model", size=vision_model.WIDE)
    swapped = other_picture(place)
    start = time.monotonic()
    train(
        compose(
            [
                f"model.path={place}",
                "model.dtype=float32",
                f"data.train_files={test_run.colour_rows(folder, 4)}",
                "data.train_batch_size=8",
                "data.max_prompt_length=64",
                "data.max_response_length=6",
                "actor.ppo_mini_batch_size=8",
                "actor.optim.lr=3e-3",
                f"rollout.name={engine}",
                "rollout.n=8",
                "rollout.ignore_eos=true",
                "rollout.max_num_seqs=64",
                "rollout.weight_check=always",
                "rollout.start_timeout=600",
                f"reward.custom_reward_function.path={test_run.__file__}",
                "reward.custom_reward_function.name=colour_score",
                f"trainer.device={DEVICE.type}",
                "trainer.total_training_steps=4",
                "trainer.save_freq=-1",
                "trainer.val_before_train=false",
                f"trainer.default_local_dir={folder / 'run'}",
                *flags,
            ]
        )
    )
    steps = [line for line in read_metrics(folder / "run/metrics.jsonl") if line["step"]]
    show(engine, steps, swapped, told, time.monotonic() - start)
    assert len(steps) == 4
    assert len(told) >= 4 * 64  # more where the server was asked twice
    assert all(told)
    for step in steps:
        assert step["rollout/ledger_violations"] == 0
        assert step["rollout_gap/mean"] < min(swapped / 5, 0.1 if GPU else 1e-3)


def other_picture(place: Path) -> float:
    """Nats between the log-probs of the same tokens after a red and after a blue picture, mean."""
    tokenizer = vision_model.load(place)
    chat = Chat(tokenizer, processor=load_processor(Model(path=str(place)), tokenizer))
    module = load_model(Model(path=str(place), dtype="float32"), device=DEVICE, seed=0).module
    ledgers = []
    for colour in ("red", "blue"):
        messages = chat.see(
            [{"role": "user", "content": [{"type": "image", "image": vision_model.picture(colour, (28, 28))}]}]
        )
        ledgers.append(Ledger())
        ledgers[-1].append_prompt(chat.prompt(messages), media_of(messages))
        ledgers[-1].append_model([100 + 7 * i for i in range(16)], [-1.0] * 16, turn=0, version=0)
    with torch.no_grad():
        scored, _ = TokenLogprobs(module)(pack_ledgers(ledgers).to(DEVICE))
    red, blue = scored.cpu().chunk(2)
    return float((red - blue)[-16:].abs().mean())


def show(engine: str, steps: list[dict[str, Any]], swapped: float, told: list[bool], seconds: float) -> None:
    """What `pytest -s` prints."""
    print(f"\nimages through {engine} on {torch.cuda.get_device_name() if GPU else 'CPU'}, {seconds:.0f} s in all")
    print(f"requests with images: {len(told)}, read exactly as sent: {sum(told)}")
    print(f"log-probs with another picture: {swapped:.4f} nats away")
    for name in ("rollout_gap/mean", "rollout_gap/p99", "rollout_gap/k3", "rollout/reward_mean", "time/sync"):
        print(f"{name}: " + " ".join(f"{step[name]:.4f}" for step in steps))
    for name in ("rollout/ledger_violations", "rollout/infra_drops", "time/step"):
        print(f"{name}: " + " ".join(f"{step[name]:.2f}" for step in steps))


async def check_parts(folder: Path, place: Path, backend: ServerBackend, told: list[bool]) -> None:
    """The tokens arrive that were sent, images beside them or not, and what is drawn has the policy's log-probs: those
    of its new weights after an update, for the same images. A request with images can be ended."""
    module = load_model(Model(path=str(place)), device=torch.device("cpu"), seed=0).module
    tokenizer = vision_model.load(place)
    chat = Chat(tokenizer, processor=load_processor(Model(path=str(place)), tokenizer))
    port, scratch = free_port(), folder / "weights"
    server = ServerProcess(backend.command(port), backend.environment(), folder / "log.txt", scratch=scratch)
    transport = FilesTransport(Link(PolicyWeights(module), module.config, scratch, 1 << 20))
    replica = Replica(backend, f"http://127.0.0.1:{port}", server)
    engine = RemoteEngine(backend, [replica], transport)
    await engine.start()
    try:
        for version in range(2):
            with torch.no_grad():
                module.model.visual.merger.mlp[0].weight.mul_(-1.5)
            await engine.update_weights(version)
            assert await largest_gap(engine, chat, module, version) < 2e-3
        assert told == [True] * 4
        ids, media = prompt(chat, [(28, 28)])
        running = asyncio.create_task(engine.generate(ids, Sampling(400, ignore_eos=True), key="long", media=media))
        await asyncio.sleep(1)
        await engine.abort()
        ended = await running
        assert ended.finish_reason == "abort"
        assert len(ended.token_ids) == len(ended.logprobs) < 400
    finally:
        await engine.close()


async def largest_gap(engine: RemoteEngine, chat: Chat, module: Any, version: int) -> float:
    """Of the log-probs of tokens drawn after prompts with no image, one and two, from the module's own."""
    ledgers = []
    for i, sizes in enumerate([[], [(56, 56)], [(84, 28), (28, 28)]]):
        ids, media = prompt(chat, sizes)
        ledger = Ledger()
        ledger.append_prompt(ids, media)
        got = await engine.generate(ids, Sampling(8), key=f"{version}/{i}", media=media)
        ledger.append_model(got.token_ids, got.logprobs, turn=0, version=version)
        ledgers.append(ledger)
    batch = pack_ledgers(ledgers)
    with torch.no_grad():
        scored, _ = TokenLogprobs(module)(batch)
    return float((scored - batch.rollout_logprobs).abs().max())


def prompt(chat: Chat, sizes: list[tuple[int, int]]) -> tuple[list[int], Any]:
    """A prompt with red pictures, and tokens at its end that no tokenizer would make of their text."""
    parts = [{"type": "image", "image": vision_model.picture("red", size)} for size in sizes]
    messages = chat.see([{"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]}])
    odd = [*chat.template.encode("r"), *chat.template.encode("ed")]
    return [*chat.prompt(messages), *odd], media_of(messages)
