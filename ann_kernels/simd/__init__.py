"""CPU instructions that numba does not choose by itself, one group per module.

Each function is LLVM code for compiled kernels, with its documentation and beside it a plain function that gives the
same result: the plain one runs where the JIT is off or the CPU lacks the instruction.

- `prefetching`: cache lines requested before they are read.
- `byte_products`: sums of byte products, by AVX-512 VNNI or AVX2 where numba compiles for a CPU that has it.
- `tiles`: such sums for all pairs of a few rows and columns.
- `sign_products`: sums of the integers that bits choose.
- `lane_selection`: the smallest of many integers, 16 at a time.
- `nearest_lanes`: the nearest centroids of 16 points.
- `bits`: single bits of words.
- `sort_keys`: distance and node in one integer, and its insertion into a sorted array.
- `double_blocks`: sums in float64 in a fixed order.
"""
