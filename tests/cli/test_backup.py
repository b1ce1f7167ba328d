"""A backup of a running server, restored and served: the same queues, messages and keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from harness.command_line import Run
from harness.process import QuaymasterProcess

from quaymaster.broker.copies.backup import restore

pytestmark = pytest.mark.slow


def test_a_restored_backup_has_the_queues_messages_and_keys_of_its_time(run: Run, tmp_path: Path) -> None:
    first = QuaymasterProcess(tmp_path / "first")
    first.start()
    try:
        run("queue", "create", "orders", "VisibilityTimeout=77", "--data", first.data)
        run("message", "send", "orders", "--lines", "--data", first.data, stdin="one\ntwo\nthree\n")
        run("message", "receive", "orders", "--delete", "--data", first.data)
        made = run("backup", "copy", "--data", first.data)
        run("message", "send", "orders", "too late", "--data", first.data)
        key = first.env().access_key_id
    finally:
        first.stop()

    restored = run("restore", "copy", "--data", tmp_path / "second", "--keys", first.data / "keys")
    second = QuaymasterProcess(tmp_path / "second")
    second.start()
    try:
        shown = run("queue", "show", "orders", "--data", second.data, "--json").json
        received = run("message", "receive", "orders", "-n", "10", "--body-only", "--data", second.data)
        same_key = second.env().access_key_id
    finally:
        second.stop()

    assert (made.code, restored.code) == (0, 0)
    assert shown["attributes"]["VisibilityTimeout"] == "77"
    assert sorted(received.out.splitlines()) == ["three", "two"]
    assert same_key == key


def test_a_restore_tells_how_far_it_is(run: Run, tmp_path: Path) -> None:
    server = QuaymasterProcess(tmp_path / "data")
    server.start()
    try:
        run("backup", "copy", "--data", server.data)
    finally:
        server.stop()
    told: list[tuple[int, int]] = []

    manifest = restore(tmp_path / "copy", tmp_path / "new", lambda done, total: told.append((done, total)))

    size = sum(file.bytes for file in manifest.files)
    assert told == sorted(told)
    assert len(told) == len(manifest.files)
    assert told[-1] == (size, size)


def test_a_damaged_backup_is_refused_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    server = QuaymasterProcess(tmp_path / "data")
    server.start()
    try:
        run("backup", "copy", "--data", server.data)
    finally:
        server.stop()
    manifest = json.loads((tmp_path / "copy" / "backup.json").read_text())
    largest = max(manifest["files"], key=lambda entry: entry["bytes"])
    with (tmp_path / "copy" / largest["path"]).open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")

    result = run("restore", "copy", "--data", tmp_path / "new", "--keys", server.data / "keys")

    assert result.code == 1
    assert "is not what was backed up" in result.err
    assert not (tmp_path / "new").exists()


def test_a_backup_never_writes_over_anything(run: Run, tmp_path: Path) -> None:
    server = QuaymasterProcess(tmp_path / "data")
    (tmp_path / "copy").mkdir()
    server.start()
    try:
        result = run("backup", "copy", "--data", server.data)
    finally:
        server.stop()

    assert result.code == 1
    assert "exists already" in result.err


def test_a_backup_made_before_a_rotation_is_restored_with_the_master_key_of_its_time(
    run: Run, tmp_path: Path
) -> None:
    server = QuaymasterProcess(tmp_path / "data")
    server.start()
    try:
        run("backup", "copy", "--data", server.data)
        shutil.copytree(server.data / "keys", tmp_path / "old-keys")
        rotated = run("master-key", "rotate", "--data", server.data, "--json")
    finally:
        server.stop()

    refused = run("restore", "copy", "--data", tmp_path / "new", "--keys", server.data / "keys")
    restored = run("restore", "copy", "--data", tmp_path / "new", "--keys", tmp_path / "old-keys")

    old_key_id = rotated.json["previous_master_key_id"]
    assert (tmp_path / "old-keys" / f"{old_key_id}.key").exists()
    assert refused.code == 1
    assert f"{old_key_id}.key is not in {server.data / 'keys'}. " in refused.err
    assert "Put the file back" not in refused.err
    assert restored.code == 0


def test_a_backup_cannot_be_restored_without_the_master_key(run: Run, tmp_path: Path) -> None:
    server = QuaymasterProcess(tmp_path / "data")
    server.start()
    try:
        run("backup", "copy", "--data", server.data)
    finally:
        server.stop()
    (tmp_path / "no-keys").mkdir(mode=0o700)

    unnamed = run("restore", "copy", "--data", tmp_path / "new")
    empty = run("restore", "copy", "--data", tmp_path / "new", "--keys", tmp_path / "no-keys")

    assert (unnamed.code, empty.code) == (1, 1)
    assert "--keys" in unnamed.err
    assert not (tmp_path / "new").exists()
