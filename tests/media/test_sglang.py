"""Images through SGLang itself, on this machine's CPU: it reads the tokens that are trained on."""

from pathlib import Path

import pytest
import torch

from agentrl.chat import Chat, Ledger
from agentrl.config.schema import Model
from agentrl.media import media_of
from agentrl.rollout.engine import Sampling
from agentrl.rollout.engines.remote import RemoteEngine, Replica, ServerProcess
from agentrl.rollout.engines.remote.place import environments
from agentrl.rollout.engines.remote.process import free_port
from agentrl.rollout.engines.remote.settings import Settings
from agentrl.rollout.engines.remote.weights import PolicyWeights
from agentrl.rollout.engines.remote.weights.files import FilesTransport
from agentrl.rollout.engines.sglang import SGLang
from agentrl.rollout.engines.sglang import dialect as sglang
from agentrl.training import load_model, load_processor, pack_ledgers
from agentrl.training.logprobs import TokenLogprobs
from tests.media import eyes

PYTHON = environments() / "sglang" / "bin" / "python"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason="`agentrl engine install sglang --cpu` comes first"),
]


async def test_images_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def spying(answer: dict, ids: list[int]) -> bool:
        told.append(answer.get("prompt_token_ids") == ids)
        return as_sent(answer, ids)

    as_sent = sglang._as_sent
    monkeypatch.setattr(sglang, "_as_sent", spying)
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
