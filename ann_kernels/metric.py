"""The metrics, and what distance each of them reports."""

import enum

from icepuffin.ann_kernels.errors import KernelError


class Metric(enum.StrEnum):
    """How near two vectors are. Reported distances: smaller is nearer. Users write the values."""

    L2 = "l2"
    """Euclidean distance."""
    COSINE = "cosine"
    """1 - cosine similarity; vectors are normalised first."""
    INNER_PRODUCT = "ip"
    """- inner product; no metric in the mathematical sense."""
    HAMMING = "hamming"
    """Number of bits that differ: of vectors of 0 and 1, the squared Euclidean distance."""

    @property
    def code(self) -> int:
        """Number of the metric in the file formats and in kernels."""
        return _CODES[self]

    @classmethod
    def parse(cls, name: str) -> "Metric":
        """`l2`, `cosine`, `ip` or `hamming`. Raises KernelError."""
        try:
            return cls(name.lower())
        except ValueError:
            raise KernelError(f"metric {name!r} is not one of {', '.join(cls)}") from None

    @classmethod
    def of_code(cls, code: int) -> "Metric":
        """The metric with this number. Raises ValueError."""
        for metric, number in _CODES.items():
            if number == code:
                return metric
        raise ValueError(f"no metric has the number {code}")


_CODES = {Metric.L2: 0, Metric.COSINE: 1, Metric.INNER_PRODUCT: 2, Metric.HAMMING: 3}
