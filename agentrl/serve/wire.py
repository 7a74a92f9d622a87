"""The bodies of Tinker's protocol: its protobuf messages, and the JSON of older SDKs.

Invariant: an array is checked before it is made: what a client says of sizes allocates nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from agentrl.gateway.bodies import parse
from agentrl.http.refusals import Refused
from agentrl.serve.contract import Datum, PassResult

T = TypeVar("T")
Array = NDArray[Any]

JSON, PROTOBUF = "application/json", "application/x-protobuf"
NAMES = {1: "float32", 2: "int64", 3: "int32", 4: "bfloat16"}
NUMBERS = {name: number for number, name in NAMES.items()}
MAX_ELEMENTS = 2**24
"""Numbers in the columns of one request, those that a sparse one leaves out included."""
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro")
MUST: Any = object()


def _messages() -> Mapping[str, type[Any]]:
    text = Path(__file__).with_name("messages.textproto").read_text(encoding="utf-8")
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    return message_factory.GetMessageClassesForFiles([file.name], _pool(file))


def _pool(file: Any) -> descriptor_pool.DescriptorPool:
    """A pool apart: a client in this process has the same names in the one that all share."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


MESSAGES = {name.rpartition(".")[2]: kind for name, kind in _messages().items()}


class Pass(NamedTuple):
    """A request for a pass over data."""

    model: str
    seq: int | None
    data: list[Datum]
    loss: str
    settings: dict[str, float]
    backward: bool


def field(body: Mapping[str, Any], name: str, kind: type[T], default: Any = MUST) -> T:
    """A field of a JSON object, or `default` where it is absent or null. Raises Refused."""
    value = body.get(name)
    if value is None and default is not MUST:
        return default  # type: ignore[no-any-return]
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise Refused(
            f"{name}: {str(value)[:80]!r} is no {kind.__name__}" if value is not None else f"{name} is missing"
        )
    return value


