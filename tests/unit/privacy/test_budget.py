"""What a budget is asked about before the server releases something."""

from dataclasses import replace

from sandbox import Server

from tacit.core import FEDERATION, Gaussian, Release

OF_ALL = Release("mean", "client", FEDERATION, "clients", Gaussian(2.0), ((0, 0),))
OF_A = replace(OF_ALL, owner="a", what="sum")
OF_B = replace(OF_A, owner="b")


def asked(known, line):
    """Return what the budget sees when a server with known lines wants to release one."""
    seen = []
    server = Server(["a", "b"], 0, approve=lambda ledger: seen.append(set(ledger)))
    for old in known:
        server.release(old)
    server.release(line)
    assert set(server.ledger) == {*known, line}
    return seen[len(known) :]


def test_a_client_pays_from_one_budget_for_its_own_lines_and_the_federations():
    later = replace(OF_A, what="another")
    assert asked([OF_ALL, OF_A, OF_B], later) == [{OF_ALL, OF_A, later}]


def test_what_the_federation_releases_is_added_to_what_it_released():
    later = replace(OF_ALL, what="another")
    assert asked([OF_ALL], later) == [{OF_ALL, later}]
