"""Errors of `icepuffin.puffin`. Each message says where in the file, or in which blob, the bytes are wrong."""


class PuffinError(ValueError):
    """Base of every error about Puffin files and their blobs."""


class TruncatedFileError(PuffinError):
    """Raised when a file is too short for what it claims to hold."""


class BadMagicError(PuffinError):
    """Raised when one of the three `PFA1` marks is something else."""


class UnknownFlagsError(PuffinError):
    """Raised when the footer sets a flag that this version of the spec does not know."""


class BadFooterError(PuffinError):
    """Raised when the footer payload is not the JSON that the spec describes."""


class BadBlobLocationError(PuffinError):
    """Raised when a blob lies outside the file's blob area, or overlaps another."""


class BadCompressionError(PuffinError):
    """Raised when compressed bytes do not decompress to what they declare, or declare too much."""


class BadBlobError(PuffinError):
    """Raised when a blob's payload breaks the format of its type."""


class ChecksumError(BadBlobError):
    """Raised when stored bytes do not have the checksum stored beside them."""


class LaterFormatError(BadBlobError):
    """Raised when a blob says that it is of a later version of its format: it may be sound."""


class EarlierFormatError(BadBlobError):
    """Raised when a blob says that it is of a version of its format that was given up: what it holds is made anew."""


class BlobTooLargeError(PuffinError):
    """Raised when a blob is over the reader's limit, before any of it is read."""
