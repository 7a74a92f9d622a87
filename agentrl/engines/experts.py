"""Reads the experts that a server returns for the tokens of a request; checked before anything trains on them."""

import base64
import binascii
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.core.errors import InfraError

NARROW = 256
"""Most experts whose ids fit into a byte."""


def flat_experts(text: str, layers: int, k: int) -> NDArray[np.int32]:
    """SGLang's answer: base64 of int32 [tokens, layers, k]. Raises InfraError."""
    data = _bytes(text)
    if len(data) % (4 * layers * k):
        raise InfraError(f"{len(data)} bytes of experts came, not {k} experts of {layers} layers for each token")
    return np.frombuffer(data, np.int32).reshape(-1, layers, k)


def saved_experts(text: str) -> NDArray[Any]:
    """vLLM's answer: base64 of a NumPy file [tokens, layers, k]. Raises InfraError."""
    try:
        array: NDArray[Any] = np.load(BytesIO(_bytes(text)), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InfraError("the experts of an answer are no NumPy array") from error
    return array


def checked_experts(array: NDArray[Any], *, rows: int, experts: int) -> NDArray[Any]:
    """The last `rows` rows as uint8 or int16 [rows, layers, k]. Raises InfraError for other shapes and ids."""
    if array.ndim != 3 or len(array) < rows or not array[0].size > 0 or array.dtype.kind not in "iu":
        raise InfraError(f"experts came as {array.dtype} {list(array.shape)} for {rows} tokens")
    array = array[len(array) - rows :]
    if array.size and not (array.min() >= 0 and array.max() < experts):
        raise InfraError(f"a token met expert {max(array.max(), -array.min())}; the model has {experts} in a layer")
    return array.astype(np.uint8 if experts <= NARROW else np.int16)


def joined_experts(parts: list[NDArray[Any]]) -> NDArray[Any] | None:
    """The rows of several answers, one after the other; None without any."""
    return np.concatenate(parts) if parts else None


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InfraError("the experts of an answer are no base64 text") from error
