"""Rotated codes of a shard: as kernels take them, and as its blob holds them."""

from icepuffin.ann_kernels.codes.rotated_quantization import RotatedCodes
from icepuffin.puffin.blobs.shard_blob import ShardCodes


def as_kernels_take(codes: ShardCodes | None) -> RotatedCodes | None:
    """The same arrays; None for none."""
    if codes is None:
        return None
    return RotatedCodes(codes.bits, codes.seed, codes.center, codes.terms, codes.high, codes.low)


def as_stored(codes: RotatedCodes) -> ShardCodes:
    """The same arrays."""
    return ShardCodes(codes.bits, codes.seed, codes.center, codes.terms, codes.high, codes.low)
