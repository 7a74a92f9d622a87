"""Exact causal attention over packed sequences, through transformers' AttentionInterface.

Packed sequences never see each other, and no T x T mask is built: each sequence has its own causal attention, by one
variable-length kernel on CUDA (half precision), elsewhere by one call per sequence. Without the packing arguments a
model set to `PACKED` behaves as with sdpa, so generation and padded batches still work.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentrl.chat.media.inputs import TYPES
from agentrl.training.batches.shared_prompts import SharedPrompts
from agentrl.training.model.attention.expand import expand_keys
from agentrl.training.model.attention.varlen import varlen_attention, varlen_fits
from agentrl.training.model.sequences import Run, run_apart
from agentrl.training.parallel.ulysses import exchanged, to_heads
from agentrl.training.perf.device import as_autocast

PACKED = "agentrl_packed"

_HARMLESS = {"position_ids", "max_length_k", "use_cache", *TYPES}
"""Arguments of a forward pass that reach attention and do not change it; token types change a mask, which is probed."""


PACKING = {
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_group", "seen_tokens"),
    *("attention_kernel", "probing"),
}
"""Arguments of a forward pass that only packed attention reads."""


ALIGNED = 8
"""Kernels take heads of a multiple of this width."""


class Unpackable(Exception):
    """Packed attention does not compute what the model's own does; the message says why."""


def use_packed_attention(module: PreTrainedModel) -> bool:
    """Switch a model to packed attention; False, and no change, where its attention is not behind the interface.

    Whether packed sequences then are what they are alone is for `packing_probe` to find out.
    """
    if not module._can_set_attn_implementation():
        return False
    AttentionInterface.register(PACKED, packed_attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)
    config: Any = module.config
    parts = {name: part for name in config.sub_configs if (part := getattr(config, name)) is not None}
    own = {"": config} | parts
    module.own_attention = {name: part._attn_implementation for name, part in own.items()}
    # A vision tower keeps its implementation: it has other sequence bounds.
    packed = {name: PACKED for name, part in own.items() if not name or part is config.get_text_config()}
    module.set_attn_implementation(module.own_attention | packed)
    return True


def use_own_attention(module: Any) -> None:
    """Switch a model back from packed attention."""
    module.set_attn_implementation(module.own_attention)


def is_packed(module: Any) -> bool:
    """Whether a model uses packed attention."""
    return bool(module.config.get_text_config()._attn_implementation == PACKED)


