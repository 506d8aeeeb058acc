"""A campaign: `python -m tests.campaigns kills --seconds 600`. Ends with 1 at the first broken promise."""

import argparse
import logging
import random
import sys
from functools import partial

from tests.campaigns import crowd, flips, kills, leaks, pages, releases, replay, sites, upserts
from tests.campaigns.budget import BrokenPromiseError, Budget

CAMPAIGNS = {
    **{f"crowd-{catalog}": partial(crowd.run, catalog=catalog) for catalog in sites.CATALOGS},
    "flips": flips.run,
    "kills": kills.run,
    "leaks": leaks.run,
    "pages": pages.run,
    "releases": releases.run,
    "replay": replay.run,
    "replay-all": replay.run_all,
    "upserts": upserts.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--seconds", type=float, default=600, help="how long to draw trials [default: 600]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="default: a new one")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial, to repeat one [default: 0]")
    arguments = parser.parse_args()
    budget = Budget(arguments.seconds, arguments.seed, arguments.first)
    print(f"{arguments.campaign}, seed {budget.seed}", flush=True)
    logging.disable()  # each damage that a reader notices is logged
    try:
        CAMPAIGNS[arguments.campaign](budget)
    except BrokenPromiseError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        print(budget.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
