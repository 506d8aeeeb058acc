"""Markers of finished tasks: small JSON objects beside what the task wrote, so that a retry finds it.

The name of a marker depends on everything that the result depends on: an attempt that decides otherwise, since the
table has changed meanwhile, looks for another marker. Creation is conditional: one of two attempts is recorded, and the
other's object stays unreferenced. Objects that a marker names are durable before it. Objects without a marker need not
be durable: they are made again after a fault.

A marker starts with a sha256 of its name and its JSON. A damaged one is deleted, and the work is done again.
"""

import base64
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ops.errors import FileDamageError
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import ObjectExistsError, ObjectMissingError, Storage, left_where_refused

_SHA256_BYTES = hashlib.sha256().digest_size
_log = logging.getLogger(__name__)


class StagedDamageError(FileDamageError):
    """Raised where a staged object is not as it was written: it is to be deleted, and the work done again."""


def name_of(prefix: str, inputs: Iterable[bytes | npt.NDArray[Any] | str | int | float | None]) -> str:
    """Path of the marker of a task with these inputs, in this order."""
    digest = hashlib.sha256()
    for value in inputs:
        if isinstance(value, np.ndarray):
            label, data = f"{value.dtype.str}{value.shape}", np.ascontiguousarray(value).tobytes()
        else:
            label, data = "bytes", value if isinstance(value, bytes) else repr(value).encode()
        digest.update(f"{label} {len(data)}\0".encode())
        digest.update(data)
    return f"{prefix}-{digest.hexdigest()}.json"


def find(storage: Storage, path: str) -> dict[str, Any] | None:
    """The recorded result; None where no attempt has finished, and where its marker is damaged, which is deleted."""
    try:
        data = storage.read_range(path, 0, storage.size(path))
    except ObjectMissingError:
        return None
    if (result := _load(path, data)) is None:
        _log.warning("%s is damaged: what it records is made again", path)
        with left_where_refused():
            storage.delete(path)
    return result


def record(storage: Storage, path: str, result: Any) -> dict[str, Any]:
    """Record a frozen dataclass as the result. Returns the result of whichever attempt was first."""
    text = json.dumps(dataclasses.asdict(result), default=_to_json).encode()
    data = _digest(path, text) + text
    reached(RunStep.TASK_WRITTEN)
    try:
        storage.create(path, data)
    except ObjectExistsError:
        data = storage.read_range(path, 0, storage.size(path))
    else:
        reached(RunStep.TASK_RECORDED)
    return _load(path, data) or json.loads(text, object_hook=_from_json)


def _digest(path: str, text: bytes) -> bytes:
    return hashlib.sha256(path.rpartition("/")[2].encode() + text).digest()


def _load(path: str, data: bytes) -> dict[str, Any] | None:
    """The result in a marker; None where it is damaged."""
    digest, text = data[:_SHA256_BYTES], data[_SHA256_BYTES:]
    if digest != _digest(path, text):
        return None
    loaded: dict[str, Any] = json.loads(text, object_hook=_from_json)
    return loaded


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        raw = np.ascontiguousarray(value)
        return {"__array__": raw.dtype.str, "shape": raw.shape, "data": base64.b64encode(raw.tobytes()).decode()}
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value)} cannot be recorded")


def _from_json(value: dict[str, Any]) -> Any:
    if "__array__" in value:
        raw = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["__array__"]))
        return raw.reshape(value["shape"]).copy()
    if "__bytes__" in value:
        return base64.b64decode(value["__bytes__"])
    return value
