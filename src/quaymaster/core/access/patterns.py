"""Texts in policies that may hold wildcards and variables, and whether they match.

    *            any characters                ${aws:username}   a variable: its value, taken literally
    ?            one character                 ${*} ${?} ${$}    these characters themselves

Texts between `*` are looked for from left to right. A pattern with `?` becomes an automaton whose states are bits of
one number: a match takes a step for each character of the text, whatever the wildcards. Nothing backtracks.

    state i: the first i characters of the pattern are matched.   a*b?   1 ─a─▶ 2 ─b─▶ 4 ─any─▶ 8
                                                                               ⟲ any

The automata of several patterns stand side by side in one: a match of any of them takes no more steps.

Source: IAM User Guide, "IAM policy elements: Variables and tags"; R. Baeza-Yates, G. Gonnet, A new approach to text
searching (1992).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from quaymaster.core.access.errors import PolicyValueIsWrong

FindValues = Callable[[str], tuple[str, ...]]
"""Returns the values that a request has for a condition key in lower case; none where it has no such key."""


class Wildcard(Enum):
    """A character of a pattern that stands for others."""

    ANY = "*"
    ONE = "?"


class PolicyVariable(NamedTuple):
    """Stands for the value of a condition key, in lower case."""

    key: str


Part = str | Wildcard | PolicyVariable
"""A text is one character."""

VARIABLES: Final = frozenset({"aws:username", "aws:userid", "aws:principalaccount"})
_ESCAPED: Final = frozenset("*?$")


class Automaton(NamedTuple):
    """What patterns take: bit i of each number is about state i. They begin in `starts`; in `ends` all is matched."""

    takes: dict[Part, int]
    takes_any: int
    loops: int
    starts: int
    ends: int

    def accepts(self, text: str) -> bool:
        """Tell whether a text matches."""
        takes, takes_any, loops, states, ends = self
        for character in text:
            states = (states & (takes.get(character, 0) | takes_any)) << 1 | states & loops
            if not states:
                return False
        return bool(states & ends)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Matches texts. `parts` are compared in lower case where it `folds_case`.

    Without variables it is ready to match: `between` are the texts between its `*`, or there is an automaton.
    """

    parts: tuple[Part, ...]
    folds_case: bool
    has_variables: bool
    between: tuple[str, ...]
    automaton: Automaton | None

    @property
    def literal(self) -> str | None:
        """The one text that matches; None where that depends, or several do."""
        return self.between[0] if len(self.between) == 1 else None

    @property
    def text(self) -> str:
        """What a pattern without variables looks like in a policy, in lower case where it `folds_case`."""
        return "".join(part.value if isinstance(part, Wildcard) else str(part) for part in self.parts)

    def matches(self, text: str, find: FindValues) -> bool:
        """Tell whether a text matches. A pattern with a variable that the request has no value for matches nothing."""
        if not self.has_variables:
            return self.matches_always(text)
        automaton = self.filled(find)
        return automaton is not None and automaton.accepts(text.lower() if self.folds_case else text)

    def matches_always(self, text: str) -> bool:
        """Tell whether a text matches a pattern without variables."""
        if self.folds_case:
            text = text.lower()
        if self.automaton is not None:
            return self.automaton.accepts(text)
        return _has_all(self.between, text)

    def filled(self, find: FindValues) -> Automaton | None:
        """Return the automaton of a pattern with variables; None where the request has no value for one."""
        filled: list[Part] = []
        for part in self.parts:
            if isinstance(part, PolicyVariable):
                values = find(part.key)
                if not values:
                    return None
                filled += values[0].lower() if self.folds_case else values[0]
            else:
                filled.append(part)
        return automaton_of(filled)


