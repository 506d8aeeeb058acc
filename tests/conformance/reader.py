"""A second reader, made from docs/formats.md alone: plain Python, no part of this project, no regard for speed."""

import itertools
import json
import struct
import zlib
from typing import Any

import lz4.frame
import numpy as np
import zstandard


class RefusedError(Exception):
    """The text says "refuse"."""


def need(condition: bool, what: str) -> None:
    if not condition:
        raise RefusedError(what)


def puffin(data: bytes) -> tuple[list[tuple[dict[str, Any], bytes]], dict[str, str]]:
    """Section 1: ([(blob metadata, payload)], file properties), of the file's own footer where it has a public one."""
    need(data[:4] == data[-4:] == b"PFA1", "magic")
    size, flags = struct.unpack("<iI", data[-12:-4])
    start = len(data) - 12 - size
    need(size >= 0 and start >= 8 and data[start - 4 : start] == b"PFA1" and flags in (0, 1), "footer")
    payload = data[start : start + size]
    footer = json.loads(lz4.frame.decompress(payload) if flags else payload)
    if "icepuffin.own-bytes" in footer.get("properties", {}):
        end = footer["properties"]["icepuffin.own-bytes"]
        need(end.isdecimal() and len(end) < 20 and int(end) <= start - 4, "own footer")
        return puffin(data[: int(end)])
    blobs = []
    for blob in footer["blobs"]:
        end = blob["offset"] + blob["length"]
        need(4 <= blob["offset"] <= end <= start - 4, "blob location")
        blobs.append((blob, expand(data[blob["offset"] : end], blob.get("compression-codec"))))
    return blobs, footer.get("properties", {})


def expand(stored: bytes, codec: str | None) -> bytes:
    if codec == "zstd":
        return zstandard.ZstdDecompressor().decompress(stored)
    return bytes(lz4.frame.decompress(stored)) if codec == "lz4" else stored


class Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        need(0 <= count <= len(self.data) - self.at, "cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def __call__(self, layout: str) -> Any:
        values = struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))
        return values if len(values) > 1 else values[0]

    def text(self) -> str:
        return self.take(self("I")).decode()

    def array(self, kind: str, *shape: int) -> np.ndarray:
        size = np.dtype(kind).itemsize * int(np.prod(shape))
        return np.frombuffer(self.take(size), kind).reshape(shape)

    def varint(self, longest: int) -> int:
        value = 0
        for place in range(longest):
            byte = self("B")
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value
        raise RefusedError("varint too long")

    def differences(self, count: int) -> list[int]:
        values, last = [], 0
        for _ in range(count):
            coded = self.varint(10)
            last = (last + ((coded >> 1) ^ -(coded & 1))) % 2**64
            values.append(last)
        return values

    def end(self) -> None:
        need(self.at == len(self.data), "bytes left over")


def centroid(data: bytes) -> dict[str, Any]:
    """Section 3."""
    read = Bytes(data)
    magic, version, dims, entries, files, metric, size, table = read("4s7I")
    need((magic, version, size, table) == (b"ANNI", 1, 4 * dims + 8, 32 + entries * size), "header")
    rows = [(read.array("<f4", dims), *read("If")) for _ in range(entries)]
    out = {"dims": dims, "metric": metric, "entries": rows, "files": [read.text() for _ in range(files)]}
    read.end()
    need(all(row[1] < files and row[2] >= 0 for row in rows), "entry")
    return out


