"""The bodies of Tinker's protocol: its protobuf messages, and fields of its JSON.

Invariant: no array is larger than the numbers that one request may have, whatever shape a client names.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from numpy.typing import NDArray

from agentrl.chat.media.processor import Processor
from agentrl.engines.scores import TokenScores
from agentrl.http.refusals import Refused
from agentrl.http.serving import parse
from agentrl.serve.contract import Datum, PassResult
from agentrl.trajectory.medium import Medium

T = TypeVar("T")
Body = Mapping[str, Any]
Answer = dict[str, Any] | bytes
"""JSON, or a message."""

PROTOBUF = "application/x-protobuf"
DTYPES = {1: "<f4", 2: "<i8", 3: "<i4"}
NAMED_DTYPES = {"float32": "<f4", "int64": "<i8"}
MAX_NUMBERS = 2**25
"""Numbers in the columns of one request, with those that sparse ones leave out."""
MAX_FEATURES = 2**29
"""Numbers that the images of one request may become."""
KINDS_SERVED = "send chunks of encoded_text and images themselves: audio is not served, and no address is fetched"
Chunk = list[int] | tuple[bytes | str, int]
"""The tokens of a text; or an image as bytes or a data URL, and the number of its tokens, 0 where it is not given."""
PROCESSING = Lock()
"""A tokenizer, which the processor has, serves one thread at a time."""
MUST: Any = object()
PASS_BEGIN = re.compile(rb"\n.[\w:-]+\x10[\x80-\xff]{0,4}[\0-\x7f]", re.DOTALL)
MODEL_ID, SEQ_ID = re.compile(rb'"model_id": ?"([\w:-]+)"'), re.compile(rb'"seq_id": ?(\d{1,9})\b')

TEXT = Path(__file__).with_name("messages.textproto").read_text()
FILE = text_format.Parse(TEXT, descriptor_pb2.FileDescriptorProto())
POOL = descriptor_pool.DescriptorPool()
"""Apart from the pool of all, where a client in this process has the same names."""
POOL.Add(FILE)
KINDS = message_factory.GetMessageClassesForFiles([FILE.name], POOL)
MESSAGES = {name.rpartition(".")[2]: kind for name, kind in KINDS.items()}


def field(body: Body, name: str, kind: type[T], default: Any = MUST) -> T:
    """A field of a JSON object, or `default` where it is absent or null. Raises Refused."""
    value: Any = body.get(name)
    if value is None and default is not MUST:
        return default
    large = type(value) is int and abs(value) >= 2**63
    if kind is float and type(value) is int and not large:
        value = float(value)
    if type(value) is not kind or value in (math.inf, -math.inf) or large:
        given = "missing" if value is None else repr(value)[:80]
        raise Refused(f"{name}: {given}: give a value of type {kind.__name__}")
    return value


def pass_input(raw: bytes, processor: Processor) -> tuple[list[Datum], str, dict[str, float], bool]:
    """(data, loss, its settings, whether no gradient is asked for) in a message, or in the JSON of SDKs up to 0.19.
    Raises Refused."""
    if raw.startswith(b"{"):
        return _json_input(parse(raw), processor)
    message = MESSAGES["ForwardBackwardRequest"].FromString(raw)
    settings = {**message.loss_fn_config, **{name: v.number for name, v in message.loss_fn_config_v2.items()}}
    return data_of(message, processor), message.loss_fn, settings, message.forward_only


def _json_input(body: Body, processor: Processor) -> tuple[list[Datum], str, dict[str, float], bool]:
    forward_only = "forward_input" in body
    given = field(body, "forward_input" if forward_only else "forward_backward_input", dict)
    try:
        data = field(given, "data", list)
        prompts = read_prompts([chunks_of(datum["model_input"]) for datum in data], processor)
        data = [Datum(np.array(ids, np.int64), _json_columns(d), m) for d, (ids, m) in zip(data, prompts, strict=True)]
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise Refused(f"a datum cannot be read: {type(error).__name__}: {error}") from error
    return data, field(given, "loss_fn", str), field(given, "loss_fn_config", dict, {}), forward_only


def _json_columns(datum: Body) -> dict[str, NDArray[Any]]:
    arrays = {name: (np.array(t["data"], NAMED_DTYPES[t["dtype"]]), t) for name, t in datum["loss_fn_inputs"].items()}
    return {name: array.reshape(t.get("shape") or -1) for name, (array, t) in arrays.items()}


def named_command(body: bytes) -> tuple[str, int] | None:
    """(model, number) of the command in a body that cannot be read, or has its beginning alone."""
    if begun := PASS_BEGIN.match(body):
        message = MESSAGES["ForwardBackwardRequest"].FromString(begun[0])
        return message.model_id, message.seq_id
    model, seq = MODEL_ID.search(body), SEQ_ID.search(body)
    return (model[1].decode(), int(seq[1])) if model and seq else None


def data_of(message: Any, processor: Processor) -> list[Datum]:
    """The data of a ForwardBackwardRequest. Raises Refused."""
    if sum(abs(math.prod(t.shape)) for d in message.data for t in d.loss_fn_inputs.values()) > MAX_NUMBERS:
        raise Refused(f"the data have more than {MAX_NUMBERS:,} numbers: send fewer at a time")
    try:
        prompts = read_prompts((map(_chunk, datum.model_input) for datum in message.data), processor)
        columns = [{name: _array(tensor) for name, tensor in d.loss_fn_inputs.items()} for d in message.data]
    except (ValueError, LookupError) as error:
        raise Refused(f"bytes of a datum do not fit dtype and shape: {error}") from error
    return [Datum(np.array(ids, np.int64), own, m) for (ids, m), own in zip(prompts, columns, strict=True)]


def _chunk(chunk: Any) -> Chunk:
    if chunk.HasField("image"):
        return chunk.image.data, chunk.image.expected_tokens
    if not chunk.HasField("encoded_text"):
        raise Refused(KINDS_SERVED)
    return np.frombuffer(chunk.encoded_text.tokens, "<i4").tolist()


def _array(tensor: Any) -> NDArray[Any]:
    """A tensor, whose sparse form leaves out zeros. Raises ValueError, LookupError."""
    dtype, sparse = DTYPES[tensor.dtype], tensor.sparse_csr
    if not tensor.HasField("sparse_csr"):
        return np.frombuffer(tensor.dense, dtype).reshape(tensor.shape or -1)
    rows, columns = (np.frombuffer(part, "<i8") for part in (sparse.crow_indices, sparse.col_indices))
    table, counts = np.zeros(tensor.shape, dtype), np.diff(rows)
    if (counts < 0).any() or (columns < 0).any() or counts.sum() != len(columns):
        raise ValueError("indices out of order")
    table[np.repeat(np.arange(len(counts)), counts), columns] = np.frombuffer(sparse.values, dtype)
    return table


def chunks_of(prompt: Body) -> list[Chunk]:
    """The chunks of a prompt in JSON. Raises Refused."""
    return [_json_chunk(chunk) for chunk in field(prompt, "chunks", list)]


def _json_chunk(chunk: Body) -> Chunk:
    if "data" in chunk and "format" in chunk:
        return f"data:image/{chunk['format']};base64,{chunk['data']}", field(chunk, "expected_tokens", int, 0)
    ids: list[int] = chunk.get("tokens", [None])
    if any(type(token) is not int or not 0 <= token < 2**31 for token in ids):
        raise Refused(KINDS_SERVED)
    return ids


def read_prompts(prompts: Iterable[Iterable[Chunk]], processor: Processor) -> list[tuple[list[int], list[Medium]]]:
    """The tokens of each prompt, with those of its images, and the images. Raises Refused, UserError."""
    found, size = list[tuple[list[int], list[Medium]]](), 0
    for prompt in prompts:
        ids, media = list[int](), list[Medium]()
        for chunk in prompt:
            tokens, images = _read(chunk, processor)
            size += sum(tensor.numel() for image in images for tensor in image.features.values())
            if size > MAX_FEATURES:
                raise Refused(f"the images become more than {MAX_FEATURES:,} numbers: send fewer at a time")
            ids += tokens
            media += images
        found.append((ids, media))
    return found


def _read(chunk: Chunk, processor: Processor) -> tuple[list[int], list[Medium]]:
    """The tokens of a chunk, and the image that it is, if any."""
    if isinstance(chunk, tuple):
        medium = _image(*chunk, processor)
        return list(medium.ids), [medium]
    if not processor.reserved.isdisjoint(chunk):
        raise Refused("tokens of a text stand for an image: send the image itself")
    return chunk, []


def _image(source: bytes | str, expected: int, processor: Processor) -> Medium:
    with PROCESSING:
        medium = processor.medium("image", {"image": source})
    if expected not in (0, count := len(medium.ids)):
        raise Refused(f"expected_tokens={expected}: the image has {count} tokens; send that number, or none")
    return medium


def pass_answer(raw: bytes) -> dict[str, Any]:
    """The result of a pass in JSON, from its message."""
    message = MESSAGES["ForwardBackwardOutput"].FromString(raw)
    tensors = [record.fields["logprobs"] for record in message.loss_fn_outputs]
    rows = [np.frombuffer(tensor.data, "<f4").reshape(-1, *tensor.trailing_shape) for tensor in tensors]
    outputs = [{"logprobs": {"data": r.ravel().tolist(), "dtype": "float32", "shape": r.shape}} for r in rows]
    kind = message.loss_fn_output_type
    return {"loss_fn_output_type": kind, "loss_fn_outputs": outputs, "metrics": dict(message.metrics)}


def pass_message(result: PassResult) -> bytes:
    """The result of a pass as a message."""
    message = MESSAGES["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord", metrics=result.metrics)
    for each in result.logprobs:
        ends, data = np.array([0, each.nbytes], "<i8").tobytes(), each.tobytes()
        tensor = MESSAGES["BatchedTensor"](data=data, offsets=ends, dtype=1, trailing_shape=each.shape[1:])
        message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=1).fields["logprobs"].CopyFrom(tensor)
    return bytes(message.SerializeToString())


def sample_message(answer: Body) -> bytes:
    """The samples that an answer has in JSON, as a message."""
    message = MESSAGES["SampleResponse"]()
    for drawn in answer["sequences"]:
        tokens, logprobs = np.array(drawn["tokens"], "<i4").tobytes(), np.array(drawn["logprobs"], "<f4").tobytes()
        message.sequences.add(stop_reason=drawn["stop_reason"] == "length", tokens=tokens, logprobs=logprobs)
    if "prompt_logprobs" in answer:
        message.prompt_logprobs = np.array(answer["prompt_logprobs"], "<f4").tobytes()
    if rows := answer.get("topk_prompt_logprobs"):
        k = max(len(row or ()) for row in rows)
        table = np.array([row or [(0, np.nan)] * k for row in rows]).reshape(len(rows), k, 2)
        topk, ids, values = message.topk_prompt_logprobs, table[..., 0].astype("<i4"), table[..., 1].astype("<f4")
        topk.token_ids, topk.logprobs = ids.tobytes(), values.tobytes()
        topk.k, topk.length = k, len(rows)
    return bytes(message.SerializeToString())


def scores_answer(scores: TokenScores, first: int) -> dict[str, Any]:
    """Log-probs of a prompt's tokens from `first` on, and (token, log-prob) of the likeliest in place of each."""
    rows = list(zip(scores.topk_ids.tolist(), scores.topk_logprobs.tolist(), strict=True))[first:]
    none = [None] * first
    topk = {"topk_prompt_logprobs": [*none, *(list(zip(*row, strict=True)) for row in rows)]}
    return {"prompt_logprobs": [*none, *scores.logprobs[first:].tolist()]} | (topk if scores.topk_ids.size else {})
