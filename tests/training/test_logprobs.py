"""Packed, chunked scoring against the plain way: one unpadded sequence at a time through the whole model."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from agentrl.algorithms.kl import kl_of_logits
from agentrl.training.model.attention.choosing import PACKED
from agentrl.training.model.head import chunked
from agentrl.training.model.head.chunked import ChunkedLogprobs
from agentrl.training.model.head.logprobs import Readout, TokenLogprobs
from tests.training.tiny import random_batch, tiny

LENGTHS = [7, 1, 12, 4, 9]
MODELS = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen2-window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {},
    "mistral": {"sliding_window": 4},
    "phi": {},  # its head has a bias
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "granite": {"logits_scaling": 8.0},  # scales its logits after the head
    "gemma2": {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0, "sliding_window": 4},
}
NOT_PACKED = {"gemma2"}
NOT_LINEAR = {"granite", "gemma2"}


def model(name: str, **more):
    kind = name.split("-")[0]
    return tiny(kind, packed=kind not in NOT_PACKED, **(MODELS[name] | more))


def plain(module, batch, temperature=1.0):
    """(log-probs, entropies), [T] each, of all tokens but the first of each sequence."""
    logprobs, entropies = [], []
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    for ids in batch.ids.split(batch.lengths):
        logits = module(input_ids=ids[None], use_cache=False).logits[0].float() / temperature
        table = logits.log_softmax(-1)
        own = table[:-1].gather(-1, ids[1:, None]).squeeze(-1)
        entropy = -(table.exp() * table).sum(-1)[:-1]
        zero = torch.zeros(1)
        logprobs += [zero, own]
        entropies += [zero, entropy]
    module.set_attn_implementation(before)
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_equal_the_plain_way(name, monkeypatch):
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cpu", 97 * 40)  # several chunks
    module = model(name)
    score = TokenLogprobs(module, temperature=0.7)
    assert (score.causal_lm.config._attn_implementation == PACKED) == (name not in NOT_PACKED)
    assert score.linear_head == (name not in NOT_LINEAR)
    batch = random_batch(LENGTHS)
    weights = torch.linspace(-1, 1, batch.num_tokens)
    logprobs, entropy = score(batch)
    expected, expected_entropy = (x * batch.mask for x in plain(module, batch, 0.7))
    torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, atol=2e-5, rtol=1e-5)
    mine = gradients(module, (weights * logprobs + 0.3 * entropy).sum())
    theirs = gradients(module, (weights * expected + 0.3 * expected_entropy).sum())
    assert mine.keys() == theirs.keys()
    for parameter, gradient in theirs.items():
        scale = max(gradient.abs().max().item(), 1e-3)
        assert (mine[parameter] - gradient).abs().max().item() <= 2e-4 * scale, parameter


def test_every_token_scores_the_prompt_too():
    module = tiny("llama")
    batch = random_batch(LENGTHS)
    logprobs, _ = TokenLogprobs(module)(batch, every_token=True)
    torch.testing.assert_close(logprobs, plain(module, batch)[0], atol=2e-5, rtol=1e-5)


def test_packed_sequences_do_not_see_each_other():
    module = tiny("qwen3")
    score = TokenLogprobs(module)
    one, other = random_batch([6, 5, 8], seed=1), random_batch([6, 5, 8], seed=1)
    bounds = one.cu_seqlens.tolist()
    other.ids[bounds[1] : bounds[2]] = (other.ids[bounds[1] : bounds[2]] + 11) % 97
    a, b = score(one)[0], score(other)[0]
    assert torch.equal(a[: bounds[1]], b[: bounds[1]])
    assert torch.equal(a[bounds[2] :], b[bounds[2] :])
    assert not torch.equal(a[bounds[1] : bounds[2]], b[bounds[1] : bounds[2]])


def test_gradient_checkpointing_changes_memory_only():
    batch = random_batch(LENGTHS)
    results = []
    for checkpointing in (False, True):
        module = tiny("llama")
        if checkpointing:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        results.append(gradients(module.train(), TokenLogprobs(module)(batch)[0].sum()))
    assert all(torch.allclose(results[0][name], results[1][name], atol=1e-5) for name in results[0])


def test_an_adapter_counts_and_only_it_gets_gradients():
    base = tiny("llama")
    batch = random_batch(LENGTHS)
    before = TokenLogprobs(base)(batch)[0]
    module = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    score = TokenLogprobs(module)
    assert score.causal_lm.config._attn_implementation == PACKED
    assert score.linear_head
    after = score(batch)[0]
    assert (after - before).abs().max() > 0.01
    with module.disable_adapter():
        torch.testing.assert_close(score(batch)[0], before)
    assert all("lora_" in name for name in gradients(module, after.sum()))


@pytest.mark.parametrize("dora", [False, True])
def test_an_adapter_on_the_head_is_not_bypassed(dora):
    lora = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM", use_dora=dora)
    module = get_peft_model(tiny("llama"), lora)
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    batch = random_batch(LENGTHS)
    score = TokenLogprobs(module)
    assert score.linear_head is not dora  # the chunks have plain LoRA's part
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    expected = plain(module.get_base_model(), batch)[0] * batch.mask
    gradients = torch.autograd.grad(expected.sum(), trained)
    found = score(batch)[0]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), trained), gradients, atol=1e-4, rtol=1e-4)
    with module.disable_adapter(), torch.no_grad():
        without = score(batch)[0]
        torch.testing.assert_close(without, plain(module.get_base_model(), batch)[0] * batch.mask, atol=2e-5, rtol=1e-5)


def test_half_precision_stays_near_float32():
    batch = random_batch(LENGTHS)
    exact = TokenLogprobs(tiny("llama"))(batch)[0]
    half = TokenLogprobs(tiny("llama").to(torch.bfloat16))(batch)[0]
    assert half.dtype == torch.float32
    assert (half - exact)[batch.mask].abs().mean() < 0.1


def test_greedy_sampling_means_untempered_logprobs():
    module, batch = tiny("llama"), random_batch(LENGTHS)
    assert torch.equal(TokenLogprobs(module, temperature=0.0)(batch)[0], TokenLogprobs(module)(batch)[0])


def test_a_packed_model_still_generates_and_takes_padded_batches():
    module = tiny("llama")
    assert module.config._attn_implementation == PACKED
    prompts = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    packed = module.generate(prompts, max_new_tokens=5, do_sample=False)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    padded = module(input_ids=prompts, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits
    alone = module(input_ids=prompts[:1, 2:]).logits
    torch.testing.assert_close(padded[0, 2:], alone[0], atol=1e-4, rtol=1e-4)
    module.set_attn_implementation("eager")
    assert torch.equal(packed, module.generate(prompts, max_new_tokens=5, do_sample=False))


def exact_kl(theirs):
    """The comparison with another model, at temperature 1."""
    return lambda logits, tokens: kl_of_logits(logits, theirs.logits(tokens, wide=False))[None]


@pytest.mark.parametrize("compared", [False, True])
def test_full_logits_are_never_held(compared, monkeypatch):
    """The largest float32 tensor made while scoring, beside another model's too, is a chunk of logits."""
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cpu", 64)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(tensor, torch.Tensor) and tensor.ndim == 2 and tensor.shape[-1] == 5000:
                    largest = max(largest, tensor.shape[0])
            return out

    hidden = torch.randn(300, 16, requires_grad=True)
    weight = torch.randn(5000, 16, requires_grad=True)
    with Watch():
        theirs = Readout(hidden.detach() + 1, weight.detach())
        other = (exact_kl(theirs), torch.arange(300)) if compared else ()
        *_, last = ChunkedLogprobs.apply(hidden, weight, None, torch.arange(300), 1.0, "torch", False, 0, *other)
        last.sum().backward()
    assert largest == chunked.MIN_CHUNK


