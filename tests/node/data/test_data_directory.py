"""The data directory: whose it is, and of which format."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from harness.process import SOCKETS
from harness.waiting import INTERVAL_S, PATIENCE_S

from quaymaster.cli.host.server import force_start
from quaymaster.core.values.formats import FORMAT_MAX
from quaymaster.node.data.client_file import CLIENT_FILE
from quaymaster.node.data.data_directory import DataDirectoryUnusable, prepare_data_directory, raise_format_of
from quaymaster.node.data.stores import JOURNALS_DIRECTORY, open_store
from quaymaster.node.node import run_on
from quaymaster.node.roles import ROLES, SERVER
from quaymaster.settings import Settings, load_settings


@pytest.mark.parametrize(
    "left", [b"\xb1\n", b"", b"abc\n", b"0\n", b"-1\n", b"\x00" * 512, b"1\xff", b"1" * 5_000]
)
def test_a_directory_of_unknown_format_is_refused_and_left_as_it_is(tmp_path: Path, left: bytes) -> None:
    prepare_data_directory(tmp_path).release()
    (tmp_path / "format").write_bytes(left)

    with pytest.raises(DataDirectoryUnusable, match=f"is damaged: .*write {FORMAT_MAX} into it"):
        prepare_data_directory(tmp_path)
    with pytest.raises(DataDirectoryUnusable, match="is damaged"):
        raise_format_of(tmp_path, FORMAT_MAX)

    assert (tmp_path / "format").read_bytes() == left


def test_a_damaged_format_file_that_was_written_by_hand_is_good(tmp_path: Path) -> None:
    prepare_data_directory(tmp_path).release()
    (tmp_path / "format").write_text(str(FORMAT_MAX))

    prepare_data_directory(tmp_path).release()

    assert (tmp_path / "format").read_text() == str(FORMAT_MAX)


def test_directory_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    prepare_data_directory(tmp_path).release()
    (tmp_path / "format").write_bytes(b"%d\n" % (FORMAT_MAX + 1))

    with pytest.raises(DataDirectoryUnusable, match="Start the version that wrote it"):
        prepare_data_directory(tmp_path)

    assert (tmp_path / "format").read_bytes() == b"%d\n" % (FORMAT_MAX + 1)


def test_the_format_of_a_directory_grows_with_what_is_written_in_it(tmp_path: Path) -> None:
    prepare_data_directory(tmp_path, 1).release()
    found = [(tmp_path / "format").read_text()]

    for number in (3, 4, 1):
        raise_format_of(tmp_path, number)
        found.append((tmp_path / "format").read_text())
    prepare_data_directory(tmp_path, 1).release()

    assert found == ["1\n", "1\n", "4\n", "4\n"]
    assert (tmp_path / "format").read_text() == "4\n"


def test_a_single_server_upgrades_the_directory_of_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "format").write_bytes(b"1\n")
    (tmp_path / "metadata.sqlite").touch()

    prepare_data_directory(tmp_path).release()

    assert (tmp_path / "format").read_text() == f"{FORMAT_MAX}\n"


COPIES_TRIED_MAX = 100
"""What another thread does meanwhile disturbs a copy or two; more are something else."""


class Snapshots:
    """Copies a directory before each file operation of this process in it: what a kill at that moment leaves."""

    def __init__(self, data: Path, target: Path) -> None:
        self.data = data
        self.target = target
        self.taken: list[Path] = []
        self._numbers = itertools.count()
        self._inside = threading.local()
        self._lock = threading.Lock()
        self.is_on = True
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.is_on or event not in ("open", "os.mkdir", "os.rename", "sqlite3.connect"):
            return
        path = arguments[1] if event == "os.rename" else arguments[0]
        if not isinstance(path, str | bytes | os.PathLike) or getattr(self._inside, "copying", False):
            return
        if os.fsdecode(path).removeprefix("file://").startswith(str(self.data)):
            self._inside.copying = True
            try:
                with self._lock:
                    self._copy()
            finally:
                self._inside.copying = False

    def _copy(self) -> None:
        """Copy the directory as it is; again, when a file was renamed by another thread meanwhile."""
        for attempt in range(COPIES_TRIED_MAX):
            if not self.data.exists():
                return
            copy = self.target / f"{next(self._numbers):03}"
            try:
                self._copy_to(copy)
            except (shutil.Error, FileNotFoundError):
                if attempt == COPIES_TRIED_MAX - 1:
                    raise
            else:
                self.taken.append(copy)
                return

    def _copy_to(self, copy: Path) -> None:
        """Copy what is below journals/ first: the marks, which no kill leaves ahead of the store they are of."""
        journals = self.data / JOURNALS_DIRECTORY
        has_journals = journals.exists()
        if has_journals:
            shutil.copytree(journals, copy / journals.name, ignore=SOCKETS, ignore_dangling_symlinks=True)

        def passed_over(directory: str, names: list[str]) -> set[str]:
            is_top = Path(directory) == self.data
            if is_top and not has_journals and journals.name in names:
                raise FileNotFoundError(f"{journals} was made meanwhile")
            return {*SOCKETS(directory, names), *([journals.name] if is_top else [])}

        shutil.copytree(
            self.data, copy, ignore=passed_over, ignore_dangling_symlinks=True, dirs_exist_ok=True
        )


def settings_for(data: Path) -> Settings:
    return load_settings(
        None, flags={"data_directory": data, "listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    )


async def start_until_ready(settings: Settings) -> None:
    async with AsyncExitStack() as stack:
        running = asyncio.create_task(run_on(stack, settings, ROLES[SERVER]))
        async with asyncio.timeout(PATIENCE_S):
            while not (settings.data_directory / CLIENT_FILE).exists():
                assert not running.done(), running
                await asyncio.sleep(INTERVAL_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def start_once(settings: Settings) -> None:
    asyncio.run(start_until_ready(settings))


def open_again(data: Path) -> None:
    async def open_and_close() -> None:
        await (await open_store(settings_for(data), data)).close()

    prepare_data_directory(data, has_store=True).release()
    asyncio.run(open_and_close())


def test_a_copy_that_a_rename_disturbed_is_made_again_and_only_the_whole_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "format").write_bytes(b"1\n")
    (data / "queue.time.tmp").touch()
    copy_file = shutil.copy2

    def renamed_before(source: str, target: str) -> object:
        if source.endswith(".tmp"):
            (data / "queue.time.tmp").rename(data / "queue.time")
        return copy_file(source, target)

    monkeypatch.setattr(shutil.copytree, "__defaults__", (False, None, renamed_before, False, False))
    snapshots = Snapshots(data, tmp_path / "killed")

    (data / "format").read_bytes()
    (data / "format").read_bytes()
    snapshots.is_on = False

    names = [{path.name for path in copy.iterdir()} for copy in snapshots.taken]
    assert names == [{"format", "queue.time"}] * 2


@pytest.mark.parametrize("has_keys", [False, True], ids=["new", "keys of an operator"])
def test_a_first_start_killed_at_any_step_starts_again(tmp_path: Path, has_keys: bool) -> None:
    data = tmp_path / "data"
    if has_keys:
        start_once(settings_for(tmp_path / "other"))
        data.mkdir()
        shutil.copytree(tmp_path / "other" / "keys", data / "keys")
    snapshots = Snapshots(data, tmp_path / "killed")

    start_once(settings_for(data))
    snapshots.is_on = False

    names = [{path.name for path in copy.iterdir()} for copy in snapshots.taken]
    assert any("format" in found and "metadata.sqlite" not in found for found in names)
    assert any("journals" in found and "format" not in found for found in names)
    assert any("metadata.sqlite" in found and CLIENT_FILE not in found for found in names)
    for copy in snapshots.taken:
        open_again(copy)


def files_in(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "lost", [(), ("format",), ("client.json",), ("client.json", "usage"), ("usage", "format")]
)
def test_a_served_directory_without_metadata_and_journals_is_refused_unchanged_until_it_is_forced(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    data = tmp_path / "data"
    start_once(settings_for(data))
    for path in [*data.glob("metadata.sqlite*"), *(data / name for name in ("journals", *lost))]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    left = files_in(data)

    for _ in range(2):
        with pytest.raises(
            DataDirectoryUnusable,
            match=r"served before.* metadata\.sqlite .* journals/ is missing.*force-start",
        ):
            prepare_data_directory(data, has_store=True)
        assert files_in(data) == left

    force_start(data, yes=True)
    open_again(data)


def test_a_start_refused_for_missing_metadata_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    data = tmp_path / "data"
    start_once(settings_for(data))
    for path in (*data.glob("metadata.sqlite*"), data / "format"):
        path.unlink()
    left = files_in(data)

    with pytest.raises(
        DataDirectoryUnusable, match=r"journals/0 .*metadata\.sqlite is missing:.*force-start"
    ):
        prepare_data_directory(data, has_store=True)

    assert files_in(data) == left


def test_keys_and_files_of_others_make_no_directory_look_served(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "pipeline.json").write_text("{}")
    (tmp_path / "journals" / "lost+found").mkdir(parents=True)
    (tmp_path / "quaymaster.toml").touch()

    prepare_data_directory(tmp_path, has_store=True).release()

    assert (tmp_path / "format").exists()


def test_a_process_without_a_store_of_its_own_starts_in_what_is_left_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "format").write_bytes(b"1\n")
    (tmp_path / "client.json").touch()

    prepare_data_directory(tmp_path, 1).release()
