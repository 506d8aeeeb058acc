"""Kernels: distances, graphs, codes, sketches. See docs/architecture.md."""

from icepuffin.ann_kernels.compiled_code import install

install()
