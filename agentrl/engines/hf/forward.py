"""The forward pass of the Llama family over packed tokens and cached keys and values.

RMSNorm, rotary embedding, grouped-query attention and a gated MLP (arXiv 2302.13971; Qwen3 also normalises queries
and keys per head). Log-probs equal those of the module's own forward pass up to rounding.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad, scaled_dot_product_attention, silu

from agentrl.engines.hf.batch import Batch, Decode, PoolPart, Prefill
from agentrl.engines.hf.weights import Layer, Weights
from agentrl.training.perf.cpu import missing_rows


def forward(weights: Weights, batch: Batch) -> Tensor:
    """Logits [n, vocabulary] for `batch.outputs`; writes the keys and values of all its tokens."""
    more = missing_rows(len(batch.tokens), batch.tokens.device)
    tokens, positions = pad(batch.tokens, (0, more)), pad(batch.positions, (0, more))
    x = embedding(tokens, weights.embedding)
    rotation = rotations(weights, x, positions)
    outputs = pad(batch.outputs, (0, missing_rows(len(batch.outputs), batch.outputs.device)))
    for i, layer in enumerate(weights.layers):
        mixed = _attention(weights, layer, i, layer.attention_norm(x), rotation, batch)
        if i == len(weights.layers) - 1:  # the other tokens' last outputs are not used
            x, mixed = x[outputs], mixed[outputs]
        x = layer.output.add_to(x, mixed)
        gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, -1)
        x = layer.down.add_to(x, silu(gate).mul_(up))
    return weights.head(weights.norm(x))[: len(batch.outputs)]


def rotations(weights: Weights, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [T, 1, head_dim], from the module's own rotary embedding with its scaling."""
    cos, sin = weights.rotary(x, positions[None])
    half = weights.head_dim // 2
    # x * cos + (-x2, x1) * sin equals x * cos + (x2, x1) * (-sin, sin), and the swap is a roll.
    signed = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)
    return cos[0, :, None], signed[:, None]


def _attention(
    weights: Weights, layer: Layer, index: int, x: Tensor, rotation: tuple[Tensor, Tensor], batch: Batch
) -> Tensor:
    """Attention of every token over its sequence: [T, heads * head_dim]."""
    heads, kv_heads = weights.heads, weights.kv_heads
    mixed = layer.qkv(x).view(len(x), heads + 2 * kv_heads, weights.head_dim)
    turned = mixed[:, : heads + kv_heads]
    if layer.q_norm is not None and layer.k_norm is not None:
        turned = torch.cat((layer.q_norm(turned[:, :heads]), layer.k_norm(turned[:, heads:])), 1)
    cos, sin = rotation
    turned = torch.addcmul(turned * cos, turned.roll(weights.head_dim // 2, -1), sin)
    queries = turned[:, :heads]
    cached = torch.cat((turned[:, heads:], mixed[:, heads + kv_heads :]), 1)
    out = [_part_attention(weights, part, index, queries, cached) for part in batch.parts]
    whole = out[0] if len(out) == 1 else torch.cat(out)
    return pad(whole, (0, 0, 0, len(x) - len(whole)))


def _part_attention(weights: Weights, part: PoolPart, index: int, queries: Tensor, cached: Tensor) -> Tensor:
    memory = part.pool.layers[index]
    new = cached[part.start : part.stop]
    memory.view(-1, weights.head_dim).index_copy_(0, part.write, new.reshape(-1, weights.head_dim))
    out = []
    if part.decode is not None:
        out.append(_decode(weights, part.decode, memory, queries[part.start : part.start + part.decoding]))
    for prefill in part.prefills:
        out.append(_prefill(weights, prefill, memory, queries[prefill.start : prefill.stop]))
    return out[0] if len(out) == 1 else torch.cat(out)


def _decode(weights: Weights, decode: Decode, memory: Tensor, queries: Tensor) -> Tensor:
    """Attention of one token a sequence, in one call: the heads that share keys take the place of query positions."""
    keys, values = memory[:, decode.low : decode.high, :, : decode.mask.shape[-1]]
    grouped = queries.reshape(len(queries), weights.kv_heads, -1, weights.head_dim)
    if decode.active is not None:
        spread = grouped.new_zeros((decode.high - decode.low, *grouped.shape[1:]))
        grouped = spread.index_copy_(0, decode.active, grouped)
    out = scaled_dot_product_attention(grouped, keys, values, attn_mask=decode.mask, scale=weights.scaling)
    if decode.active is not None:
        out = out[decode.active]
    return out.reshape(len(queries), -1)


def _prefill(weights: Weights, prefill: Prefill, memory: Tensor, queries: Tensor) -> Tensor:
    count = len(queries)
    beyond = min(missing_rows(prefill.length, queries.device), memory.shape[-2] - prefill.length)
    more = beyond if prefill.mask is None else missing_rows(count, queries.device)
    keys, values = memory[:, prefill.slot, None, :, : prefill.length + beyond]
    mask = prefill.mask
    if mask is not None:
        mask = pad(pad(mask, (0, beyond), value=-torch.inf), (0, 0, 0, more))
    queries = pad(queries, (0, 0, 0, 0, 0, more)).transpose(0, 1)[None]
    kind = {"is_causal": mask is None, "enable_gqa": weights.heads != weights.kv_heads}
    out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=weights.scaling, **kind)
    return out[0].transpose(0, 1)[:count].reshape(count, -1)
