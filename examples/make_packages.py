"""Cut the demo's table out of the full set: `python examples/make_packages.py --source DIR --out FILE`.

DIR holds `packages.parquet` (package, section, description) and `embeddings.f16.npy`, row by row; see PROVENANCE.md.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 6_000
WHOLE_SECTIONS = ("database", "httpd", "vcs", "editors", "web", "shells")
SAMPLED_SECTIONS = ("utils", "admin", "net", "games", "graphics", "science", "sound", "text", "mail", "video", "math")


def cut(source: Path, rows: int = ROWS) -> pa.Table:
    """All rows of a few sections and a seeded sample of others, in the order of the full set."""
    packages = pq.read_table(source / "packages.parquet")
    embeddings = np.load(source / "embeddings.f16.npy", mmap_mode="r")
    section = packages["section"]
    whole = np.flatnonzero(pc.is_in(section, pa.array(WHOLE_SECTIONS)))
    others = np.flatnonzero(pc.is_in(section, pa.array(SAMPLED_SECTIONS)))
    sampled = np.random.default_rng(1).choice(others, rows - len(whole), replace=False)
    chosen = np.sort(np.concatenate([whole, sampled]))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings[chosen].reshape(-1)), embeddings.shape[1])
    table = packages.take(chosen).rename_columns(["name", "section", "description"])
    return table.add_column(0, "id", pa.array(chosen, pa.int64())).append_column("embedding", vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    pq.write_table(cut(arguments.source), arguments.out, compression="zstd", row_group_size=2_000)


if __name__ == "__main__":
    main()
