"""The description of an edge: what it may say, and what is said of what it may not."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from quaymaster.cli.edge.layout import Balancer, EdgeHost, LayoutError, parse_layout

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "tls-and-balancers.md"
EXAMPLE = (Path(__file__).parent / "expected" / "edge.toml").read_text()


def problems(text: str) -> list[str]:
    """Return what is wrong with a description, a line each."""
    with pytest.raises(LayoutError) as refused:
        parse_layout(text)
    return str(refused.value).splitlines()


def test_a_description_names_balancers_with_their_virtual_ips_and_hosts() -> None:
    layout = parse_layout(EXAMPLE)

    assert layout.name == "sqs.example.com"
    assert layout.balancers[1] == Balancer("balancer-2", "10.0.0.6", "eth0", "10.0.0.102")
    assert layout.hosts[0] == EdgeHost("frontend-1", "10.0.0.21", "a")
    assert (layout.port, layout.health_port, layout.router_id) == (443, 9329, 51)
    assert layout.balancer("balancer-1") is layout.balancers[0]


def test_of_a_balancer_that_there_is_not_it_is_said_which_there_are() -> None:
    with pytest.raises(LayoutError, match="no balancer 'b'; there are balancer-1, balancer-2"):
        parse_layout(EXAMPLE).balancer("b")


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        (
            '"sqs.example.com"',
            '"sqs"',
            ["name: 'sqs' is not a domain name with a dot, for example sqs.example.com"],
        ),
        ('"sqs.example.com"', f'"{"a." * 126}com"', None),
        ('name = "balancer-2"', 'name = "balancer-1"', ["balancer: 2 have the name 'balancer-1'"]),
        ('name = "frontend-2"', 'name = "frontend-1"', ["host: 2 have the name 'frontend-1'"]),
        (
            'name = "frontend-2"',
            'name = "two words"',
            ["host: 'two words' is not a name of letters, digits, '_', '.' and '-'"],
        ),
        (
            'name = "balancer-2"',
            'name = "x\\ny"',
            ["balancer: 'x\\ny' is not a name of letters, digits, '_', '.' and '-'"],
        ),
        (
            'zone = "b"',
            'zone = ""',
            ["host frontend-2: zone: '' is not a name of letters, digits, '_', '.' and '-'"],
        ),
        (
            '"10.0.0.22"',
            '"10.0.0.300"',
            ["host frontend-2: address: '10.0.0.300' is not an IPv4 address, for example 10.0.0.5"],
        ),
        (
            '"10.0.0.102"',
            '"fd00::1"',
            ["balancer balancer-2: vip: 'fd00::1' is not an IPv4 address, for example 10.0.0.5"],
        ),
        (
            '"10.0.0.22"',
            '"127.0.0.1"',
            ["host frontend-2: address: 127.0.0.1 cannot be reached by other hosts"],
        ),
        (
            '"10.0.0.22"',
            '"10.0.0.101"',
            [
                "host frontend-2: address: 10.0.0.101 is the address of balancer balancer-1: vip already",
            ],
        ),
        (
            '"10.0.0.102"',
            '"10.0.0.101"',
            ["balancer balancer-2: vip: 10.0.0.101 is the address of balancer balancer-1: vip already"],
        ),
        (
            'interface = "eth0"\nvip = "10.0.0.102"',
            'interface = "eth0 {"\nvip = "10.0.0.102"',
            ["balancer balancer-2: 'eth0 {' is not a network interface, for example eth0"],
        ),
    ],
)
def test_what_is_wrong_is_named(written: str, instead: str, said: list[str] | None) -> None:
    assert written in EXAMPLE

    found = problems(EXAMPLE.replace(written, instead, 1))

    assert found == said or (said is None and len(found) == 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("port = 0", "port: 0 is not a TCP port"),
        ("health_port = 65536", "health_port: 65536 is not a TCP port"),
        ("health_port = 443", "health_port: 443 is the port of requests already"),
        ("connections_max = 0", "connections_max: 0 is below 1"),
        (
            "router_id = 255",
            "router_id: 255 is not 1 to 254; each of 2 virtual IPs has a number up to 255",
        ),
    ],
)
def test_numbers_are_within_their_bounds(line: str, said: str) -> None:
    assert problems(f"{line}\n{EXAMPLE}") == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "Invalid value"),
        (EXAMPLE.replace("address", "adress", 1), "unknown field `adress`"),
        (EXAMPLE.replace('vip = "10.0.0.101"', "", 1), "missing required field `vip` - at `$.balancer[0]`"),
        (EXAMPLE.replace('"10.0.0.21"', "21", 1), "Expected `str`, got `int` - at `$.host[0].address`"),
        (f"port = true\n{EXAMPLE}", "Expected `int`, got `bool` - at `$.port`"),
    ],
)
def test_what_has_another_shape_is_refused_with_its_place(text: str, said: str) -> None:
    (line,) = problems(text)

    assert said in line


def test_everything_that_is_wrong_is_named_at_once() -> None:
    alone = (
        EXAMPLE[: EXAMPLE.index('[[balancer]]\nname = "balancer-2"')]
        + "[[host]]\nname = '-'\naddress = '1'\n"
    )

    assert problems(alone) == [
        "balancer: there are 1; 2 to 8 are needed, so that one may fail",
        "host: '-' is not a name of letters, digits, '_', '.' and '-'",
        "host -: address: '1' is not an IPv4 address, for example 10.0.0.5",
    ]


def test_there_is_a_host_and_there_are_not_too_many() -> None:
    hosts = "".join(f'[[host]]\nname = "f{n}"\naddress = "10.1.0.{n}"\n' for n in range(251))
    without = EXAMPLE[: EXAMPLE.index("[[host]]")]

    assert problems(f"host = []\n{without}") == ["host: there are 0; 1 to 250 are needed"]
    assert problems(without + hosts) == ["host: there are 251; 1 to 250 are needed"]


def test_the_description_in_the_guide_is_this_one() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (shown,) = (textwrap.dedent(block) for block in blocks if "[[balancer]]" in block)

    assert parse_layout(shown) == parse_layout(EXAMPLE)
