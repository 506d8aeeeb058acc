"""Upkeep of packs beside a publication, which does not fail with it."""

import logging

from pyiceberg.table import Table

from icepuffin.ops.binding.expiration import expire_packs, unnamed_packs

_log = logging.getLogger(__name__)


def expire_packs_if_possible(table: Table) -> None:
    """Drop the packs of versions that have expired since: no engine's expiry does. What fails here is done later."""
    if not unnamed_packs(table):
        return
    try:
        expire_packs(table)
    except Exception as error:  # a catalog's client raises its own, as where the right to remove snapshots is missing
        _log.warning("packs that no version names stay until a later refresh, or `icepuffin gc`: %s", error)