class Patterns:
    """Several patterns, of which one has to match. They fold case alike."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._ready = [pattern for pattern in patterns if pattern.between]
        self._with_variables = [pattern for pattern in patterns if pattern.has_variables]
        self._folds_case = any(pattern.folds_case for pattern in patterns)
        automata = [pattern.automaton for pattern in patterns if pattern.automaton is not None]
        self._automaton = side_by_side(automata) if automata else None

    def match(self, text: str, find: FindValues) -> bool:
        """Tell whether one of them matches a text."""
        if any(pattern.matches_always(text) for pattern in self._ready):
            return True
        if self._folds_case:
            text = text.lower()
        if self._automaton is not None and self._automaton.accepts(text):
            return True
        filled = [pattern.filled(find) for pattern in self._with_variables]
        automata = [automaton for automaton in filled if automaton is not None]
        return bool(automata) and side_by_side(automata).accepts(text)


def automaton_of(parts: Iterable[Part]) -> Automaton:
    """Return the automaton of characters and wildcards."""
    takes_any = loops = count = 0
    takes: dict[Part, int] = {}
    for part in parts:
        if part is Wildcard.ANY:
            loops |= 1 << count
            continue
        if part is Wildcard.ONE:
            takes_any |= 1 << count
        else:
            takes[part] = takes.get(part, 0) | 1 << count
        count += 1
    return Automaton(takes, takes_any, loops, 1, 1 << count)


def side_by_side(automata: Iterable[Automaton]) -> Automaton:
    """Return an automaton that accepts what one of several accepts."""
    takes: dict[Part, int] = {}
    takes_any = loops = starts = ends = count = 0
    for one in automata:
        for part, states in one.takes.items():
            takes[part] = takes.get(part, 0) | states << count
        takes_any |= one.takes_any << count
        loops |= one.loops << count
        starts |= one.starts << count
        ends |= one.ends << count
        count += one.ends.bit_length()
    return Automaton(takes, takes_any, loops, starts, ends)


def parse_pattern(
    text: str, *, has_wildcards: bool = True, has_variables: bool, folds_case: bool = False
) -> Pattern:
    """Return the pattern that a text is; PolicyValueIsWrong."""
    parts = parse_parts(text, has_wildcards=has_wildcards, has_variables=has_variables)
    return pattern_of(parts, folds_case=folds_case)


def pattern_of(parts: Iterable[Part], *, folds_case: bool = False) -> Pattern:
    """Return the pattern of some parts."""
    own: list[Part] = []
    for part in parts:
        if folds_case and isinstance(part, str):
            own += part.lower()  # one character can become two
        else:
            own.append(part)
    has_variables = any(isinstance(part, PolicyVariable) for part in own)
    between: tuple[str, ...] = ()
    if not has_variables and Wildcard.ONE not in own:
        texts = [""]
        for part in own:
            if isinstance(part, str):
                texts[-1] += part
            else:
                texts.append("")
        between = tuple(texts)
    automaton = None if has_variables or between else automaton_of(own)
    return Pattern(tuple(own), folds_case, has_variables, between, automaton)


def _has_all(between: tuple[str, ...], text: str) -> bool:
    """Tell whether a text is made of these texts, with anything in between."""
    first, last = between[0], between[-1]
    if len(between) == 1:
        return text == first
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for middle in between[1:-1]:
        at = text.find(middle, at, end)
        if at < 0:
            return False
        at += len(middle)
    return True


def parse_parts(text: str, *, has_wildcards: bool, has_variables: bool) -> tuple[Part, ...]:
    """Return the parts of a text; PolicyValueIsWrong."""
    parts: list[Part] = []
    at = 0
    while at < len(text):
        if has_variables and text.startswith("${", at):
            end = text.find("}", at)
            if end < 0:
                raise PolicyValueIsWrong("A text with a variable", text, "the variable has no end")
            parts.append(_variable(text[at + 2 : end]))
            at = end + 1
            continue
        character = text[at]
        parts.append(Wildcard(character) if has_wildcards and character in "*?" else character)
        at += 1
    return tuple(parts)


def _variable(name: str) -> Part:
    if name in _ESCAPED:
        return name
    key = name.lower()
    if key not in VARIABLES:
        raise PolicyValueIsWrong(
            "A variable", name, f"there are {', '.join(sorted(VARIABLES))} and ${{*}}, ${{?}}, ${{$}}"
        )
    return PolicyVariable(key)
