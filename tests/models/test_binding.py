"""The laws of the protocol by which versions are bound hold in every order of events; each fault is found."""

import pytest

from tests.models.binding import SERVERS, Left, Model
from tests.models.binding_search import MUTANTS, SMALL, search


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("bound", SMALL)
def test_every_order_of_a_few_events_keeps_the_laws(server: str, bound: Left) -> None:
    states, steps = search(Model(server), bound)
    assert steps == []
    assert states > 200


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_part_of_the_protocol_that_is_left_out_is_noticed(mutant: str) -> None:
    assert any(search(Model(server, mutant), MUTANTS[mutant])[1] for server in SERVERS)
