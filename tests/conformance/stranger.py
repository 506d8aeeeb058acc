"""Searching a version that this project wrote, made from docs/formats.md alone: its section 8, over `reader`. Slow."""

import hashlib
import json
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow.parquet as pq

from tests.conformance import reader

ALSO_READ = {
    "ann-centroid-index-v1": "flockdb-ann-centroid-v1",
    "ann-routing-v1": "flockdb-ann-routing-v1",
    "ann-vamana-graph-v1": "flockdb-ann-index-v1",
}
"""Section 2: other names of types"""
Row = tuple[float, str, int]
"""(distance, path of the data file, row position)"""
_ELEMENTS = {"f32": "<f4", "f16": "<f2", "i8": "i1", "u8": "u1", "bit": "u1"}
"""Columns of bytes: what NumPy calls their elements; bits are unpacked out of u8"""


def local(location: str) -> Path:
    return Path(urlparse(location).path)


def find_files(metadata: dict[str, Any], index: str) -> list[Path]:
    """The Puffin file that the tag of an index leads to, and its packs."""
    bound = metadata["refs"][f"ann_{index}"]["snapshot-id"]
    snapshot = next(item for item in metadata["snapshots"] if item["snapshot-id"] == bound)
    reader.need(snapshot["summary"]["ann.index"] == index, "not this index")
    packs = [int(holder) for holder in snapshot["summary"].get("ann.packs", "").split(",") if holder]
    paths = {item["snapshot-id"]: local(item["statistics-path"]) for item in metadata["statistics"]}
    return [paths[snapshot_id] for snapshot_id in (bound, *packs)]