@pytest.mark.parametrize("kept", [100, 70, 1])
@pytest.mark.parametrize("compared", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_kept_logits_give_the_same_gradients(kept, compared, wide, monkeypatch):
    """They are not computed again; all gradients are equal bit for bit, also those of a second backward pass."""
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cpu", 64)
    torch.manual_seed(0)
    inputs = [torch.randn(100, 16), torch.randn(500, 16), torch.randn(500)]
    theirs = Readout(*(x + 0.1 * torch.randn_like(x) for x in inputs))
    other = (exact_kl(theirs), torch.arange(100)) if compared else ()
    targets, factors = torch.randint(500, (100,)), torch.randn(3, 100)
    found, computed = [], []
    own = chunked.logits_of
    for keep in (0, kept):
        calls = []

        def counted(rows, *rest, calls=calls, **more):
            calls.append(rows)
            return own(rows, *rest, **more)

        monkeypatch.setattr(chunked, "logits_of", counted)
        leaves = [x.clone().requires_grad_() for x in inputs]
        columns = ChunkedLogprobs.apply(*leaves, targets, 0.7, "torch", wide, keep, *other)
        loss = sum((factor * column).sum() for factor, column in zip(factors, columns, strict=False))
        first = torch.autograd.grad(loss, leaves, retain_graph=True)
        computed.append(len(calls))
        found.append([*columns, *first, *torch.autograd.grad(loss, leaves)])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
    chunks = -(-100 // chunked.MIN_CHUNK)
    saved = {100: chunks, 70: 2, 1: 0}[kept]
    assert computed[0] - computed[1] == saved