def routing(data: bytes) -> dict[str, Any]:
    """Section 4."""
    read = Bytes(data)
    magic, version, dims, k, shards, files, base, features, checksum = read("4s5IqII")
    need((magic, version, features) == (b"ANNR", 6, 1), "header")
    need(zlib.crc32(data[:36] + bytes(4) + data[40:]) == checksum, "checksum")
    out: dict[str, Any] = {"base": base, "build_id": read.text(), "definition": read.text()}
    out["codebook"], out["to_shard"] = read.array("<f4", k, dims), read.array("<u4", k)
    out["shards"], out["packs"], out["addresses"], out["runs"] = [], [], [], []
    for _ in range(shards):
        *numbers, length = read("IIIfQ32sI")
        dead = deletion_vector(read.take(length))
        out["shards"].append((*numbers, dead))
        out["packs"].append(tuple(read("IQ")))
        out["addresses"].append(tuple(read("Q32s")))
        runs = [read("IQQI32s") for _ in range(read("I"))]
        need(not runs or sum(run[3] for run in runs) == numbers[0], "number of vectors")
        places = sorted(run[:3] for run in runs)
        need(all(a[0] < b[0] or a[1] + a[2] <= b[1] for a, b in itertools.pairwise(places)), "runs that overlap")
        out["runs"].append(runs)
    out["files"] = [(*read("BQQ32s"), read.text()) for _ in range(files)]
    read.end()
    return out


def attributes(data: bytes) -> dict[str, Any]:
    """Section 9: the values of each file's rows, by slot; a text where they are left out."""
    read = Bytes(data)
    magic, version, field_id, count, length, checksum = read("4s5I")
    need(magic in (b"ANNA", b"ANNT") and version == 1, "header")
    body_of = file_lists if magic == b"ANNT" else file_values
    table = Bytes(read.take(length))
    need(zlib.crc32(data[:20] + bytes(4) + table.data) == checksum, "checksum")
    out: dict[str, Any] = {"field_id": field_id, "files": {}}
    for _ in range(count):
        slot, rows, stored, raw, packed, crc = table("IQQQBI")
        kind, _, left_out = table.text(), table.text(), table.text()
        body = read.take(stored)
        need(zlib.crc32(body) == crc and bool(left_out) != bool(stored), "body")
        need(slot not in out["files"] and packed in (0, 1), "entry")
        if not left_out:
            body = expand(body, "zstd" if packed else None)
            need(len(body) == raw, "length")
        out["files"][slot] = left_out or body_of(body, rows, kind)
    table.end()
    read.end()
    return out


def file_values(body: bytes, rows: int, kind: str) -> list[Any]:
    read = Bytes(body)
    count, width, code, zero = read("4I")
    need(zero == 0 and code in (1, 2, 4) and count < 2 ** (8 * code), "body")
    values = distinct_values(read, count, width, kind)
    codes = read.array(f"<u{code}", rows).tolist()
    read.end()
    need(max(codes, default=0) <= count, "code")
    return [None if code == count else values[code] for code in codes]


def file_lists(body: bytes, rows: int, kind: str) -> list[Any]:
    """Each list as its distinct elements, in the order of the body, and None where it has a null."""
    read = Bytes(body)
    count, width, pairs, zero = read("4I")
    need(zero == 0, "body")
    elements = distinct_values(read, count, width, kind.removeprefix("list<").removesuffix(">"))
    states = read.array("u1", rows).tolist()
    starts, steps = read.array("<u4", count + 1).tolist(), read.array("<u4", pairs).tolist()
    read.end()
    need(starts[0] == 0 and starts[-1] == pairs and max(states, default=0) <= 2, "starts")
    out = [None if state == 2 else [] for state in states]
    for element, (start, end) in zip(elements, itertools.pairwise(starts), strict=True):
        need(start < end and all(steps[start + 1 : end]), "rows")
        for row in itertools.accumulate(steps[start:end]):
            need(row < rows and states[row] < 2, "row")
            out[row].append(element)
    return [[*own, None] if state == 1 else own for own, state in zip(out, states, strict=True)]


def included(data: bytes, expected: bytes = b"ANNC") -> dict[str, Any]:
    """Section 10: the entry of each file, by slot. `expected`: ANNX where it is of words."""
    read = Bytes(data)
    magic, version, field_id, count, checksum = read("4s4I")
    need(magic == expected and version == 1, "header")
    need(zlib.crc32(data[:16] + bytes(4) + data[20:]) == checksum, "checksum")
    out: dict[str, Any] = {"field_id": field_id, "files": {}}
    for _ in range(count):
        slot, *numbers = read("IQIIIQQI")
        kind, _, left_out = read.text(), read.text(), read.text()
        need(slot not in out["files"], "slot")
        of_words = expected == b"ANNX" and numbers[1] <= numbers[0] and not numbers[2]
        need(not any(numbers[1:]) if left_out else of_words or 0 < numbers[1] <= 4096, "entry")
        out["files"][slot] = left_out or (kind, *numbers)
    read.end()
    return out


