"""Search by words beside Tantivy and bm25s: `python -m benchmarks.texts --rows 1000000 [--joined 12] [--whole]`.

Texts are the descriptions of `examples/packages.parquet`, of whose words a quarter is drawn anew by their frequency
and 2 % get a number, so that the dictionary grows with the rows; `--joined` joins several to one. Queries are three
words of a class each: the 100 commonest, of medium frequency, rare ones. Prints processor seconds of one thread: of the
build, and of searches, whose lists are in memory, with the sizes. Peers have to be installed, or are left out.

`--whole` measures an index of a table instead, whose data files have a million rows: processor seconds, and the growth
of peak memory, of a build, of a refresh after 1 % more rows, and of a reader's first search, each in a process of its
own; and the same of one without words. Its vectors of two numbers have no graphs.
"""

import argparse
import io
import multiprocessing
import resource
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

import icepuffin
from icepuffin.ann_kernels.text.bm25 import best_rows
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.rows.text_analysis import Analyzer
from icepuffin.ops.tasks.words_task import RangeWords, ranges_of
from icepuffin.ops.text.file_words import WordsPlace
from icepuffin.ops.text.text_index import ColumnScores
from icepuffin.puffin.blobs.included_columns_blob import WordsEntry
from icepuffin.puffin.blobs.words_blob import WordsEncoder

Search = Callable[[list[str], int], object]
_BATCH = 8_192
_FILE_ROWS = 1_000_000
_PAGES = {"format-version": "2", "write.parquet.page-row-limit": "100"}
"""Pages as other writers make them, by their bytes: PyIceberg alone has 20,000 rows in each, however long"""


