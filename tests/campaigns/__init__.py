"""Campaigns: random faults for as long as one likes. `python -m tests.campaigns --help`; not part of the test suite."""
