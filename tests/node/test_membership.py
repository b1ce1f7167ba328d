"""Where processes of a cell are found by others."""

import pytest

from quaymaster.node.cell.membership import own_address, within_reach
from quaymaster.settings import Address


@pytest.mark.parametrize(
    ("host", "found"), [("0.0.0.0", "10.0.0.7"), ("::", "10.0.0.7"), ("10.0.0.9", "10.0.0.9")]
)
def test_a_process_that_listens_everywhere_is_found_at_its_own_address(host: str, found: str) -> None:
    assert within_reach(Address(host, 9324), "10.0.0.7") == Address(found, 9324)


def test_the_address_of_this_host_is_known() -> None:
    assert own_address()