def main() -> None:
    """Measure, and print a line per system."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--joined", type=int, default=1, help="descriptions that are joined to one text")
    arguments.add_argument("--queries", type=int, default=200)
    arguments.add_argument("--whole", action="store_true", help="measure an index of a table")
    options = arguments.parse_args()
    if options.whole:
        whole(options.rows, options.joined)
        return
    texts = make_texts(options.rows, options.joined)
    size = pc.sum(pc.binary_length(texts)).as_py()
    print(f"{len(texts):,} texts of {size / len(texts):.0f} bytes")
    ours(texts.slice(0, 1_000))  # compiles
    words = classes(texts, options.queries)
    for name, open_system in (("icepuffin", ours), ("tantivy", tantivy), ("bm25s", bm25s)):
        if name == "icepuffin" or find_spec(name):
            begun = time.process_time()
            stored, search = open_system(texts)
            built = time.process_time() - begun
            print(f"{name}: {size / 1e6 / built:.1f} MB/s, {stored / size:.3f} of the texts' bytes")
            for kind, queries in words.items():
                print(f"  {kind}: " + "; ".join(f"k = {k} {timed(search, queries, k)}" for k in (10, 100)))


def whole(rows: int, joined: int) -> None:
    """Measure an index of a table with words, and one without."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as process,
    ):
        process.submit(append, folder, rows, joined, 0).result()
        for step, added in (("build", 0), ("refresh", rows // 100), ("search", 0)):
            if added:
                process.submit(append, folder, added, joined, 1).result()
            for name in ("words", "vectors"):
                seconds, grown = process.submit(measure, folder, step, name).result()
                print(f"{step}, {name}: {seconds:.2f} s, {grown} MiB", flush=True)


def append(folder: str, rows: int, joined: int, seed: int) -> None:
    """Append rows with texts, a million to a data file."""
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("db")
    for first in range(0, rows, _FILE_ROWS):
        count = min(_FILE_ROWS, rows - first)
        vectors = np.random.default_rng(first + seed).standard_normal((count, 2), np.float32)
        lists = pa.ListArray.from_arrays(np.arange(0, 2 * count + 1, 2, np.int32), pa.array(vectors.reshape(-1)))
        batch = pa.table({"text": make_texts(count, joined, first + seed), "v": lists})
        catalog.create_table_if_not_exists("db.t", batch.schema, properties=_PAGES).append(batch)


def measure(folder: str, step: str, name: str) -> tuple[float, int]:
    """(processor seconds, MiB by which the peak of memory grew) of a step, in this process."""
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    table = catalog.load_table("db.t")
    if step == "build":
        text = ["text"] if name == "words" else []
        icepuffin.create_index(table, name=name, column="v", metric="l2", method="centroid", text=text)
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if step != "search":
        icepuffin.refresh(table, name, threads=1)
    elif name == "words":
        icepuffin.open_index(table, name, threads=1).search(text="library for the web", k=10, columns=[])
    spent = time.process_time() - begun
    return spent, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


def make_texts(rows: int, joined: int, seed: int = 7) -> pa.Array:
    """Texts with the frequencies of words of real ones."""
    draws = np.random.default_rng(seed)
    descriptions = pq.read_table("examples/packages.parquet")["description"].to_pylist()
    every = np.array([word for text in descriptions for word in text.split()])
    texts = []
    for _ in range(rows):
        own = [word for number in draws.integers(0, len(descriptions), joined) for word in descriptions[number].split()]
        changes = draws.random(len(own))
        drawn = every[draws.integers(0, len(every), len(own))]
        texts.append(" ".join(
            str(other) if change < 0.25 else f"{word}{int(1e7 * change) % 5000}" if change > 0.98 else word
            for word, other, change in zip(own, drawn, changes, strict=True)
        ))  # fmt: skip
    return pa.array(texts)


def classes(texts: pa.Array, count: int) -> dict[str, list[list[str]]]:
    """Queries of three words, by their frequency."""
    analyzer = Analyzer("none")
    numbers, _ = analyzer.terms_of(texts)
    frequency = np.bincount(numbers)
    terms, order, rows = analyzer.terms, np.argsort(-frequency, kind="stable"), len(texts)
    medium = np.flatnonzero((frequency > rows / 2_000) & (frequency < rows / 200))
    pools = {"common": order[:100], "medium": medium, "rare": np.flatnonzero((frequency > 1) & (frequency < 50))}
    draws = np.random.default_rng(1)
    return {
        name: [[terms[number].decode() for number in draws.choice(pool, 3, replace=False)] for _ in range(count)]
        for name, pool in pools.items()
    }


def timed(search: Search, queries: list[list[str]], k: int) -> str:
    """Milliseconds of the thread, of the second search of each."""
    for words in queries:
        search(words, k)
    spent = []
    for words in queries:
        begun = time.thread_time()
        search(words, k)
        spent.append((time.thread_time() - begun) * 1e3)
    return f"p50 {np.percentile(spent, 50):.3f} p99 {np.percentile(spent, 99):.3f} ms"


def ours(texts: pa.Array) -> tuple[int, Search]:
    """(bytes, search) of a file's words."""
    analyzer, encoder, sink, ranges = Analyzer("none"), WordsEncoder(), io.BytesIO(), 0
    batches: Iterator[pa.Array] = (texts.slice(first, _BATCH) for first in range(0, len(texts), _BATCH))
    for terms, row_ends in ranges_of(batches, analyzer):
        sink.writelines(RangeWords.from_terms(analyzer.terms, terms, row_ends).encoded(encoder))
        ranges += 1
    index = encoder.index()
    sink.write(index)
    body = sink.getvalue()
    entry = WordsEntry(0, len(texts), "string", "{}", block_rows=ranges, length=len(body), checksum=zlib.crc32(index))
    place, every = WordsPlace(entry, body=body), np.ones(len(texts), np.bool_)
    column = ColumnScores([place], np.array([0, len(texts)]), every, [], lambda _: place, StorageConfig())

    def search(words: list[str], k: int) -> object:
        terms = column.weighted({word.encode(): 1 for word in words})
        return best_rows([(found.rows, found.impacts) for found, _ in terms], [it for _, it in terms], column.ties, k)

    return len(body), search


def tantivy(texts: pa.Array) -> tuple[int, Search]:
    """The same of Tantivy, by one thread, with texts cut into words without case."""
    import tantivy  # noqa: PLC0415

    folder = tempfile.TemporaryDirectory()
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", stored=False, tokenizer_name="default", index_option="freq")
    index = tantivy.Index(builder.build(), path=folder.name)
    writer = index.writer(1 << 30, num_threads=1)
    for text in texts.to_pylist():
        writer.add_document(tantivy.Document(text=text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    size = sum(path.stat().st_size for path in Path(folder.name).iterdir())
    searcher, schema = index.searcher(), index.schema

    def search(words: list[str], k: int, _: object = folder) -> object:
        terms = [(tantivy.Occur.Should, tantivy.Query.term_query(schema, "text", word)) for word in words]
        return searcher.search(tantivy.Query.boolean_query(terms), k).hits

    return size, search


def bm25s(texts: pa.Array) -> tuple[int, Search]:
    """The same of bm25s, whose scores are made when it is built."""
    import bm25s  # noqa: PLC0415

    tokens = bm25s.tokenize(texts.to_pylist(), stopwords=None, show_progress=False)
    model = bm25s.BM25(method="lucene", k1=1.2, b=0.75, backend="numba")
    model.index(tokens, show_progress=False)
    size = sum(array.nbytes for array in model.scores.values() if hasattr(array, "nbytes"))
    return size, lambda words, k: model.retrieve([words], k=k, show_progress=False, n_threads=1)


if __name__ == "__main__":
    main()
