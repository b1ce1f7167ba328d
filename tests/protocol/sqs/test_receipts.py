"""Receipt handles: read as minted, refused when anything about them is wrong."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.commands.messages import Receipt
from quaymaster.core.values.errors import ReceiptHandleIsInvalid
from quaymaster.protocol.sqs.receipts import HANDLE_CHARACTERS, ReceiptHandles

KEY_1 = b"1" * 32
KEY_2 = b"2" * 32
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
handles = ReceiptHandles({1: KEY_1}, 1)
HANDLE = handles.mint(7, 0, 1000, 3, 2)


@given(u64, u32, u64, u64, u32, u32)
def test_handle_is_parsed_as_it_was_minted(
    queue_id: int, partition: int, sequence: int, epoch: int, delivery_count: int, group: int
) -> None:
    handle = handles.mint(queue_id, partition, sequence, epoch, delivery_count, group)

    parsed = handles.parse(handle, queue_id)

    assert parsed == (partition, group, Receipt(sequence, epoch, delivery_count))
    assert len(handle) == HANDLE_CHARACTERS
    assert set(handle) <= set(string.ascii_letters + string.digits + "-_")


def test_handle_of_another_queue_is_refused() -> None:
    with pytest.raises(ReceiptHandleIsInvalid):
        handles.parse(HANDLE, 8)


def test_queue_of_a_handle_is_told_only_when_it_is_genuine() -> None:
    assert handles.queue_of(HANDLE) == 7
    with pytest.raises(ReceiptHandleIsInvalid):
        handles.queue_of("B" + HANDLE[1:])


def test_handle_with_any_character_changed_is_refused() -> None:
    for at in range(HANDLE_CHARACTERS):
        other = "A" if HANDLE[at] != "A" else "B"
        with pytest.raises(ReceiptHandleIsInvalid):
            handles.parse(HANDLE[:at] + other + HANDLE[at + 1 :], 7)


def test_truncated_or_extended_handle_is_refused() -> None:
    for handle in (
        *(HANDLE[:length] for length in range(HANDLE_CHARACTERS)),
        HANDLE + "A",
        HANDLE + "=",
        HANDLE + "\n",
    ):
        with pytest.raises(ReceiptHandleIsInvalid):
            handles.parse(handle, 7)


@given(
    st.text(max_size=100)
    | st.text(min_size=76, max_size=76)
    | st.text("ABCab012-_+/=", min_size=76, max_size=76)
)
def test_made_up_text_is_refused_with_the_handle_quoted(text: str) -> None:
    with pytest.raises(ReceiptHandleIsInvalid) as refused:
        handles.parse(text, 7)

    assert refused.value.message == f'The input receipt handle "{text}" is not a valid receipt handle.'


def test_handle_has_one_spelling() -> None:
    odd = next(
        handle
        for handle in (handles.mint(7, 0, number, 1, 1) for number in range(1000))
        if "-" in handle or "_" in handle
    )

    with pytest.raises(ReceiptHandleIsInvalid):
        handles.parse(odd.replace("-", "+").replace("_", "/"), 7)


def test_handle_signed_with_an_older_key_is_good_until_that_key_is_dropped() -> None:
    rotating = ReceiptHandles({1: KEY_1}, 1)
    old = rotating.mint(7, 0, 1, 1, 1)

    rotating.set_keys({1: KEY_1, 2: KEY_2}, 2)
    new = rotating.mint(7, 0, 1, 1, 1)

    assert rotating.parse(old, 7) == rotating.parse(new, 7)
    assert old != new
    rotating.set_keys({2: KEY_2}, 2)
    with pytest.raises(ReceiptHandleIsInvalid):
        rotating.parse(old, 7)


def test_handle_made_with_another_installations_key_is_refused() -> None:
    stranger = ReceiptHandles({1: KEY_2}, 1)

    with pytest.raises(ReceiptHandleIsInvalid):
        handles.parse(stranger.mint(7, 0, 1000, 3, 2), 7)


def test_keys_are_not_shown() -> None:
    assert "1111" not in repr(handles)
