"""The bodies of Tinker's protocol: its protobuf messages, and fields of its JSON.

Invariant: no array is larger than the numbers that one request may have, whatever shape a client names.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from numpy.typing import NDArray

from agentrl.engines.scores import TokenScores
from agentrl.http.refusals import Refused
from agentrl.http.serving import parse
from agentrl.serve.contract import Datum, PassResult

T = TypeVar("T")
Body = Mapping[str, Any]
Answer = dict[str, Any] | bytes
"""JSON, or a message."""

PROTOBUF = "application/x-protobuf"
DTYPES = {1: "<f4", 2: "<i8", 3: "<i4"}
NAMED_DTYPES = {"float32": "<f4", "int64": "<i8"}
MAX_NUMBERS = 2**25
"""Numbers in the columns of one request, with those that sparse ones leave out."""
TEXT_ALONE = "images and audio are not served: send chunks of encoded_text alone"
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
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or value in (math.inf, -math.inf):
        given = "missing" if value is None else repr(value)[:80]
        raise Refused(f"{name}: {given}: give a value of type {kind.__name__}")
    return value


def pass_input(raw: bytes) -> tuple[list[Datum], str, dict[str, float], bool]:
    """(data, loss, its settings, whether no gradient is asked for) in a message, or in the JSON of SDKs up to 0.19.
    Raises Refused."""
    if raw.startswith(b"{"):
        return _json_input(parse(raw))
    message = MESSAGES["ForwardBackwardRequest"].FromString(raw)
    settings = {**message.loss_fn_config, **{name: v.number for name, v in message.loss_fn_config_v2.items()}}
    return data_of(message), message.loss_fn, settings, message.forward_only


def _json_input(body: Body) -> tuple[list[Datum], str, dict[str, float], bool]:
    forward_only = "forward_input" in body
    given = field(body, "forward_input" if forward_only else "forward_backward_input", dict)
    try:
        data = [_json_datum(datum) for datum in field(given, "data", list)]
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise Refused(f"a datum cannot be read: {type(error).__name__}: {error}") from error
    return data, field(given, "loss_fn", str), field(given, "loss_fn_config", dict, {}), forward_only


def _json_datum(datum: Body) -> Datum:
    arrays = {name: (np.array(t["data"], NAMED_DTYPES[t["dtype"]]), t) for name, t in datum["loss_fn_inputs"].items()}
    columns = {name: array.reshape(t.get("shape") or -1) for name, (array, t) in arrays.items()}
    return Datum(np.array(prompt_ids(datum["model_input"]), np.int64), columns)


def named_command(body: bytes) -> tuple[str, int] | None:
    """(model, number) of the command in a body that cannot be read, or has its beginning alone."""
    if begun := PASS_BEGIN.match(body):
        message = MESSAGES["ForwardBackwardRequest"].FromString(begun[0])
        return message.model_id, message.seq_id
    model, seq = MODEL_ID.search(body), SEQ_ID.search(body)
    return (model[1].decode(), int(seq[1])) if model and seq else None


def data_of(message: Any) -> list[Datum]:
    """The data of a ForwardBackwardRequest. Raises Refused."""
    if sum(abs(math.prod(t.shape)) for d in message.data for t in d.loss_fn_inputs.values()) > MAX_NUMBERS:
        raise Refused(f"the data have more than {MAX_NUMBERS:,} numbers: send fewer at a time")
    if not all(chunk.HasField("encoded_text") for d in message.data for chunk in d.model_input):
        raise Refused(TEXT_ALONE)
    try:
        return [Datum(_ids(d), {name: _array(t) for name, t in d.loss_fn_inputs.items()}) for d in message.data]
    except (ValueError, LookupError) as error:
        raise Refused(f"bytes of a datum do not fit dtype and shape: {error}") from error


def _ids(datum: Any) -> NDArray[np.int64]:
    return np.frombuffer(b"".join(chunk.encoded_text.tokens for chunk in datum.model_input), "<i4").astype(np.int64)


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


def prompt_ids(prompt: Body) -> list[int]:
    """The tokens of a prompt in JSON. Raises Refused."""
    ids = [token for chunk in field(prompt, "chunks", list) for token in chunk.get("tokens", [None])]
    if any(type(token) is not int or not 0 <= token < 2**31 for token in ids):
        raise Refused(TEXT_ALONE)
    return ids


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


def scores_answer(scores: TokenScores) -> dict[str, Any]:
    """Log-probs of a prompt's tokens, and (token, log-prob) of the likeliest in place of each; the first has none."""
    rows = list(zip(scores.topk_ids.tolist(), scores.topk_logprobs.tolist(), strict=True))[1:]
    topk = {"topk_prompt_logprobs": [None, *(list(zip(*row, strict=True)) for row in rows)]}
    return {"prompt_logprobs": [None, *scores.logprobs[1:].tolist()]} | (topk if scores.topk_ids.size else {})
