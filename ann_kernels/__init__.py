"""Kernels over arrays: distances, graphs, codes, clusters and sketches. They know no files, tables or engines.

- Vectors: `metric`, `distance` (prepared vectors, reported distances), `exact_distances`, `lower_bounds`, `top_k`.
- Conditions: `bitmap`, `postings` (lists of rows), `coded_comparison`, `listed_candidates` (the nearest of some rows).
- Graphs: `vamana` (build and insert), `graph_search` (search), and below them `bulk_build`, `greedy_insert`,
  `block_search` and `beam_search`, `robust_prune`, `reachability`, `duplicates` (nodes of equal vectors).
- Codes: `scalar_quantization` (one byte per dimension), `product_quantization` (m bytes per vector), `kmeans`.
- Rows: `hashing` (content hashes), `matching` (equal hashes), `row_sums` (checksums of files), `dead_rows`,
  `locality` (order).
- Columns: `theta` (sketches of distinct values), `theta_estimates` (their number).

All public functions check their arrays and raise `errors`. Kernels see only validated arrays (`arrays`,
`compilation`, `simd`); numba keeps them compiled, by the state of all sources (`compiled_code`).
"""
