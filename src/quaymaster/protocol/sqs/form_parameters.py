"""Parameters of a form body or of a URL's query."""

from __future__ import annotations

import binascii
import re

from quaymaster.core.values.errors import MalformedInput

# A full batch with ten attributes on each message has under 600 parameters.
PARAMETERS_MAX = 4_096
NAME_CHARS_SHOWN = 80

_NOT_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def parse_parameters(encoded: bytes) -> dict[str, str]:
    """Return the parameters of a form body or of a URL's query, decoded.

    Raises MalformedInput when there are too many, one is there twice, or they are not UTF-8.
    """
    if encoded.count(b"&") >= PARAMETERS_MAX:
        raise MalformedInput(f"A request cannot have more than {PARAMETERS_MAX} parameters.")
    parameters: dict[str, str] = {}
    try:
        for pair in encoded.split(b"&"):
            name, _, value = pair.partition(b"=")
            if not name:
                continue
            decoded = percent_decode(name).decode()
            if decoded in parameters:
                # A proxy that checks a request on its way may take the other one for what it asks.
                raise MalformedInput(f"The parameter {decoded[:NAME_CHARS_SHOWN]} was sent more than once.")
            parameters[decoded] = percent_decode(value).decode()
    except UnicodeDecodeError as error:
        raise MalformedInput("The request parameters are not valid UTF-8.") from error
    return parameters


def percent_decode(encoded: bytes) -> bytes:
    """Return `encoded` with `+` and `%XX` decoded; a `%` that starts no escape stays as it is."""
    if b"+" in encoded:
        encoded = encoded.replace(b"+", b" ")
    if b"%" not in encoded:
        return encoded
    if _NOT_ESCAPE.search(encoded) is not None:
        encoded = _NOT_ESCAPE.sub(b"%25", encoded)
    # Quoted-printable is the same encoding with `=` for `%`, and is decoded in C: a megabyte of escapes takes
    # milliseconds. Every `=` is followed by two digits here, so its line-break rules never apply.
    return binascii.a2b_qp(encoded.replace(b"=", b"=3D").replace(b"%", b"="))