def packing_arguments(
    cu_seqlens: Tensor, longest: int, seq_group: Any = None, kernel: str = "fa2", shared: SharedPrompts | None = None
) -> dict[str, Any]:
    """Arguments of a model's forward that make its one row of tokens packed sequences.

    `seq_group`: the ranks that split the row; `cu_seqlens` is that of the whole row. `kernel`: by
    `ModelHandle.attention_kernel`. `shared`: the row has equal prompts once.
    """
    arguments = {"seq_group": seq_group} if seq_group is not None else {}
    arguments |= {"seen_tokens": (shared.seen, shared.order, shared.bounds)} if shared is not None else {}
    return arguments | {
        "cu_seq_lens_q": cu_seqlens if shared is None else shared.cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": longest,
        "max_length_k": longest,
        "attention_kernel": kernel,  # chosen outside the blocks: compiled ones take it as a constant
        # With a 4-D mask transformers builds none of its own; packed attention ignores it.
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=cu_seqlens.device),
        "use_cache": False,
    }


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    seq_group: Any = None,
    attention_kernel: str = "fa2",
    cu_seq_lens_k: Tensor | None = None,
    seen_tokens: tuple[Tensor, Tensor, Tensor] | None = None,
    probing: Callable[[nn.Module], object] | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of [1, heads, T, D] queries over [1, kv heads, T, D] keys and values: ([1, T, heads, D], None).

    `seen_tokens`: the tokens that each sequence sees, as `expand_keys` takes them, where sequences see the same ones.
    `s_aux`, `softcap`: the sinks and the cap of `Scores`. `probing`: called with the layer; for an argument that would
    be ignored, for example a choice of keys, Unpackable is raised.
    """
    if probing is not None:
        probing(module)
        others = {name: value for name, value in kwargs.items() if name not in _HARMLESS}
        if ignored := [name for name, value in others.items() if isinstance(value, Tensor) or value]:
            raise Unpackable(f"its attention takes {', '.join(ignored)}")
    if seq_group is not None:
        query, key, value = to_heads(query, key, value, seq_group)
        mine: dict[str, Any] = {"s_aux": s_aux if s_aux is None else s_aux.chunk(seq_group.size())[seq_group.rank()]}
        bounds = sliding_window, cu_seq_lens_q, max_length_q, None, attention_kernel
        output, _ = packed_attention(module, query, key, value, None, scaling, *bounds, softcap=softcap, **mine)
        return exchanged(output, seq_group), None
    scores = Scores(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap or None, s_aux)
    if cu_seq_lens_q is None or max_length_q is None:
        if scores.plain:
            return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        if attention_mask is None:
            attention_mask = _window_mask(query.shape[2], key.shape[2], sliding_window, query.device)
        return _attend(query, key, value, attention_mask, scores).transpose(1, 2), None
    query, key, value = as_autocast(query), as_autocast(key), as_autocast(value)
    keys = None
    if seen_tokens is not None:
        key, value, keys = expand_keys(key, *seen_tokens), expand_keys(value, *seen_tokens), cu_seq_lens_k
    if sliding_window is not None and sliding_window >= max_length_q:
        sliding_window = None
    if varlen_fits(query, sliding_window) and scores.plain:
        given = cu_seq_lens_q, max_length_q, scaling, attention_kernel, keys, sliding_window
        return varlen_attention(query, key, value, *given), None
    return _apart(query, key, value, cu_seq_lens_q, keys, partial(_sequences, scores, sliding_window)), None


class Scores(NamedTuple):
    """How products of queries and keys become weights."""

    scaling: float
    cap: float | None
    """Scores are at most this, by tanh."""
    sinks: Tensor | None
    """A logit of each head [heads] that takes part in the softmax without a value."""

    @property
    def plain(self) -> bool:
        """Whether every kernel computes them."""
        return self.cap is None and self.sinks is None


@torch.compiler.disable  # a graph for each list of lengths
def _apart(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, keys: Tensor | None, run: Run) -> Tensor:
    """`run` on the queries of each sequence and the keys and values that it sees: [1, T, heads, D]."""
    lengths = bounds.diff().tolist()
    seen = lengths if keys is None else keys.diff().tolist()
    return run_apart(run, [x[0].transpose(0, 1) for x in (query, key, value)], (lengths, seen, seen))[0][None]


def _sequences(scores: Scores, window: int | None, *columns: Tensor) -> tuple[Tensor]:
    """Causal attention of sequences' last tokens [n, L, heads, D] over them: [n, L, heads, D]."""
    dtype = columns[0].dtype
    if columns[0].device.type == "cpu" and dtype != torch.float32:
        # The CPU's half-precision backward is 4 times slower than that of float32.
        columns = tuple(x.float() for x in columns)
    query, key, value = (x.transpose(1, 2) for x in columns)
    mask = _window_mask(query.shape[2], key.shape[2], window, query.device)
    return (_attend(query, key, value, mask, scores).transpose(1, 2).to(dtype),)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """Attention of queries [n, heads, L, D] over keys and values [n, kv heads, M, D]: [n, heads, L, D].

    `mask`: bool, where queries see keys; None: plainly causal.
    """
    width, (scaling, cap, sinks) = value.shape[-1], scores
    if mask is None and not scores.plain:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    if mask is not None and sinks is not None:
        # One more key, of value 0, and one more feature, by which its product with a query is the sink.
        sink = (sinks / scaling).to(query.dtype)[:, None, None].expand(*query.shape[:-1], 1)
        query = torch.cat([query, F.pad(sink, (0, ALIGNED - 1))], dim=-1)
        key, value, mask = (*(F.pad(x, (0, ALIGNED, 1, 0)) for x in (key, value)), F.pad(mask, (1, 0), value=True))
        key[..., 0, -ALIGNED] = 1.0
    if mask is not None and cap is not None:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        capped = (query @ key.transpose(2, 3) * (scaling / cap)).tanh() * cap
        return capped.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
    )
    return output[..., :width]


def _window_mask(queries: int, length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Bool [queries, length] of a causal sliding window for the last tokens of a sequence; None where it is plainly
    causal: for all tokens, in a window that covers them."""
    wide = window is None or window >= length
    if wide and queries == length:
        return None
    causal = torch.ones(queries, length, dtype=torch.bool, device=device).tril(length - queries)
    return causal if window is None or wide else causal & ~causal.tril(length - queries - window)
