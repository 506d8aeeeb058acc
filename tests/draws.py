"""How much tests draw at random: little in each run, since each run draws other cases.

ICEPUFFIN_SEED=<the seed that a failure shows> draws the same again, ICEPUFFIN_DRAWS=20 twenty times as much.
"""

import os
import secrets

SEED = int(os.environ.get("ICEPUFFIN_SEED") or secrets.randbits(32))
_TIMES = int(os.environ.get("ICEPUFFIN_DRAWS") or 1)


def draws(count: int) -> range:
    """To loop over as many draws, or a multiple."""
    return range(count * _TIMES)
