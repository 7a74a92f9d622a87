"""Images through SGLang itself: it reads the tokens that are trained on.

The run takes a GPU where there is one: `pytest tests/media/test_sglang.py -m engine -k run -s` prints what it found.
"""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.chat import Chat, Ledger
from agentrl.config import compose
from agentrl.config.schema import Model
from agentrl.media import media_of
from agentrl.rollout.engine import Sampling
from agentrl.rollout.engines.remote import RemoteEngine, Replica, ServerProcess
from agentrl.rollout.engines.remote.place import find_python
from agentrl.rollout.engines.remote.process import free_port
from agentrl.rollout.engines.remote.settings import Settings
from agentrl.rollout.engines.remote.weights import PolicyWeights
from agentrl.rollout.engines.remote.weights.files import FilesTransport
from agentrl.rollout.engines.sglang import SGLang
from agentrl.rollout.engines.sglang import dialect as sglang
from agentrl.tracking import read_metrics
from agentrl.train import train
from agentrl.training import load_model, load_processor, pack_ledgers
from agentrl.training.logprobs import TokenLogprobs
from tests.media import eyes, test_run

PYTHON = find_python("sglang", "sglang")
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
# Kernels that need no compiling, and attention that is there whatever the build.
ON_GPU = [
    "rollout.gpu_memory_utilization=0.2",
    "+rollout.engine_kwargs.sglang.attention_backend=triton",
    "+rollout.engine_kwargs.sglang.sampling_backend=pytorch",
    "+rollout.engine_kwargs.sglang.cuda_graph_backend_prefill=disabled",
    "+rollout.engine_kwargs.sglang.mm_attention_backend=sdpa",
]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PYTHON is None, reason="`agentrl engine install sglang` comes first"),
]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request with images, whether the server said that it read exactly the tokens it was sent."""
    answers: list[bool] = []

    def spying(answer: dict, ids: list[int]) -> bool:
        answers.append(answer.get("prompt_token_ids") == ids)
        return as_sent(answer, ids)

    as_sent = sglang._as_sent
    monkeypatch.setattr(sglang, "_as_sent", spying)
    return answers


def test_a_run(tmp_path: Path, told: list[bool]) -> None:
    place = eyes.folder(tmp_path / "model", size=eyes.WIDE)
    swapped = other_picture(place)
    start = time.monotonic()
    train(
        compose(
            [
                f"model.path={place}",
                "model.dtype=float32",
                f"data.train_files={test_run.colour_rows(tmp_path, 4)}",
                "data.train_batch_size=8",
                "data.max_prompt_length=64",
                "data.max_response_length=6",
                "actor.ppo_mini_batch_size=8",
                "actor.optim.lr=3e-3",
                "rollout.name=sglang",
                "rollout.n=8",
                "rollout.ignore_eos=true",
                "rollout.max_num_seqs=64",
                "rollout.deterministic=false",
                "rollout.weight_check=always",
                "rollout.start_timeout=600",
                f"reward.custom_reward_function.path={test_run.__file__}",
                "reward.custom_reward_function.name=colour_score",
                f"trainer.device={DEVICE.type}",
                "trainer.total_training_steps=4",
                "trainer.save_freq=-1",
                "trainer.val_before_train=false",
                f"trainer.default_local_dir={tmp_path / 'run'}",
                *(ON_GPU if GPU else []),
            ]
        )
    )
    steps = [line for line in read_metrics(tmp_path / "run/metrics.jsonl") if line["step"]]
    show(steps, swapped, told, time.monotonic() - start)
    assert len(steps) == 4
    assert len(told) >= 4 * 64  # more where the server was asked twice
    assert all(told)
    for step in steps:
        assert step["rollout/ledger_violations"] == 0
        assert step["rollout_gap/mean"] < min(swapped / 5, 0.1 if GPU else 1e-3)


def other_picture(place: Path) -> float:
    """Nats between the log-probs of the same tokens after a red and after a blue picture, mean."""
    tokenizer = eyes.load(place)
    chat = Chat(tokenizer, processor=load_processor(Model(path=str(place)), tokenizer))
    module = load_model(Model(path=str(place), dtype="float32"), device=DEVICE, seed=0)
    ledgers = []
    for colour in ("red", "blue"):
        messages = chat.see([{"role": "user", "content": [{"type": "image", "image": eyes.picture(colour, (28, 28))}]}])
        ledgers.append(Ledger())
        ledgers[-1].append_prompt(chat.prompt(messages), media_of(messages))
        ledgers[-1].append_model([100 + 7 * i for i in range(16)], [-1.0] * 16, turn=0, version=0)
    with torch.no_grad():
        scored, _ = TokenLogprobs(module)(pack_ledgers(ledgers).to(DEVICE))
    red, blue = scored.cpu().chunk(2)
    return float((red - blue)[-16:].abs().mean())


def show(steps: list[dict[str, Any]], swapped: float, told: list[bool], seconds: float) -> None:
    """What `-s` prints."""
    print(f"\nimages through SGLang on {torch.cuda.get_device_name() if GPU else 'CPU'}, {seconds:.0f} s in all")
    print(f"requests with images: {len(told)}, read exactly as sent: {sum(told)}")
    print(f"log-probs with another picture: {swapped:.4f} nats away")
    for name in ("rollout_gap/mean", "rollout_gap/p99", "rollout_gap/k3", "rollout/reward_mean", "time/sync"):
        print(f"{name}: " + " ".join(f"{step[name]:.4f}" for step in steps))
    for name in ("rollout/ledger_violations", "rollout/infra_drops", "time/step"):
        print(f"{name}: " + " ".join(f"{step[name]:.2f}" for step in steps))


async def test_images_reach_the_server(tmp_path: Path, told: list[bool]) -> None:
    place = eyes.folder(tmp_path / "model")
    module = load_model(Model(path=str(place)), device=torch.device("cpu"), seed=0)
    tokenizer = eyes.load(place)
    chat = Chat(tokenizer, processor=load_processor(Model(path=str(place)), tokenizer))
    dialect, port = SGLang(Settings(str(PYTHON), str(place), "cpu", "float32", 512, 8)), free_port()
    scratch = tmp_path / "weights"
    server = ServerProcess(dialect.command(port), dialect.environment(), tmp_path / "log.txt", scratch=scratch)
    engine = RemoteEngine(
        dialect,
        [Replica(dialect, f"http://127.0.0.1:{port}", server)],
        FilesTransport(PolicyWeights(module), module.config, folder=scratch, bucket_bytes=1 << 20),
        max_model_len=512,
    )
    await engine.start()
    ledgers = []
    try:
        with torch.no_grad():  # the server must have the policy's weights, not those of the folder
            module.model.visual.merger.mlp[0].weight.mul_(-1.5)
        await engine.update_weights(0)
        for i, sizes in enumerate([[], [(56, 56)], [(84, 28), (28, 28)]]):
            parts = [{"type": "image", "image": eyes.picture("red", size)} for size in sizes]
            messages = chat.see([{"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]}])
            ledger = Ledger()
            # Tokens that no tokenizer would make of their text: they must arrive as they are.
            odd = [*chat.prompt(messages), *chat.template.encode("r"), *chat.template.encode("ed")]
            ledger.append_prompt(odd, media_of(messages))
            got = await engine.generate(odd, Sampling(8), key=str(i), media=ledger.media)
            ledger.append_model(got.token_ids, got.logprobs, turn=0, version=0)
            ledgers.append(ledger)
    finally:
        await engine.close()
    assert told == [True, True]
    batch = pack_ledgers(ledgers)
    with torch.no_grad():
        scored, _ = TokenLogprobs(module)(batch)
    assert float((scored - batch.rollout_logprobs).abs().max()) < 2e-3
