"""The sums that clients compute themselves and compare."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.sqs.checksums import attributes_md5, md5_digest
from quaymaster.protocol.sqs.shapes import MessageAttributeValue


def test_the_body_is_summed_as_it_is() -> None:
    assert md5_digest(b"msg").hex() == "6e2baaf3b97dbeef01c0043275f9a0e7"


def test_sums_are_those_the_service_gave_for_the_same_attributes() -> None:
    # Pairs that the real service returned, as published in the test data of other projects.
    three = {
        "Help.Me": MessageAttributeValue("String", "Me"),
        "Hello": MessageAttributeValue("String", "There"),
        "General": MessageAttributeValue("String", "Kenobi"),
    }
    binary = {
        "attr1": MessageAttributeValue(
            "Binary", None, b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"
        )
    }

    assert attributes_md5(three).hex() == "4c360f3fdafd970e05fae2f149d997f5"
    assert attributes_md5({"Hello": three["Hello"]}).hex() == "a311262e065454b75da111d535b8dacd"
    assert (
        attributes_md5({"Foo": MessageAttributeValue("String", "Bar")}).hex()
        == "ae7155c6026991b6d54b11589678bf9c"
    )
    assert attributes_md5(binary).hex() == "8cbe4db156db8a94db8b801b7addb984"


_text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
_values = st.builds(MessageAttributeValue, _text, _text) | st.builds(
    MessageAttributeValue, _text, st.none(), st.binary(min_size=1, max_size=8)
)


@given(st.dictionaries(_text, _values, min_size=1, max_size=5))
def test_the_order_of_attributes_does_not_matter(attributes: dict[str, MessageAttributeValue]) -> None:
    backwards = dict(reversed(attributes.items()))

    assert attributes_md5(attributes) == attributes_md5(backwards)


@given(st.dictionaries(_text, _values, min_size=1, max_size=5))
def test_the_sum_is_that_of_the_published_layout(attributes: dict[str, MessageAttributeValue]) -> None:
    expected = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        data = value.BinaryValue if value.StringValue is None else value.StringValue.encode()
        assert data is not None
        for part in (name.encode(), value.DataType.encode()):
            expected.update(len(part).to_bytes(4, "big") + part)
        expected.update(b"\x02" if value.StringValue is None else b"\x01")
        expected.update(len(data).to_bytes(4, "big") + data)

    assert attributes_md5(attributes).hex() == expected.hexdigest()
