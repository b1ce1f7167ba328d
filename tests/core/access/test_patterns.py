"""Wildcards match what a table of beginnings says, in as many steps as the text has characters."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from quaymaster.core.access.arns import one_matches, parse_arn_pattern
from quaymaster.core.access.patterns import CANDIDATES_MAX, Patterns, automaton_of, parse_parts, parse_pattern

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


@settings(max_examples=400)
@given(
    patterns=st.lists(st.one_of(st.text("ab*?", max_size=6), st.just("*${aws:username}?")), max_size=6),
    text=st.text("ab*", max_size=8),
    folds_case=st.booleans(),
)
def test_several_patterns_match_what_one_of_them_matches(
    patterns: list[str], text: str, folds_case: bool
) -> None:
    def find(key: str) -> tuple[str, ...]:
        return ("b*",)

    parsed = [parse_pattern(each, has_variables=True, folds_case=folds_case) for each in patterns]
    arns = [parse_arn_pattern("Resource", f"arn:a:b:?:*:{each}", has_variables=True) for each in patterns]
    arns += [parse_arn_pattern("Resource", "arn:a:b:??:*:*", has_variables=True)]

    assert Patterns(parsed).match(text.upper() if folds_case else text, find) == any(
        pattern.matches(text, find) for pattern in parsed
    )
    segments = ("arn", "a", "b", "c", "d", text)
    assert one_matches(arns, segments, find) == any(arn.matches(segments, find) for arn in arns)
    assert not one_matches(arns, segments[:-1], find)


class Counted(str):
    """A text that counts how many of its characters were looked at."""

    steps = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for character in str.__iter__(self):
            Counted.steps += 1
            yield character


def test_many_wildcards_take_a_step_for_each_character() -> None:
    pattern = parse_pattern("*a?" * 2_000 + "b", has_variables=False)
    Counted.steps = 0

    assert not pattern.matches_always(Counted("a" * 1_000))
    assert Counted.steps == 1_000


def test_a_pattern_whose_longest_piece_stands_in_few_places_takes_no_step_for_each_character() -> None:
    agent = "Boto3/1.40 md/Botocore#1.40 ua/2.1"
    matching = parse_pattern("*Botocore?1.4?*", has_variables=False)
    others = [parse_pattern(text, has_variables=False) for text in ("*Botocore?2.4?*", "?oto2*", "*/3.?")]
    Counted.steps = 0

    assert matching.matches_always(Counted(agent))
    assert not any(pattern.matches_always(Counted(agent)) for pattern in others)
    assert Patterns([*others, matching]).match(Counted(agent), lambda key: ())
    assert not Patterns(others).match(Counted(agent), lambda key: ())
    assert Counted.steps == 0


def test_a_piece_that_stands_in_many_places_is_left_to_the_automaton() -> None:
    matching, other = (parse_pattern(f"*aa?b{end}*", has_variables=False) for end in "bc")
    text = "a" * CANDIDATES_MAX * 2 + "bb"
    Counted.steps = 0

    assert matching.matches_always(Counted(text))
    assert not other.matches_always(Counted(text))
    assert Counted.steps == 2 * len(text)
    assert Patterns([other, matching]).match(Counted(text), lambda key: ())
    assert not Patterns([other, other]).match(Counted(text), lambda key: ())
    assert Counted.steps == 4 * len(text)


def test_many_patterns_take_a_step_for_each_character() -> None:
    texts = [f"*?{number}" for number in range(1_000)]
    patterns = [parse_pattern(text, has_variables=False) for text in texts]
    arns = [parse_arn_pattern("Resource", f"arn:*:*:*:*:{text}", has_variables=False) for text in texts]
    Counted.steps = 0

    assert not Patterns(patterns).match(Counted("a" * 1_000), lambda key: ())
    assert Counted.steps == 1_000
    assert not one_matches(arns, ("arn", "", "", "", "", Counted("a" * 1_000)), lambda key: ())
    assert Counted.steps == 2_000