def included_values(entry: tuple[Any, ...], file: bytes) -> list[Any]:
    """The values of a file. `file`: the version's own file, or the entry's pack."""
    kind, rows, block_rows, width, _, offset, length, checksum = entry
    data = file[offset : offset + length]
    blocks = -(-rows // block_rows)
    index = data[length - 12 * blocks :]
    need(len(data) == length and len(index) == 12 * blocks and zlib.crc32(index) == checksum, "block index")
    read, parts = Bytes(data[: length - 12 * blocks]), Bytes(index)
    lengths, raw_lengths, checksums = (parts.array("<u4", blocks).tolist() for _ in range(3))
    out: list[Any] = []
    for number, (stored, raw, crc) in enumerate(zip(lengths, raw_lengths, checksums, strict=True)):
        block = read.take(stored)
        need(stored <= raw and zlib.crc32(block) == crc, "block")
        body = Bytes(expand(block, "zstd") if stored < raw else block)
        need(len(body.data) == raw, "raw length")
        count = min(block_rows, rows - number * block_rows)
        bits = np.unpackbits(np.frombuffer(body.take(-(-count // 8)), np.uint8), bitorder="little").tolist()
        need(not any(bits[count:]), "presence")
        values = distinct_values(body, count, width, kind)
        body.end()
        out += [value if present else None for value, present in zip(values, bits, strict=False)]
    read.end()
    return out


def words(entry: tuple[Any, ...], file: bytes) -> list[dict[str, int]]:
    """How often each row of a file has each term, from the words of a column of texts."""
    _, rows, ranges, _, _, offset, length, checksum = entry
    data, out = file[offset : offset + length], list[dict[str, int]]()
    index = data[length - 20 * ranges :]
    need(len(data) == length and zlib.crc32(index) == checksum, "index of ranges")
    read = Bytes(data[: length - 20 * ranges])
    for own_rows, stored, raw, crc, of_lists in struct.iter_unpack("<5I", index):
        head = read.take(stored)
        need(zlib.crc32(head) == crc, "head")
        out += range_of_rows(expand(head, "zstd") if stored != raw else head, own_rows, read.take(of_lists))
    read.end()
    need(len(out) == rows, "rows")
    return out


def range_of_rows(head: bytes, expected: int, lists: bytes) -> list[dict[str, int]]:
    read = Bytes(head)
    rows, terms, of_lists, width = read("IIQB3x")
    need(rows == expected and of_lists == len(lists) and width in (1, 2, 4), "head")
    lengths, ties = read.array(f"<u{width}", rows).tolist(), read.array("<u4", rows).tolist()
    of_terms, counts, sizes = (read.array(kind, terms).tolist() for kind in ("<u2", "<u4", "<u4"))
    names = [read.take(size) for size in of_terms]
    pages = read.array("<u4", -(-len(lists) // 16_384)).tolist()
    read.end()
    need(names == sorted(set(names)), "order of terms")
    need(pages == [zlib.crc32(lists[at : at + 16_384]) for at in range(0, len(lists), 16_384)], "pages")
    out: list[dict[str, int]] = [{} for _ in range(rows)]
    of_range = Bytes(lists)
    for name, count, size in zip(names, counts, sizes, strict=True):
        for row, often in rows_of_list(Bytes(of_range.take(size)), count):
            out[row][name.decode()] = often
    of_range.end()
    need([sum(own.values()) for own in out] == lengths, "lengths")
    sums = [sum(0x9E3779B97F4A7C15 * zlib.crc32(term.encode()) * n for term, n in own.items()) for own in out]
    need([(total % 2**64) >> 32 for total in sums] == ties, "ties")
    return out


def rows_of_list(read: Bytes, count: int) -> list[tuple[int, int]]:
    rows, before = list[tuple[int, int]](), -1
    for first in range(0, count, 128):
        size = min(128, count - first)
        widths = read("BB")
        steps, more = (
            [number >> width * place & (1 << width) - 1 for place in range(size)]
            for width in widths
            for number in [int.from_bytes(read.take(-(-size * width // 8)), "little")]
        )
        for step, often in zip(steps, more, strict=True):
            before += step + 1
            rows.append((before, often + 1))
    read.end()
    return rows


def distinct_values(read: Bytes, count: int, width: int, kind: str) -> list[Any]:
    ends = [width * place for place in range(count + 1)] if width else read.array("<u4", count + 1).tolist()
    raw = read.take(ends[-1])
    return [value_of(raw[start:end], kind) for start, end in itertools.pairwise(ends)]


def value_of(piece: bytes, kind: str) -> Any:
    forms = {"boolean": "?", "int": "<i", "long": "<q", "float": "<f", "double": "<d"}
    if kind in forms:
        return struct.unpack(forms[kind], piece)[0]
    if kind == "string":
        return piece.decode()
    return (
        piece
        if kind in ("binary", "uuid") or kind.startswith("fixed")
        else int.from_bytes(piece, "little", signed=True)
    )


def shard(data: bytes, apart: bytes = b"") -> dict[str, Any]:
    """Section 5. `apart`: its runs, one after the other."""
    read = Bytes(data)
    magic, version, dims, count, degree, search_list, metric, medoid = read("4s7I")
    alpha, m, bits, vectors, sections, features, checksum = read("f6I")
    need((magic, version, read.take(68)) == (b"DANN", 5, bytes(68)) and features in (1, 3), "header")
    need(zlib.crc32(data[:56] + bytes(72) + data[128 : 128 + 48 * sections]) == checksum, "header checksum")
    need((bits in (4, 8) and m * bits % 8 == 0 if m else bits == 0) and vectors in (0, 1, 2, 4, 5, 8), "formats")
    need(m == 0 or vectors <= 2, "PQ beside rotated codes")
    raw, last = {}, 128 + 48 * sections
    for _ in range(sections):
        kind, codec, offset, stored, length, crc = read("IIQQQI12x")
        need(offset % 64 == 0 and offset >= last and (kind < 14 or (kind >= 32_768 and not codec)), "section place")
        last = offset + stored
        need(zlib.crc32(data[offset:last]) == crc, "section checksum")
        raw[kind] = frames(data[offset:last]) if codec else data[offset:last]
        need(len(raw[kind]) == length, "section length")
    need(last == len(data), "end")
    need((features == 3) == (12 in raw) == (13 in raw), "cells")
    need(5 not in raw and len(apart) == count * dims * {1: 4, 2: 2}.get(vectors, 0), "number of vectors")
    out: dict[str, Any] = {"dims": dims, "degree": degree, "search_list": search_list, "metric": metric}
    out |= {"medoid": medoid, "alpha": alpha}
    out["neighbors"] = lists(raw[4], Bytes(raw[3]).differences(count + 1), degree)
    out["slots"], out["rows"] = locations(raw[6], count)
    out["hashes"] = Bytes(raw[7]).array("<u8", count)
    out["codebook"] = Bytes(raw[1]).array("<f4", m, 2**bits, dims // m) if m else None
    out["codes"] = Bytes(raw[2]).array("u1", count, m * bits // 8) if m else None
    out["vectors"] = Bytes(apart).array(("", "<f4", "<f2")[vectors], count, dims) if vectors in (1, 2) else None
    out["rotated"] = rotated_codes(raw, vectors, count, dims) if vectors > 2 else None
    out["cells"] = cells(raw, dims, out) if features == 3 else None
    return out


def cells(raw: dict[int, bytes], dims: int, shard: dict[str, Any]) -> dict[str, Any]:
    """Section 5, cells: their centers, and for each node its vector as the codes have it."""
    read, cell_bytes = Bytes(raw[13]), Bytes(raw[12])
    bits, count, recall, probes = read("IIfI")
    need(bits in (4, 8) and probes > 0, "cells")
    origin, scales = read.array("<f4", dims), read.array("<f4", count)
    rows, checksums = read.array("<u4", count).tolist(), read.array("<u4", count).tolist()
    centers = origin + scales[:, None] * read.array("i1", count, dims)
    read.end()
    vectors: dict[int, Any] = {}
    width = -(-dims * bits // 8)
    for n, checksum in zip(rows, checksums, strict=True):
        one = Bytes(cell_bytes.take(8 * dims + n * (16 + width)))
        need(n > 0 and zlib.crc32(one.data) == checksum, "cell checksum")
        lows, steps = one.array("<f4", dims), one.array("<f4", dims)
        nodes, slots, positions = one.array("<u4", n), one.array("<u4", n), one.array("<i8", n)
        codes = one.array("u1", n, width).astype(int)
        if bits == 4:
            codes = np.stack([codes % 16, codes // 16], axis=2).reshape(n, -1)[:, :dims]
        for node, slot, position, code in zip(nodes.tolist(), slots, positions, codes, strict=True):
            need(node not in vectors and (slot, position) == (shard["slots"][node], shard["rows"][node]), "cell row")
            vectors[node] = lows + steps * code
    cell_bytes.end()
    need(sorted(vectors) == list(range(len(shard["rows"]))), "cell nodes")
    return {"bits": bits, "recall": recall, "probes": probes, "centers": centers, "vectors": vectors}


def rotated_codes(raw: dict[int, bytes], bits: int, count: int, dims: int) -> dict[str, Any]:
    """Section 5, rotated codes: the levels of each node, and their terms."""
    blocks = -(-dims // 128)
    rotation = Bytes(raw[8])
    out: dict[str, Any] = {"seed": rotation("Q"), "center": rotation.array("<f4", dims), "bits": bits}
    rotation.end()
    need(bool(np.linalg.norm(out["center"].astype(np.float64)) <= 9.1e18), "center")
    out["terms"] = Bytes(raw[9]).array("<f4", count, 4)
    need(bool(np.isfinite(out["terms"]).all() and (out["terms"][:, [0, 3]] >= 0).all()), "terms")
    codes = halves(Bytes(raw[10]).array("u1", count, blocks, 64))
    out["high"] = codes - 7.5
    if bits == 8:
        codes = 16 * codes + halves(Bytes(raw[11]).array("u1", count, blocks, 64))
    elif bits == 5:
        ones = Bytes(raw[11]).array("u1", count, blocks, 16).astype(int)
        codes = 2 * codes + np.stack([ones >> bit & 1 for bit in range(8)], axis=2).reshape(count, 128 * blocks)
    need((bits > 4) == (11 in raw), "low bits")
    out["levels"] = codes - (2**bits - 1) / 2
    return out


def halves(packed: np.ndarray) -> np.ndarray:
    wide = packed.astype(int)
    return np.concatenate([wide & 15, wide >> 4], axis=2).reshape(len(wide), 128 * wide.shape[1])


def locations(raw: bytes, count: int) -> tuple[list[int], list[int]]:
    places = Bytes(raw)
    slots = Bytes(places.take(places("Q")))
    out = slots.differences(count), places.differences(count)
    slots.end(), places.end()
    return out


def addresses(data: bytes) -> tuple[list[int], list[int]]:
    """Section 5, at its end: (file slots, row positions)."""
    read = Bytes(data)
    magic, version, count, checksum, length = read("4s3IQ")
    need((magic, version) == (b"ANNL", 1), "header")
    need(zlib.crc32(data[:12] + bytes(4) + data[16:]) == checksum, "checksum")
    raw = frames(data[24:])
    need(len(raw) == length, "length")
    return locations(raw, count)


def frames(stored: bytes) -> bytes:
    read = Bytes(stored)
    count, size = read("II")
    lengths = [read("I") for _ in range(count)]
    parts = [zstandard.ZstdDecompressor().decompress(read.take(length)) for length in lengths]
    read.end()
    need(all(len(part) == size for part in parts[:-1]), "frame size")
    return b"".join(parts)


def lists(raw: bytes, offsets: list[int], degree: int) -> list[list[int]]:
    need(offsets[0] == 0 and offsets[-1] == len(raw), "offsets")
    out = []
    for start, end in itertools.pairwise(offsets):
        at = Bytes(raw[start:end])
        steps = [at.varint(5) for _ in range(at.varint(5))]
        at.end()
        out.append(np.cumsum(steps, dtype=np.int64).tolist())
        need(len(steps) <= degree and all(steps[1:]) and all(n < len(offsets) - 1 for n in out[-1]), "list")
    return out


def deletion_vector(data: bytes) -> list[int]:
    """Section 6."""
    need(int.from_bytes(data[:4], "big") == len(data) - 8 and data[4:8] == b"\xd1\xd39d", "frame")
    need(zlib.crc32(data[4:-4]) == int.from_bytes(data[-4:], "big"), "checksum")
    read = Bytes(data[8:-4])
    values: list[int] = []
    for _ in range(read("Q")):
        key = read("I") << 32
        values += [key | low for low in roaring(read)]
    read.end()
    return values


def roaring(read: Bytes) -> list[int]:
    """RoaringFormatSpec, 32 bits."""
    cookie = read("I")
    count = (cookie >> 16) + 1 if cookie & 0xFFFF == 12347 else read("I")
    need(cookie == 12346 or cookie & 0xFFFF == 12347, "cookie")
    runs = int.from_bytes(read.take((count + 7) // 8), "little") if cookie != 12346 else 0
    heads = [read("HH") for _ in range(count)]
    if cookie == 12346 or count >= 4:
        read.take(4 * count)
    values = []
    for number, (key, card) in enumerate(heads):
        if runs >> number & 1:
            low = [v for _ in range(read("H")) for start, more in [read("HH")] for v in range(start, start + more + 1)]
        elif card + 1 > 4096:
            bits = int.from_bytes(read.take(8192), "little")
            low = [v for v in range(1 << 16) if bits >> v & 1]
        else:
            low = read.array("<u2", card + 1).tolist()
        need(len(low) == card + 1, "cardinality")
        values += [key << 16 | v for v in low]
    return values


def theta(data: bytes) -> tuple[int, list[int]]:
    """Section 7: (theta, hashes)."""
    read = Bytes(data)
    longs, version, family, _, _, flags, seed = read("6BH")
    need((version, family) == (3, 3), "kind")
    if flags & 4:
        return 2**63 - 1, []
    need(seed == 0x93CC, "seed")
    count = read("If")[0] if longs > 1 else 1
    top = read("Q") if longs == 3 else 2**63 - 1
    hashes = read.array("<u8", count).tolist()
    read.end()
    return top, hashes


def sketches_by_file(directory: bytes, images: bytes) -> list[dict[str, Any]]:
    """Section 7: data files, each with its path and the sketches of its columns."""
    read = Bytes(directory)
    magic, version, columns, files, checksum = read("4s4I")
    need((magic, version) == (b"ANTD", 1), "header")
    need(zlib.crc32(directory[:16] + bytes(4) + directory[20:]) == checksum, "checksum")
    kinds = [(read("I"), read.text()) for _ in range(columns)]
    out, place = [], 0
    for _ in range(files):
        path, deletes = read.text(), read.text()
        added_by, stored, raw, count = read("qQQI")
        layout = [read("II") for _ in range(count)]
        data = images[place : place + stored]
        data = data if stored == raw else zstandard.decompress(data)
        need(len(data) == raw == sum(length for _, length in layout), "images")
        place += stored
        sketches, start = {}, 0
        for number, length in layout:
            sketches[kinds[number]] = theta(data[start : start + length])
            start += length
        out.append({"path": path, "deletes": deletes, "added_by": added_by, "sketches": sketches})
    read.end()
    need(place == len(images), "length of the images")
    return out
