"""Messages stay secret, whole, and readable wherever they move."""

from __future__ import annotations

import os

import pytest

from quaymaster.core.values.errors import KmsDisabled
from quaymaster.core.values.messages import (
    HEAD_BYTES,
    MessageContent,
    UnknownMessageFormat,
    decode_message,
    encode_content,
    encode_moved,
    key_parts_of,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition, replace_definition
from quaymaster.messaging import encryption
from quaymaster.messaging.encryption import MessageCipher, MessageDamaged, MessageOpener, OpenedMessages
from quaymaster.messaging.lent_keys import KeyIsLent, LentKey

KEYS = {9: b"k" * 32, 10: b"l" * 32}
ID_A = bytes(range(16))
ID_B = bytes(range(16, 32))
ID_C = bytes(range(32, 48))
CONTENT = MessageContent("the body", b"m" * 16, [("n", "String", "v")], b"a" * 16, "sender")
OTHER = MessageContent("another body", b"n" * 16, [], None, "sender")


def queue(queue_id: int = 7, data_key_id: int = 9) -> QueueDefinition:
    return QueueDefinition(
        queue_id, "000000000000", "orders", "active", 1, 0, 0, {}, {}, data_key_id, one_partition()
    )


def cipher(start_id: bytes | None = None) -> MessageCipher:
    return MessageCipher(KEYS.__getitem__, start_id=start_id)


def test_message_is_opened_as_it_was_encrypted() -> None:
    front_end = cipher()

    encrypted = front_end.encrypt_content(CONTENT, queue(), ID_A)

    assert front_end.open(encrypted) == CONTENT
    assert front_end.open(memoryview(encrypted)) == CONTENT
    assert b"the body" not in encrypted
    assert decode_message(encrypted).message_id == ID_A


def test_message_is_opened_by_another_front_end_and_after_a_restart() -> None:
    encrypted = cipher(b"start--1").encrypt_content(CONTENT, queue(), ID_A)

    assert cipher(b"start--2").open(encrypted) == CONTENT


def test_dead_letter_stays_readable() -> None:
    encrypted = cipher().encrypt_content(CONTENT, queue(), ID_A)

    dead = encode_moved(7, 0, 55, None, "arn:aws:sqs:r:0:orders", encrypted)

    assert cipher().open(dead) == CONTENT


def test_message_redriven_under_a_new_id_stays_readable() -> None:
    encrypted = cipher().encrypt_content(CONTENT, queue(), ID_A)
    dead = encode_moved(7, 0, 55, None, "arn:aws:sqs:r:0:orders", encrypted)

    redriven = encode_moved(8, 0, 1, ID_B, None, dead)

    assert cipher().open(redriven) == CONTENT
    assert decode_message(redriven).message_id == ID_B


def test_no_two_messages_share_key_and_nonce() -> None:
    one, two = cipher(), cipher()

    nonces = {
        (stored.data_key_id, stored.start_id, stored.nonce_counter)
        for front_end in (one, two)
        for definition in (queue(7, 9), queue(8, 10))
        for _ in range(20)
        for stored in [decode_message(front_end.encrypt_content(CONTENT, definition, os.urandom(16)))]
    }

    assert len(nonces) == 80


def test_front_end_starts_do_not_share_a_key() -> None:
    one = cipher(b"start--1").encrypt_content(CONTENT, queue(), ID_A)
    two = cipher(b"start--2").encrypt_content(CONTENT, queue(), ID_A)

    assert decode_message(one).nonce_counter == decode_message(two).nonce_counter
    assert one[HEAD_BYTES:] != two[HEAD_BYTES:]


def test_message_changed_anywhere_but_in_its_current_id_does_not_open() -> None:
    front_end = cipher()
    encrypted = front_end.encrypt_content(CONTENT, queue(), ID_A)

    for at in range(len(encrypted)):
        changed = bytearray(encrypted)
        changed[at] ^= 1
        with pytest.raises((MessageDamaged, UnknownMessageFormat)):
            front_end.open(bytes(changed))


def test_message_put_under_another_messages_id_does_not_open() -> None:
    front_end = cipher()
    encrypted = front_end.encrypt_content(CONTENT, queue(), ID_A)

    with pytest.raises(MessageDamaged):
        front_end.open(encrypted[:2] + ID_B + encrypted[18:])


def test_message_whose_data_key_is_gone_is_told_by_the_keys_name() -> None:
    encrypted = cipher().encrypt_content(CONTENT, queue(data_key_id=10), ID_A)
    without = MessageCipher({9: KEYS[9]}.__getitem__)

    with pytest.raises(MessageDamaged, match="data key 10"):
        without.open(encrypted)


def test_cipher_with_a_tiny_key_cache_still_opens_everything() -> None:
    small = MessageCipher(KEYS.__getitem__, cached_keys_max=1)
    encrypted = [small.encrypt_content(CONTENT, queue(1, key), ID_A) for key in (9, 10, 9, 10)]

    assert all(small.open(message) == CONTENT for message in encrypted)


def test_keys_are_in_no_repr_and_no_error() -> None:
    front_end = cipher(b"start--1")
    encrypted = bytearray(front_end.encrypt_content(CONTENT, queue(), ID_A))
    encrypted[-1] ^= 1

    with pytest.raises(MessageDamaged) as refused:
        front_end.open(bytes(encrypted))

    for text in (repr(front_end), str(refused.value)):
        assert "kkkk" not in text
        assert "the body" not in text


def test_a_run_of_messages_opens_as_each_of_them_does() -> None:
    first, second = cipher(), cipher()
    plain = [first.encrypt_content(CONTENT, queue(), ID_A), first.encrypt_content(CONTENT, queue(), ID_B)]
    other = [
        second.encrypt_content(CONTENT, queue(8, 10), ID_A),
        first.encrypt_content(CONTENT, queue(), ID_A),
    ]
    moved = encode_moved(7, 0, 4, ID_B, "arn:dead", plain[0])

    opened = OpenedMessages([ID_C], ["arn:before"], [OTHER])
    cipher().open_run([*plain, *other], opened)
    cipher().open_run([*plain, moved], opened)

    assert opened == OpenedMessages(
        [ID_C, ID_A, ID_B, ID_A, ID_A, ID_A, ID_B, ID_B],
        ["arn:before", *[None] * 6, "arn:dead"],
        [OTHER, *[CONTENT] * 7],
    )


def test_a_run_of_no_messages_opens_as_none() -> None:
    opened = OpenedMessages([], [], [])

    cipher().open_run([], opened)

    assert opened == OpenedMessages([], [], [])


@pytest.mark.parametrize("at", [0, 1, 3, 20, 30, 35, 45, HEAD_BYTES, -1])
def test_a_changed_message_ends_a_run_behind_those_before_it(at: int) -> None:
    front_end = cipher()
    whole = front_end.encrypt_content(CONTENT, queue(), ID_A)
    changed = bytearray(front_end.encrypt_content(CONTENT, queue(), ID_B))
    changed[at] ^= 1
    opened = OpenedMessages([], [], [])

    with pytest.raises((MessageDamaged, UnknownMessageFormat)):
        front_end.open_run([whole, bytes(changed), whole], opened)

    assert opened == OpenedMessages([ID_A], [None], [CONTENT])


def test_a_run_ends_at_bytes_that_are_no_message() -> None:
    whole = cipher().encrypt_content(CONTENT, queue(), ID_A)

    for wrong in (b"", whole[:10], whole[: HEAD_BYTES + 3]):
        opened = OpenedMessages([], [], [])
        with pytest.raises((MessageDamaged, UnknownMessageFormat)):
            cipher().open_run([whole, wrong], opened)
        assert opened.message_ids == [ID_A]


def test_a_run_ends_at_a_content_of_a_newer_program() -> None:
    front_end = cipher()
    encrypted = [front_end.encrypt_content(CONTENT, queue(), ID_A)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encryption, "encode_content", lambda content: b"\x02" + encode_content(content)[1:])
        encrypted.append(front_end.encrypt_content(CONTENT, queue(), ID_B))
    opened = OpenedMessages([], [], [])

    with pytest.raises(UnknownMessageFormat, match="version 2"):
        front_end.open_run(encrypted, opened)

    assert opened.message_ids == [ID_A]


def test_a_run_ends_at_a_message_whose_data_key_is_gone() -> None:
    encrypted = [cipher().encrypt_content(CONTENT, queue(data_key_id=key), ID_A) for key in (9, 10)]
    opened = OpenedMessages([], [], [])

    with pytest.raises(MessageDamaged, match="data key 10"):
        MessageCipher({9: KEYS[9]}.__getitem__).open_run(encrypted, opened)

    assert opened.message_ids == [ID_A]


def test_key_of_deduplication_ids_is_the_queues_alone_and_the_same_in_each_process() -> None:
    def id_key(queue_id: int, data_key_id: int) -> bytes:
        keyed = replace_definition(queue(queue_id, data_key_id), has_keyed_ids=True)
        return cipher(os.urandom(8)).id_key(keyed)

    assert len(id_key(7, 9)) == 32
    assert id_key(7, 9) == id_key(7, 9)
    assert len({id_key(7, 9), id_key(8, 9), id_key(7, 10), KEYS[9], KEYS[10]}) == 5


def test_queue_of_an_older_cell_format_has_no_key_for_its_ids() -> None:
    assert cipher().id_key(queue()) == b""


def opener_of(cipher: MessageCipher, *messages: bytes) -> MessageOpener:
    """Return an opener with the keys of some messages."""
    return MessageOpener((part, cipher.message_key(part)) for part in key_parts_of(messages) or [])


def test_opener_with_message_keys_opens_what_the_cipher_does() -> None:
    first, second = cipher(), cipher()
    messages = [
        first.encrypt_content(CONTENT, queue(), ID_A),
        second.encrypt_content(OTHER, queue(8, 10), ID_B),
        second.encrypt_content(CONTENT, queue(), ID_C),
    ]

    opened = opener_of(cipher(), *messages).open_plain(messages)

    assert opened is not None
    assert list(opened[0]) == [ID_A, ID_B, ID_C]
    assert opened[1] == [CONTENT, OTHER, CONTENT]


def test_message_key_opens_no_messages_of_another_start_queue_or_data_key() -> None:
    front_end = cipher(b"start--1")
    own = front_end.encrypt_content(CONTENT, queue(), ID_A)
    others = [
        cipher(b"start--2").encrypt_content(CONTENT, queue(), ID_A),
        front_end.encrypt_content(CONTENT, queue(7, 10), ID_A),
        front_end.encrypt_content(CONTENT, queue(8, 9), ID_A),
    ]
    opener = opener_of(front_end, own)
    (part,) = key_parts_of([own]) or []

    assert front_end.message_key(part) not in KEYS.values()
    assert opener.open_plain([own]) is not None
    for other in others:
        assert opener.open_plain([own, other]) is None


def test_opener_leaves_moved_and_damaged_messages_to_the_cipher() -> None:
    front_end = cipher()
    whole = front_end.encrypt_content(CONTENT, queue(), ID_A)
    moved = encode_moved(7, 0, 4, ID_B, "arn:dead", whole)

    for at in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[at] ^= 1
        assert opener_of(front_end, whole).open_plain([whole, bytes(changed)]) is None
    for wrong in (moved, whole[:-1], whole[:20], b""):
        assert opener_of(front_end, whole).open_plain([whole, wrong]) is None


def test_message_key_of_a_data_key_that_is_gone_is_none() -> None:
    (part,) = key_parts_of([cipher().encrypt_content(CONTENT, queue(data_key_id=10), ID_A)]) or []

    with pytest.raises(KeyError):
        MessageCipher({9: KEYS[9]}.__getitem__).message_key(part)


# Lent keys


class Lender:
    """Lends data key 9, under id 90, until it is taken back."""

    def __init__(self) -> None:
        self.loan = LentKey(b"k" * 32, 0.0)
        self.is_refused = False
        self.checked: list[QueueDefinition] = []

    def encrypting_key_id(self, definition: QueueDefinition) -> int:
        self.lent(90)
        return 90

    def check_receive(self, definition: QueueDefinition) -> None:
        self.checked.append(definition)

    def lent(self, data_key_id: int) -> LentKey:
        if self.is_refused:
            raise KmsDisabled("It is disabled.")
        if data_key_id != 90:
            raise KeyError(data_key_id)
        return self.loan


def lending(lender: Lender, start_id: bytes | None = None) -> MessageCipher:
    def data_key(data_key_id: int) -> bytes:
        if data_key_id >= 90:
            raise KeyIsLent
        return KEYS[data_key_id]

    return MessageCipher(data_key, start_id=start_id, lender=lender)


def kms_queue() -> QueueDefinition:
    return replace_definition(queue(), attributes={"KmsMasterKeyId": "alias/orders"})


def test_queue_with_a_key_is_encrypted_with_what_is_lent_and_others_are_not() -> None:
    lender = Lender()
    front_end = lending(lender)

    message = front_end.encrypt_content(CONTENT, kms_queue(), ID_A)
    plain = front_end.encrypt_content(CONTENT, queue(), ID_B)

    assert (decode_message(message).data_key_id, decode_message(plain).data_key_id) == (90, 9)
    assert front_end.open(message) == front_end.open(plain) == CONTENT
    with pytest.raises(MessageDamaged, match="data key 90"):
        MessageCipher(KEYS.__getitem__).open(message)
    lender.is_refused = True
    assert front_end.open(front_end.encrypt_content(CONTENT, queue(), ID_C)) == CONTENT


def test_lent_key_opens_nothing_once_it_is_refused() -> None:
    lender = Lender()
    front_end = lending(lender)
    message = front_end.encrypt_content(CONTENT, kms_queue(), ID_A)
    (part,) = key_parts_of([message]) or []
    assert MessageOpener([(part, front_end.message_key(part))]).open_plain([message]) is not None
    opened = OpenedMessages([], [], [])
    front_end.open_run([message] * 3, opened)
    assert opened.contents == [CONTENT] * 3

    lender.is_refused = True

    for use in (
        lambda: front_end.encrypt_content(CONTENT, kms_queue(), ID_B),
        lambda: front_end.open(message),
        lambda: front_end.message_key(part),
        lambda: front_end.open_run([message], opened),
    ):
        with pytest.raises(KmsDisabled):
            use()


def test_what_is_derived_of_a_lent_key_goes_with_it_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "LENT_DERIVED_MAX", 2)
    lender = Lender()
    messages = [
        lending(lender, bytes([start]) * 8).encrypt_content(CONTENT, kms_queue(), ID_A) for start in range(5)
    ]
    front_end = lending(lender)

    assert [front_end.open(message) for message in messages] == [CONTENT] * 5

    assert len(lender.loan.derived) <= 2
    assert front_end._key.cache_info().currsize == 0


def test_receives_are_checked_for_queues_with_a_key_only() -> None:
    lender = Lender()

    lending(lender).check_receive(queue())
    lending(lender).check_receive(kms_queue())
    cipher().check_receive(kms_queue())

    assert lender.checked == [kms_queue()]


def test_queue_with_a_key_is_encrypted_as_others_where_nobody_lends() -> None:
    assert decode_message(cipher().encrypt_content(CONTENT, kms_queue(), ID_A)).data_key_id == 9
