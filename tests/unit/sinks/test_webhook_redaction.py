"""What is hidden of an answer: a URL's path in whatever form a server repeats it, and headers."""

from __future__ import annotations

import html
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.sinks.webhook.redaction import Redaction

URL = "https://hooks.example.com/services/T0001/B0002/x%2By&z?token=s3cr3t-value&n=1"

PATH = "/services/T0001/B0002/x%2By&z"


@pytest.mark.parametrize(
    "answer",
    [
        PATH,
        PATH.lower(),
        "/services/T0001/B0002/x+y&z",
        html.escape(PATH),
        json.dumps(PATH),
        PATH.replace("/", "\\/"),
        "/T0001/B0002/x%2By&z",
        f"{PATH}?token=s3cr3t-value&n=1",
    ],
)
def test_a_path_is_hidden_in_every_form(answer):
    hidden = Redaction([URL])(f"Cannot POST {answer}.")
    assert hidden.replace('"', "") == "Cannot POST ***."


def test_a_short_path_is_hidden_as_a_whole_only():
    redaction = Redaction(["https://crm.example.com/in"])
    assert redaction("POST /in: the login is invalid") == "POST ***: the login is invalid"
    assert Redaction(["https://crm.example.com/"])("HTTP 404: a / b") == "HTTP 404: a / b"
    assert Redaction(["https://crm.example.com"])("HTTP 404") == "HTTP 404"


def test_values_of_headers_are_hidden_and_their_short_words_are_not():
    redaction = Redaction([], ["Bearer 0123456789"])
    assert redaction("Bearer is missing: got 0123456789") == "Bearer is missing: got ***"


def test_what_a_redirect_leads_to_is_hidden_too():
    redaction = Redaction([URL]).with_url("https://other.example.com/moved-here")
    assert redaction(f"{PATH} -> /moved-here") == "*** -> ***"
    assert redaction.with_url(URL) is redaction


def test_nothing_but_the_url_shows_a_redaction():
    assert "T0001" not in repr(Redaction([URL]))


@given(before=st.integers(0, 1_200), length=st.integers(0, 600), is_whole=st.booleans())
def test_an_excerpt_has_no_part_of_a_secret_wherever_the_text_ends(before, length, is_whole):
    secret = "/0123456789abcdef"
    text = "x" * before + secret * 3
    text = text if is_whole else text[:-5]
    excerpt = Redaction([f"https://a.example{secret}"]).excerpt(text, length, is_whole=is_whole)
    assert len(excerpt) <= length
    assert set(excerpt) <= {"x", "*"}
    assert excerpt.startswith("x" * min(before, length))


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_any_path_can_be_hidden(path):
    encoded = path.encode("unicode_escape").decode().replace(" ", "%20")
    redaction = Redaction([f"https://a.example/{encoded.replace('#', '')}"])
    assert redaction.excerpt("HTTP", 500, is_whole=True) in ("HTTP", "***")


def test_a_long_url_with_many_segments_takes_no_time():
    redaction = Redaction([f"https://a.example/{'a/' * 900}?{'b=c&' * 40}"])
    assert sum(map(len, redaction._forms)) < 200_000
