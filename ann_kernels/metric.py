"""The metrics, and what distance each of them reports."""

import enum

from icepuffin.ann_kernels.errors import KernelError


class Metric(enum.IntEnum):
    """How near two vectors are. Reported distances: smaller is nearer. Numbers are part of the file formats."""

    L2 = 0
    """Euclidean distance."""
    COSINE = 1
    """1 - cosine similarity; vectors are normalised first."""
    INNER_PRODUCT = 2
    """- inner product; no metric in the mathematical sense."""

    @classmethod
    def parse(cls, name: str) -> "Metric":
        """`l2`, `cosine` or `ip`. Raises KernelError."""
        try:
            return _NAMES[name.lower()]
        except KeyError:
            raise KernelError(f"metric {name!r} is not one of {', '.join(_NAMES)}") from None

    @property
    def label(self) -> str:
        return next(name for name, metric in _NAMES.items() if metric is self)


_NAMES = {"l2": Metric.L2, "cosine": Metric.COSINE, "ip": Metric.INNER_PRODUCT}
