"""Texts in policies that may hold wildcards and variables, and whether they match.

    *            any characters                ${aws:username}   a variable: its value, taken literally
    ?            one character                 ${*} ${?} ${$}    these characters themselves

Texts between `*` are looked for from left to right. Where `?` leaves characters of one open, its longest piece is
looked for, and the others have to stand at their distance from it. A text in which that piece stands too often, and a
pattern of many pieces, take an automaton whose states are bits of one number: a match takes a step for each character
of the text, whatever the wildcards. Nothing backtracks.

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

PIECES_MAX: Final = 16
"""A pattern of more pieces, between which one character is open, is left to its automaton."""
CANDIDATES_MAX: Final = 8
"""So many places where a piece stands are looked at; then the automaton decides."""
STRETCHED_MAX: Final = 4
"""Of more patterns with `?` that stand side by side, one automaton decides at once."""
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


class Stretch(NamedTuple):
    """What stands between two `*` of a pattern: so many characters, of which pieces are given, by where they begin."""

    length: int
    pieces: tuple[tuple[int, str], ...]
    """The longest first."""

    def stands(self, text: str, at: int) -> bool:
        """Tell whether it stands there in a text."""
        return all(text.startswith(piece, at + place) for place, piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Matches texts. `parts` are compared in lower case where it `folds_case`.

    Without variables it is ready to match: `between` are the texts between its `*`, or there is an automaton, and where
    it has few pieces, `stretches` that mostly decide without.
    """

    parts: tuple[Part, ...]
    folds_case: bool
    has_variables: bool
    between: tuple[str, ...]
    automaton: Automaton | None
    stretches: tuple[Stretch, ...]

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
        if self.automaton is None:
            return _has_all(self.between, text)
        decided = _has_stretches(self.stretches, text) if self.stretches else None
        return self.automaton.accepts(text) if decided is None else decided

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
        open_ones = [pattern for pattern in patterns if pattern.automaton is not None]
        self._automaton = side_by_side(filter(None, (pattern.automaton for pattern in open_ones)))
        self._stretched = [pattern.stretches for pattern in open_ones]
        if len(open_ones) > STRETCHED_MAX or not all(self._stretched):
            self._stretched = []
        self._has_open = bool(open_ones)

    def match(self, text: str, find: FindValues) -> bool:
        """Tell whether one of them matches a text."""
        if any(pattern.matches_always(text) for pattern in self._ready):
            return True
        if self._folds_case:
            text = text.lower()
        if self._has_open and self._one_open_matches(text):
            return True
        filled = [pattern.filled(find) for pattern in self._with_variables]
        automata = [automaton for automaton in filled if automaton is not None]
        return bool(automata) and side_by_side(automata).accepts(text)

    def _one_open_matches(self, text: str) -> bool:
        """Tell whether one of those with `?` matches."""
        if self._stretched:
            decided = [_has_stretches(stretches, text) for stretches in self._stretched]
            if True in decided:
                return True
            if None not in decided:
                return False
        return self._automaton.accepts(text)


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
    stretches = () if automaton is None else _stretches_of(own)
    return Pattern(tuple(own), folds_case, has_variables, between, automaton, stretches)


def _stretches_of(parts: Iterable[Part]) -> tuple[Stretch, ...]:
    """Return what stands between the `*` of a pattern; nothing where it has too many pieces."""
    stretches: list[list[Part]] = [[]]
    for part in parts:
        if part is Wildcard.ANY:
            stretches.append([])
        else:
            stretches[-1].append(part)
    found = []
    for stretch in stretches:
        pieces: dict[int, str] = {}
        begin = 0
        for at, part in enumerate(stretch):
            if part is Wildcard.ONE:
                begin = at + 1
            else:
                pieces[begin] = pieces.get(begin, "") + str(part)
        by_length = sorted(pieces.items(), key=lambda placed: -len(placed[1]))
        found.append(Stretch(len(stretch), tuple(by_length)))
    return tuple(found) if sum(len(stretch.pieces) for stretch in found) <= PIECES_MAX else ()


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


def _has_stretches(stretches: tuple[Stretch, ...], text: str) -> bool | None:
    """Tell whether a text is made of these stretches, with anything in between; None where that takes too long."""
    first, last = stretches[0], stretches[-1]
    at, end = first.length, len(text) - last.length
    if len(stretches) == 1:
        return end == 0 and first.stands(text, 0)
    if at > end or not first.stands(text, 0) or not last.stands(text, end):
        return False
    candidates = CANDIDATES_MAX
    for middle in stretches[1:-1]:
        if middle.pieces:
            place, piece = middle.pieces[0]
            until = end - middle.length + place + len(piece)
            found = text.find(piece, at + place, max(until, 0))
            while found >= 0 and not middle.stands(text, found - place):
                candidates -= 1
                if not candidates:
                    return None
                found = text.find(piece, found + 1, until)
            if found < 0:
                return False
            at = found - place
        at += middle.length
        if at > end:
            return False
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