def read_pass(body: bytes, form: str, *, forward: bool = False) -> Pass:
    """The request in a body; `forward`: sent to the older address of a forward pass. Raises Refused."""
    try:
        found = _from_message(body) if form == PROTOBUF else _from_json(parse(body), forward)
    except (DecodeError, ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        raise Refused(f"the body is no pass over data: {type(error).__name__}: {str(error)[:200]}") from error
    if found.loss not in LOSSES:
        fix = "use loss_fn=importance_sampling, or one of"
        raise Refused(f"loss_fn={found.loss[:80]!r} is not served: {fix} {', '.join(LOSSES)}")
    if not found.data:
        raise Refused("data is empty: send one datum or more")
    return found


def read_head(body: bytes, form: str) -> tuple[str, int | None, str]:
    """Model, number and loss of a command; "": it has no loss. Raises Refused."""
    if form == PROTOBUF:
        try:
            message = MESSAGES["ForwardBackwardRequest"].FromString(body)
        except DecodeError as error:
            raise Refused(f"the body is no ForwardBackwardRequest: {error}") from None
        return message.model_id, message.seq_id or None, message.loss_fn
    found = parse(body)
    sent = found.get("forward_input") or found.get("forward_backward_input") or {}
    return field(found, "model_id", str), field(found, "seq_id", int, None), field(sent, "loss_fn", str, "")


def _from_message(body: bytes) -> Pass:
    message = MESSAGES["ForwardBackwardRequest"].FromString(body)
    texts = [name for name, value in message.loss_fn_config_v2.items() if value.HasField("text")]
    if texts:
        raise Refused(f"loss_fn_config: {texts[0][:80]!r} is a text: give a number")
    settings = dict(message.loss_fn_config) | {n: value.number for n, value in message.loss_fn_config_v2.items()}
    room, data = Room(), []
    for datum in message.data:
        chunks = [np.frombuffer(chunk.encoded_text.tokens, "<i4") for chunk in datum.model_input if _is_text(chunk)]
        columns = {name: _tensor_of_message(tensor, room) for name, tensor in datum.loss_fn_inputs.items()}
        data.append(_datum(np.concatenate([np.empty(0, np.int32), *chunks]), columns))
    return Pass(message.model_id, message.seq_id or None, data, message.loss_fn, settings, not message.forward_only)


def _is_text(chunk: Any) -> bool:
    return chunk.HasField("encoded_text") or no_media()


def no_media() -> bool:
    """Raises Refused."""
    raise Refused("images and audio are not served: send chunks of encoded_text alone")


def _from_json(body: Mapping[str, Any], forward: bool) -> Pass:
    sent = field(body, "forward_input" if forward else "forward_backward_input", dict)
    room, data = Room(), []
    for datum in field(sent, "data", list):
        columns = {n: _tensor_of_json(tensor, room) for n, tensor in field(datum, "loss_fn_inputs", dict).items()}
        data.append(_datum(np.array(prompt_ids(datum["model_input"])), columns))
    settings = {name: float(value) for name, value in field(sent, "loss_fn_config", dict, {}).items()}
    seq = field(body, "seq_id", int, None)
    return Pass(field(body, "model_id", str), seq, data, field(sent, "loss_fn", str), settings, not forward)


def prompt_ids(given: Mapping[str, Any]) -> list[int]:
    """The tokens of a model's input in JSON. Raises Refused."""
    chunks = field(given, "chunks", list)
    lists = [chunk["tokens"] for chunk in chunks if "tokens" in chunk or no_media()]
    ids = [token for tokens in lists for token in tokens]
    if any(type(token) is not int or not 0 <= token < 2**31 for token in ids):
        raise Refused("the tokens of an input are no whole numbers of 0 or more")
    return ids


class Room:
    """Counts the numbers in one request's columns."""

    used = 0

    def take(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape. Raises Refused for too many numbers."""
        self.used += math.prod(shape)
        if min(shape, default=0) < 0 or self.used > MAX_ELEMENTS:
            raise Refused(f"the columns have more than {MAX_ELEMENTS:,} numbers: send less data at a time")
        return tuple(shape)


def _tensor_of_message(tensor: Any, room: Room) -> Array:
    dtype = NAMES[tensor.dtype]
    if not tensor.HasField("sparse_csr"):
        return _dense(_numbers(tensor.dense, dtype), tensor.shape, room)
    sparse = tensor.sparse_csr
    rows, columns = (np.frombuffer(part, "<i8") for part in (sparse.crow_indices, sparse.col_indices))
    return _from_csr(_numbers(sparse.values, dtype), rows, columns, tensor.shape, room)


def _numbers(raw: bytes, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<"))


def _tensor_of_json(tensor: Mapping[str, Any], room: Room) -> Array:
    dtype = field(tensor, "dtype", str)
    values, shape = np.asarray(tensor["data"], NAMES[NUMBERS[dtype]]), tensor.get("shape")
    if tensor.get("sparse_crow_indices") is None:
        return _dense(values, values.shape if shape is None else shape, room)
    rows, columns = (np.asarray(tensor[f"sparse_{name}_indices"], np.int64) for name in ("crow", "col"))
    return _from_csr(values, rows, columns, shape, room)


def _dense(values: Array, shape: Iterable[int], room: Room) -> Array:
    return values.reshape(room.take(tuple(shape) or values.shape))


def _from_csr(values: Array, rows: Array, columns: Array, shape: Any, room: Room) -> Array:
    """A table from its sparse form; entries that are left out are 0. Raises ValueError."""
    height, width = room.take(tuple(shape))
    counts = np.diff(rows)
    fits = len(rows) == height + 1 and rows[0] == 0 and rows[-1] == len(columns) == len(values)
    if not fits or (counts < 0).any() or ((columns < 0) | (columns >= width)).any():
        raise ValueError("a sparse tensor's indices do not fit its shape")
    table = np.zeros((height, width), values.dtype)
    table[np.repeat(np.arange(height), counts), columns] = values
    return table


def _datum(ids: Array, columns: Mapping[str, Array]) -> Datum:
    """Raises Refused for columns that do not belong to the tokens."""
    if not len(ids) or "target_tokens" not in columns:
        raise Refused("a datum needs tokens in model_input, and target_tokens in loss_fn_inputs")
    found = {
        name: values.astype(np.int64 if name == "target_tokens" else np.float32) for name, values in columns.items()
    }
    for name, values in found.items():
        if values.ndim not in (1, 2) or len(values) != len(ids) or not np.isfinite(values).all():
            raise Refused(
                f"{name} of shape {values.shape}: give {len(ids)} finite rows, one for each token of the input"
            )
    return Datum(ids.astype(np.int64), found)


def pass_answer(result: PassResult, form: str) -> dict[str, Any] | bytes:
    """The result of a pass, in the form of its request."""
    if form == PROTOBUF:
        return _pass_message(result)
    tensors = [{"data": lp.ravel().tolist(), "dtype": "float32", "shape": list(lp.shape)} for lp in result.logprobs]
    outputs = [{"logprobs": tensor} for tensor in tensors]
    return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": result.metrics}


def _pass_message(result: PassResult) -> bytes:
    message = MESSAGES["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord", metrics=result.metrics)
    for trailing, group in groupby(result.logprobs, lambda logprobs: logprobs.shape[1:]):
        arrays = [np.ascontiguousarray(logprobs, "<f4") for logprobs in group]
        ends = np.cumsum([0, *(array.nbytes for array in arrays)], dtype="<i8")
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(arrays))
        batched = MESSAGES["BatchedTensor"](data=b"".join(a.tobytes() for a in arrays), offsets=ends.tobytes(), dtype=1)
        batched.trailing_shape.extend(trailing)
        record.fields["logprobs"].CopyFrom(batched)
    return bytes(message.SerializeToString())


def sample_message(answer: Mapping[str, Any]) -> bytes:
    """The samples that an answer has in JSON, as a message."""
    message = MESSAGES["SampleResponse"]()
    for drawn in answer["sequences"]:
        stop, tokens = int(drawn["stop_reason"] == "length"), np.array(drawn["tokens"], "<i4").tobytes()
        sequence = message.sequences.add(stop_reason=stop, tokens=tokens)
        sequence.logprobs = np.array(drawn["logprobs"], "<f4").tobytes()
        _add_topk(sequence.topk_sampled_logprobs, drawn.get("topk_logprobs"))
    if answer.get("prompt_logprobs") is not None:
        message.prompt_logprobs = np.array(answer["prompt_logprobs"], "<f4").tobytes()
    _add_topk(message.topk_prompt_logprobs, answer.get("topk_prompt_logprobs"))
    return bytes(message.SerializeToString())


def _add_topk(message: Any, rows: Sequence[Any] | None) -> None:
    """Rows of (token, log-prob) as a dense table; a row without any is of NaN."""
    if rows is None:
        return
    width = max((len(row) for row in rows if row), default=0)
    table = np.array([row or [(0, np.nan)] * width for row in rows], np.float64).reshape(len(rows), width, 2)
    message.k, message.length = width, len(rows)
    message.token_ids = table[..., 0].astype("<i4").tobytes()
    message.logprobs = table[..., 1].astype("<f4").tobytes()
