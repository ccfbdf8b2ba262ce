"""Addresses that a subscriber's URL must not reach, in every notation."""

from __future__ import annotations

from ipaddress import ip_address

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.sinks.webhook.addresses import is_public, resolved
from pgstream_dagster.sinks.webhook.subscription import origin, problem_of

PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",  # the metadata service of clouds
    "168.63.129.16",  # Azure's
    "100.64.0.1",
    "100.100.100.200",  # Alibaba's metadata service
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001:0:53aa:64c::1",
    "2001:db8::1",
    "fc00::1",
    "fd00:ec2::254",  # AWS' metadata service
    "fe80::1",
    "fe80::1%1",
    "fec0::1",
    "ff02::1",
    "100::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_address_for_special_use_is_not_public(address):
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"],
)
def test_address_of_the_internet_is_public(address):
    assert is_public(ip_address(address))


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost"])
def test_other_notations_of_this_machine_resolve_to_what_is_refused(host):
    assert not any(is_public(ip_address(address)) for address in resolved(host, 80))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://example.com/", "must be an http or https address with a host"),
        ("example.com", "must be an http or https address with a host"),
        ("http://", "must be an http or https address with a host"),
        ("http://[::1/", "is no URL"),
        ("http://example.com:99999/", "is no URL"),
        ("https://user:secret@example.com/", "must have no user and password"),
        ("https://example.com/#here", "must have no #fragment"),
        ("https://example.com/a b", "printable ASCII characters"),
        ("https://example.com/ä", "printable ASCII characters"),
        ("https://example.com/" + "a" * 2_000, "at most 2,000"),
        ("http://127.0.0.1/", "is a private address"),
        ("http://[::ffff:10.0.0.1]:80/", "is a private address"),
        ("http://localhost:9000/", "is a private address"),
    ],
)
def test_problem_of_a_url_is_named_and_the_url_is_not_repeated(url, problem):
    shown = problem_of(url, allow_private=False)
    assert shown is not None
    assert problem in shown
    assert "secret" not in shown


hosts = st.text("ab.-_%:@[]#?/\\xn*~1 \0é", max_size=12)


@given(st.builds("{}://{}{}".format, st.sampled_from(["http", "https", "x"]), hosts, hosts))
def test_a_url_without_a_problem_can_be_called(url):
    if problem_of(url, allow_private=True) is None:
        assert httpx.Request("POST", url).url.host
        assert origin(url).startswith("http")


def test_private_url_has_no_problem_where_it_is_allowed():
    assert problem_of("http://127.0.0.1:8000/hook", allow_private=True) is None
    assert problem_of("https://hooks.example.com/a?b=c", allow_private=False) is None
