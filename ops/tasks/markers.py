"""Markers of finished tasks: small JSON objects beside what the task wrote, so that a retry finds it.

The name of a marker depends on everything that the result depends on: an attempt that decides otherwise, since the
table has changed meanwhile, looks for another marker. Creation is conditional: one of two attempts is recorded, and the
other's object stays unreferenced. Objects that a marker names are durable before it. Objects without a marker need not
be durable: they are made again after a fault.
"""

import base64
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import ObjectExistsError, ObjectMissingError, Storage


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
    """The recorded result; None where no attempt has finished."""
    try:
        return _load(storage.read_range(path, 0, storage.size(path)))
    except ObjectMissingError:
        return None


def record(storage: Storage, path: str, result: Any) -> dict[str, Any]:
    """Record a frozen dataclass as the result. Returns the result of whichever attempt was first."""
    data = json.dumps(dataclasses.asdict(result), default=_to_json).encode()
    reached(RunStep.TASK_WRITTEN)
    try:
        storage.create(path, data)
    except ObjectExistsError:
        return _load(storage.read_range(path, 0, storage.size(path)))
    reached(RunStep.TASK_RECORDED)
    return _load(data)


def _load(data: bytes) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(data, object_hook=_from_json)
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