class Version:
    """All blobs of one file."""

    def __init__(self, metadata: dict[str, Any], index: str) -> None:
        own, *packs = find_files(metadata, index)
        blobs, _ = reader.puffin(own.read_bytes())
        for blob, _data in blobs:
            blob["type"] = ALSO_READ.get(blob["type"], blob["type"])
        self.location = metadata["location"]
        self.routing = reader.routing(next(data for blob, data in blobs if blob["type"] == "flockdb-ann-routing-v1"))
        self.centroid = reader.centroid(next(data for blob, data in blobs if blob["type"] == "flockdb-ann-centroid-v1"))
        self.attributes = [
            reader.attributes(data)
            for blob, data in blobs
            if blob["type"] in ("icepuffin-ann-attributes-v1", "icepuffin-ann-tokens-v1")
        ]
        columns = [reader.included(data) for blob, data in blobs if blob["type"] == "icepuffin-ann-included-v1"]
        files = [own.read_bytes(), *(pack.read_bytes() for pack in packs)]
        self.included = {
            column["field_id"]: {
                slot: entry if isinstance(entry, str) else reader.included_values(entry, files[entry[4]])
                for slot, entry in column["files"].items()
            }
            for column in columns
        }
        texts = [reader.included(data, b"ANNX") for blob, data in blobs if blob["type"] == "icepuffin-ann-text-v1"]
        self.words = {
            column["field_id"]: {slot: reader.words(entry, files[entry[4]]) for slot, entry in column["files"].items()}
            for column in texts
        }
        shards = [(blob, data) for blob, data in blobs if blob["type"] == "flockdb-ann-index-v1"]
        named = next(blob for blob, _ in blobs if blob["type"] == "flockdb-ann-routing-v1")["properties"]
        curves = [blob["properties"].get("ann.recall_curve", "") for blob, _ in shards]
        self.advice = [json.loads(curve or "[]") for curve in json.loads(named.get("ann.recall_curves", "0")) or curves]
        inline = iter([data for _, data in shards])
        self.shards = [
            reader.shard(files[pack][offset : offset + entry[4]] if pack else next(inline), vectors_of(files, runs))
            for (pack, offset), entry, runs in zip(
                self.routing["packs"], self.routing["shards"], self.routing["runs"], strict=True
            )
        ]
        reader.need(len(self.shards) == len(self.routing["shards"]), "shards")
        moved = iter([data for blob, data in blobs if blob["type"] == "icepuffin-ann-addresses-v1"])
        for (length, sha256), shard in zip(self.routing["addresses"], self.shards, strict=True):
            if length:
                data = next(moved)
                reader.need((len(data), hashlib.sha256(data).digest()) == (length, sha256), "addresses")
                shard["slots"], shard["rows"] = reader.addresses(data)
        reader.need(next(moved, None) is None, "addresses of no shard")
        for entry, shard in zip(self.routing["shards"], self.shards, strict=True):
            reader.need(entry[0] == len(shard["rows"]) and entry[1] + len(entry[-1]) == entry[0], "counts")

        self.element_type = json.loads(self.routing["definition"]).get("element_type", "column")

    def path(self, slot: int) -> Path:
        named = self.routing["files"][slot][-1]
        return local(named) if "://" in named or named.startswith("/") else local(self.location) / named

    def vector(self, slot: int, row: int) -> np.ndarray:
        return numbers_of(self.path(slot), self.element_type)[row]

    def nearest(self, query: np.ndarray, k: int, width: int) -> list[Row]:
        """The k nearest rows, over all shards."""
        matches: list[Row] = []
        for entry, shard in zip(self.routing["shards"], self.shards, strict=True):
            if not shard["rows"]:
                continue
            dead = set(entry[-1])
            wide = 5 * k if shard["codes"] is not None else k
            nodes = [node for node in walk(shard, distances(shard, query), width) if node not in dead][:wide]
            for node in nodes:
                slot, row = shard["slots"][node], shard["rows"][node]
                reader.need(self.routing["files"][slot][0] == 1, "a live node of a file that is gone")
                far = exact(shard, node, query, partial(self.vector, slot, row))
                matches.append((far, str(self.path(slot)), row))
        return sorted(matches)[:k]

    def scan(self, query: np.ndarray, k: int) -> tuple[list[Row], int]:
        """Without shards: the k nearest rows, and how many files were read. Of tables without deletes."""
        reader.need(not self.shards and not len(self.routing["codebook"]), "shards")
        metric = self.centroid["metric"]
        own = prepared(query, metric)
        matches: list[Row] = []
        read = 0
        slots = {entry[-1]: slot for slot, entry in enumerate(self.routing["files"]) if entry[0]}
        bounds = {name: np.inf if any(self.balls_of(name)) else 0.0 for name in slots}
        for name in slots:
            for center, radius in self.balls_of(name):
                gap = np.linalg.norm(own - center) - radius * (1 + len(query) * 2.0**-22)
                bounds[name] = min(bounds[name], max(0.0, gap))
        for name in sorted(slots, key=lambda name: bounds[name]):
            bound = {1: bounds[name] ** 2 / 2, 3: bounds[name] ** 2}.get(metric, bounds[name])
            if len(matches) == k and bound * (1 - 1e-6) - 1e-9 > matches[-1][0]:
                continue
            read += 1
            path = self.path(slots[name])
            vectors = numbers_of(path, self.element_type)
            far = [reported(metric, compare(metric, own, prepared(vector, metric))) for vector in vectors]
            matches = sorted(matches + [(value, str(path), row) for row, value in enumerate(far)])[:k]
        return matches, read

    def balls_of(self, name: str) -> list[tuple[np.ndarray, float]]:
        return [(center, far) for center, file, far in self.centroid["entries"] if self.centroid["files"][file] == name]

    def files_within(self, query: np.ndarray, limit: float) -> set[str]:
        """Files that may hold a row nearer than a Euclidean limit."""
        files = set()
        for center, file, radius in self.centroid["entries"]:
            gap = np.linalg.norm(query.astype(float) - center)
            if gap - radius * (1 + len(query) * 2.0**-22) <= limit:
                files.add(self.centroid["files"][file])
        return files


def vectors_of(files: list[bytes], runs: list[tuple[int, int, int, int, bytes]]) -> bytes:
    """Section 4: the runs of a shard, one after the other."""
    parts = []
    for pack, offset, length, _, sha256 in runs:
        parts.append(files[pack][offset : offset + length])
        reader.need(hashlib.sha256(parts[-1]).digest() == sha256, "vectors")
    return b"".join(parts)


def prepared(query: np.ndarray, metric: int) -> np.ndarray:
    wide = query.astype(np.float64)
    return wide / np.linalg.norm(wide) if metric == 1 else wide


def reported(metric: int, internal: float) -> float:
    return float(np.sqrt(max(internal, 0))) if metric == 0 else internal / 2 if metric == 1 else internal


def compare(metric: int, query: np.ndarray, vector: np.ndarray) -> float:
    return float(-(query @ vector)) if metric == 2 else float(((query - vector) ** 2).sum())


