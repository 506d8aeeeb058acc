"""Blobs of other engines in a table's statistics entries.

Iceberg lets writers list blobs of types of their own, as Presto's ANALYZE does, and readers skip what they do not know.
PyIceberg's model of a table's metadata takes two types, and refuses the whole table for any other.
"""

from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel
from pyiceberg.table.statistics import BlobMetadata
from pyiceberg.typedef import IcebergBaseModel, IcebergRootModel

_TYPE_OF_PYICEBERG = "deletion-vector-v1"
"""A type that the validators of all models name which hold a `BlobMetadata`"""


@cache
def admit_foreign_blobs() -> None:
    """Let PyIceberg read blobs of any type in tables' metadata, and write them back as they were, in this process."""
    BlobMetadata.model_fields["type"].annotation = str
    for model in tuple(_models(IcebergBaseModel, IcebergRootModel)):  # PyIceberg defines parts before what holds them
        if _TYPE_OF_PYICEBERG in str(model.__dict__.get("__pydantic_core_schema__")):
            model.model_rebuild(force=True)


def _models(*bases: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for base in bases:
        for model in base.__subclasses__():
            yield model
            yield from _models(model)
