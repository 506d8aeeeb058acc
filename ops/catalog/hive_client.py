"""Calls to a Hive Metastore of release 4: since 4.0.1 it has only the newer ones of two that PyIceberg 0.12 makes.

The thrift client that comes with PyIceberg has the newer calls as well. Metastores from 2.3 on answer them.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any


def make_newer_calls() -> None:
    """Let PyIceberg's client of Hive make the newer call where the server does not know the older one.

    It holds for all catalogs of this process. Calls to older servers stay as they are. Needs thrift.
    """
    from hive_metastore.ThriftHiveMetastore import Client  # noqa: PLC0415  needs thrift, which others do not have
    from hive_metastore.ttypes import GetTableRequest, GetTablesRequest  # noqa: PLC0415
    from thrift.Thrift import TApplicationException  # noqa: PLC0415

    def get_table(client: Any, dbname: str, tbl_name: str) -> Any:
        return client.get_table_req(GetTableRequest(dbName=dbname, tblName=tbl_name)).table

    def get_table_objects(client: Any, dbname: str, tbl_names: list[str]) -> Any:
        return client.get_table_objects_by_name_req(GetTablesRequest(dbName=dbname, tblNames=tbl_names)).tables

    for name, newer in (("get_table", get_table), ("get_table_objects_by_name", get_table_objects)):
        older = getattr(Client, name)
        if not hasattr(older, "__wrapped__"):
            setattr(Client, name, with_newer(older, newer, TApplicationException))


def with_newer(older: Callable[..., Any], newer: Callable[..., Any], answered: Any) -> Callable[..., Any]:
    """The older call; the newer one where the server has no such method. `answered`: thrift's class of errors that the
    server itself raises.
    """

    @wraps(older)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return older(*args, **kwargs)
        except answered as error:
            if error.type != answered.UNKNOWN_METHOD:
                raise
        return newer(*args, **kwargs)

    return call