def distances(shard: dict[str, Any], query: np.ndarray) -> Callable[[int], float]:
    """Node -> distance to walk by."""
    metric, vector = shard["metric"], prepared(query, shard["metric"])
    if shard["vectors"] is not None:
        return lambda node: compare(metric, vector, shard["vectors"][node].astype(np.float64))
    if shard["rotated"] is not None:
        return estimates(shard["rotated"], metric, vector)
    pieces = vector.reshape(len(shard["codebook"]), -1)
    words = shard["codebook"].astype(np.float64)

    def codes(node: int) -> list[int]:
        stored = shard["codes"][node].tolist()
        return stored if words.shape[1] == 256 else [code for byte in stored for code in (byte % 16, byte // 16)]

    return lambda node: sum(compare(metric, pieces[i], words[i][code]) for i, code in enumerate(codes(node)))


def estimates(codes: dict[str, Any], metric: int, query: np.ndarray) -> Callable[[int], float]:
    """Node -> the distance that rotated codes tell."""
    center = codes["center"].astype(np.float64)
    turned = rotated(query if metric == 2 else query - center, codes["seed"])

    def estimate(node: int) -> float:
        norm, _, factor, _ = codes["terms"][node].astype(np.float64)
        product = factor * float(codes["levels"][node] @ turned)
        return (
            -float(query @ center) - product
            if metric == 2
            else float(((query - center) ** 2).sum()) + norm - 2 * product
        )

    return estimate


def rotated(vector: np.ndarray, seed: int) -> np.ndarray:
    """A vector of doubles in the rotation of a seed."""
    blocks = -(-len(vector) // 128)
    out = np.zeros(128 * blocks)
    out[: len(vector)] = vector
    words = [splitmix64(seed, word) for word in range(3 * 2 * blocks)]
    for turn in range(3):
        bits = [words[(turn * len(out) + d) // 64] >> (d % 64) & 1 for d in range(len(out))]
        out = (out * (1 - 2 * np.array(bits))).reshape(blocks, 128) @ hadamard()
        out = out.T.reshape(-1)
    return out


@cache
def hadamard() -> np.ndarray:
    return np.array([[(-1.0) ** (i & j).bit_count() for i in range(128)] for j in range(128)]) / np.sqrt(128)


def splitmix64(seed: int, place: int) -> int:
    z = (seed + (place + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


@lru_cache(16)
def numbers_of(path: Path, element_type: str) -> np.ndarray:
    """The vectors of a data file: lists, or elements that lie in bytes."""
    values = pq.read_table(path, columns=["embedding"])["embedding"].to_pylist()
    if element_type == "column":
        return np.array(values)
    stored = np.array([np.frombuffer(value, _ELEMENTS[element_type]) for value in values])
    return np.unpackbits(stored, axis=1) if element_type == "bit" else stored


def exact(shard: dict[str, Any], node: int, query: np.ndarray, vector_of_row: Callable[[], np.ndarray]) -> float:
    metric = shard["metric"]
    if shard["vectors"] is not None:
        vector = shard["vectors"][node].astype(np.float64)
    elif shard["rotated"] is not None:
        return reported(metric, estimates(shard["rotated"], metric, prepared(query, metric))(node))
    else:
        vector = prepared(vector_of_row(), metric)
    return reported(metric, compare(metric, prepared(query, metric), vector))


def walk(shard: dict[str, Any], distance_to: Callable[[int], float], width: int) -> list[int]:
    """Nodes, nearest first, each with its copies."""
    copies = copies_of(shard)
    return [node for met in nearest_met(shard, distance_to, width) for node in (met, *copies.get(met, ()))]


def copies_of(shard: dict[str, Any]) -> dict[int, list[int]]:
    """The copies of each node that has any."""
    targets = {shard["medoid"]}.union(*shard["neighbors"])
    copies: dict[int, list[int]] = {}
    for node, neighbors in enumerate(shard["neighbors"]):
        if len(neighbors) == 1 and node not in targets:
            copies.setdefault(neighbors[0], []).append(node)
    return copies


def nearest_met(shard: dict[str, Any], distance_to: Callable[[int], float], width: int) -> list[int]:
    """Nodes in the list of a walk."""
    start = shard["medoid"]
    pool, expanded, visited = [(distance_to(start), start)], set[int](), {start}
    while True:
        following = next((node for _, node in pool if node not in expanded), None)
        if following is None:
            return [node for _, node in pool]
        expanded.add(following)
        fresh = [node for node in shard["neighbors"][following] if node not in visited]
        visited.update(fresh)
        pool = sorted(pool + [(distance_to(node), node) for node in fresh])[:width]
