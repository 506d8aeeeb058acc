"""`python -m benchmarks`: says what can be measured, then times our kernels beside the peers that are installed.

Options are those of `benchmarks.kernels`.
"""

import sys

from benchmarks import kernels

LIST = """Benchmarks, each with its own --help:
  python -m benchmarks.kernels        our graph beside other libraries, where they are installed
  python -m benchmarks.build          materialising an index of a table, in the driver and on Spark
  python -m benchmarks.walk_codes     walks by bytes, by four bits per dimension, by signs, and by rotated codes
  python -m benchmarks.build_steps    where the time and the memory of a graph build go
  python -m benchmarks.refresh_cost   a refresh beside a rebuild
  python -m benchmarks.drift          recall over many refreshes
  python -m benchmarks.search         searches of a table, end to end, beside DuckDB
  python -m benchmarks.beside         the same searches by another checkout of this code, in turn
  python -m benchmarks.cold           the first answer of a process without a cache, from an object store
  python -m benchmarks.answers        the columns of answers, out of data files and out of an index
  python -m benchmarks.tails          rows that the index lacks: none, read from data files, kept in memory
  python -m benchmarks.tuning         a target recall for queries unlike the rows, without and with tuning
  python -m benchmarks.balls          ruling out files by balls, and searches without graphs
  python -m benchmarks.filters        searches under conditions that are new
  python -m benchmarks.groups         searches with a limit per group, beside plain ones
  python -m benchmarks.tags           searches by two tags each, every condition new
  python -m benchmarks.distributed    searches by Spark tasks, beside Spark's empty job
  python -m benchmarks.cluster        searches on 1, 2 and 4 workers: where shards are kept, batches of queries
  python -m benchmarks.sketches       theta sketches of a file's columns, beside Iceberg on Spark and DuckDB
  python -m benchmarks.sketch_kernels theta sketching without files
  python -m benchmarks.planners       joins and estimates of Trino, Spark and Presto, without statistics and with ours
  python -m benchmarks.quantizers     k-means and product quantization, beside faiss where it is installed
  python -m benchmarks.scale          one table of any size, end to end, each step in a process of its own
  python -m benchmarks.layout         shards, codebook and bytes of a table's size: arithmetic alone
  python -m benchmarks.large_layout   the layout of a billion rows, by its sample: loads, probes, routing blob
  python -m benchmarks.sensor_load    a sensor's evaluations under load
  python -m benchmarks.freshness      how soon a commit is searchable and indexed, by a real daemon
  python -m benchmarks.history        a table with a long history: opening a reader, and the sensor
  python -m benchmarks.definitions    loading the Dagster definitions of many tables
  python -m benchmarks.simulated_vectors   vectors of any number and length from a few real ones, for the others
Plugins for other people's loops: benchmarks/peers_plugin.py (indexes), benchmarks/theta_plugin.py (sketches).
"""

if __name__ == "__main__":
    print(LIST)
    kernels.main(sys.argv[1:])
