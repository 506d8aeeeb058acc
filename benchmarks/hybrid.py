"""nDCG@10 of searches by vectors, by words and by both, on judgements made here: `python -m benchmarks.hybrid`.

Of the packages of `examples/packages.parquet` those are queries that have a sibling, another package whose name begins
with the same part: the vector asked is the sibling's, the words are those of the package's name, and the answer is the
package itself. The index has the words of descriptions alone. So neither search knows the answer: a sibling's
description differs, and a name is not always among the words of a description.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import icepuffin
from icepuffin.ops.search.result import SearchResult

_EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def main() -> None:
    """Print a line per search."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.path.append(str(_EXAMPLES))
    from lake import packages  # type: ignore[import-not-found]  # noqa: PLC0415

    with TemporaryDirectory() as folder:
        table = packages(Path(folder), index=False)
        icepuffin.create_index(table, name="e", column="embedding", metric="cosine", text=["description"])
        icepuffin.refresh(table, "e")
        reader = icepuffin.open_index(table.refresh(), "e")
        rows = table.scan(selected_fields=("id", "name", "embedding")).to_arrow()
        names, ids = rows["name"].to_pylist(), rows["id"].to_pylist()
        pairs = siblings(names)
        vectors = np.array([rows["embedding"][other].as_py() for _, other in pairs], np.float32)
        texts = [names[own].replace("-", " ") for own, _ in pairs]
        answers = [ids[own] for own, _ in pairs]
        others = [ids[other] for _, other in pairs]
        print(f"{len(pairs):,} queries among {len(names):,} rows")
        searches = {"vectors": {"queries": vectors}, "words": {"text": texts}}
        both = {"queries": vectors, "text": texts}
        searches |= {"both, by ranks": both}
        searches |= {f"both, text_weight = {weight}": {**both, "text_weight": weight} for weight in (0.3, 0.5, 0.7)}
        for name, arguments in searches.items():
            result = reader.search(k=11, columns=["id"], **arguments)  # the sibling is no answer
            print(f"{name}: nDCG@10 {ndcg(result, answers, others):.3f}")


def siblings(names: list[str]) -> list[tuple[int, int]]:
    """(package, another one of its family) for each package of a family of two to ten."""
    families = defaultdict[str, list[int]](list)
    for number, name in enumerate(names):
        families[name.partition("-")[0]].append(number)
    return [
        (number, family[place - 1])
        for family in families.values()
        if 2 <= len(family) <= 10
        for place, number in enumerate(family)
    ]


def ndcg(result: SearchResult, answers: list[int], others: list[int]) -> float:
    """Mean over the queries, each of which has one right row: 1 / log2(1 + its rank) among the first 10."""
    gains, rank = np.zeros(len(answers)), np.zeros(len(answers), np.int64)
    for query, row in zip(result.rows["query"].to_pylist(), result.rows["id"].to_pylist(), strict=True):
        if row != others[query]:
            rank[query] += 1
            if row == answers[query] and rank[query] <= 10:
                gains[query] = 1 / np.log2(1 + rank[query])
    return float(gains.mean())


if __name__ == "__main__":
    main()
