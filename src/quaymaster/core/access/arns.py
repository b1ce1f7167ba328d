"""ARNs and patterns of them, compared segment by segment: a wildcard does not reach over a colon.

    arn:partition:service:region:account:resource        the resource may have colons of its own

Source: IAM User Guide, "IAM JSON policy elements: Resource" and "Condition operators", ARN operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from quaymaster.core.access.errors import PolicyValueIsWrong
from quaymaster.core.access.patterns import (
    FindValues,
    Part,
    Pattern,
    Patterns,
    Wildcard,
    parse_parts,
    pattern_of,
)

SEGMENTS: Final = 6
PARTITIONS: Final = frozenset({"aws", "aws-cn", "aws-us-gov"})


class ArnPattern(NamedTuple):
    """A pattern for each segment of an ARN."""

    segments: tuple[Pattern, ...]

    @property
    def has_variables(self) -> bool:
        """Whether what it matches depends on the request."""
        return any(segment.has_variables for segment in self.segments)

    def matches(self, segments: tuple[str, ...], find: FindValues) -> bool:
        """Tell whether an ARN matches, which is given by its segments."""
        return len(segments) == SEGMENTS and all(
            pattern.matches(segment, find) for pattern, segment in zip(self.segments, segments, strict=True)
        )


def one_matches(patterns: Sequence[ArnPattern], segments: tuple[str, ...], find: FindValues) -> bool:
    """Tell whether one of several patterns matches an ARN, which is given by its segments."""
    if len(patterns) == 1:
        return patterns[0].matches(segments, find)
    if len(segments) != SEGMENTS:
        return False
    *head, resource = segments
    # The head is short; who asks may choose a long name, which is gone through once for all patterns.
    left = [
        pattern.segments[-1]
        for pattern in patterns
        if all(one.matches(segment, find) for one, segment in zip(pattern.segments, head, strict=False))
    ]
    return left[0].matches(resource, find) if len(left) == 1 else Patterns(left).match(resource, find)


_ANY_SEGMENT: Final = pattern_of([Wildcard.ANY])


def split_arn(arn: str) -> tuple[str, ...]:
    """Return the segments of an ARN; of another text fewer than six."""
    return tuple(arn.split(":", SEGMENTS - 1))


def parse_arn_pattern(
    element: str, text: str, *, has_variables: bool, is_completed: bool = False
) -> ArnPattern:
    """Return the pattern of ARNs that a text is; PolicyValueIsWrong.

    `is_completed`: missing segments are `*`, as in `arn:aws:sqs` and in `*` alone.
    """
    if is_completed and text == "*":
        return ArnPattern((_ANY_SEGMENT,) * SEGMENTS)
    segments: list[list[Part]] = [[]]
    for part in parse_parts(text, has_wildcards=True, has_variables=has_variables):
        if part == ":" and len(segments) < SEGMENTS:
            segments.append([])
        else:
            segments[-1].append(part)
    patterns = [pattern_of(segment) for segment in segments]
    if patterns[0].literal != "arn":
        raise PolicyValueIsWrong(element, text, "it must be an ARN")
    if len(patterns) < SEGMENTS and not is_completed:
        raise PolicyValueIsWrong(element, text, f"an ARN has {SEGMENTS} segments")
    return ArnPattern((*patterns, *(_ANY_SEGMENT,) * (SEGMENTS - len(patterns))))
