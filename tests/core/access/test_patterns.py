"""Wildcards match what a table of beginnings says, in as many steps as the text has characters."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from quaymaster.core.access.patterns import automaton_of, parse_parts, parse_pattern

from .naive import tokens, tokens_match


@settings(max_examples=400)
@given(pattern=st.text("ab*?", max_size=12), text=st.text("ab*", max_size=12))
@example("*a*a*", "a")
@example("a*a", "a")
def test_wildcards_match_as_the_table_does(pattern: str, text: str) -> None:
    expected = tokens_match(tokens(pattern, {}, False) or [], text)

    assert parse_pattern(pattern, has_variables=False).matches_always(text) == expected
    assert (
        automaton_of(parse_parts(pattern, has_wildcards=True, has_variables=False)).accepts(text) == expected
    )


def test_many_wildcards_take_a_step_for_each_character() -> None:
    class Counted(str):
        steps = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            for character in str.__iter__(self):
                Counted.steps += 1
                yield character

    pattern = parse_pattern("*a?" * 2_000 + "b", has_variables=False)

    assert not pattern.matches_always(Counted("a" * 1_000))
    assert Counted.steps == 1_000
