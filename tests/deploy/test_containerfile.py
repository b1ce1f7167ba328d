"""The image. No engine builds it here: its commands run in a directory of their own, and what they install serves."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import boto3
import pytest
from harness.process import ProcessFailed, free_port
from harness.waiting import PATIENCE_S

from .support import DEPLOY, ROOT, USER, check_command, check_settings, instructions, lint, mounted

TEXT = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
FOUND = list(instructions(TEXT))
BUILD_TIMEOUT_S = 300
UNREACHABLE = ("(from versions: none)", "error sending request", "Failed to fetch")
"""What pip and uv say of an index that does not answer. Of a version that is not there, pip lists the others."""


def of(stage: str, name: str) -> list[str]:
    return [arguments for where, instruction, arguments in FOUND if (where, instruction) == (stage, name)]


def environment_of_image() -> dict[str, str]:
    [text] = of("quaymaster", "ENV")
    return dict(word.split("=", 1) for word in shlex.split(text))


def test_hadolint_finds_nothing() -> None:
    lint("hadolint", DEPLOY / "Containerfile")


def test_the_base_images_are_pinned_by_tag() -> None:
    named = [arguments.partition("=")[2] for arguments in of("", "ARG")]
    named += [arguments.split()[0] for _, name, arguments in FOUND if name == "FROM"]
    stages = {stage for stage, _, _ in FOUND}

    for image in set(named) - stages - {"${PYTHON_IMAGE}"}:
        assert re.fullmatch(r"[a-z]+:[\w.-]+", image), image
        assert not image.endswith(":latest")


def test_images_build_with_the_uv_of_the_project() -> None:
    pinned = re.search(r"^UV_VERSION=(.+)$", (ROOT / "scripts" / "bootstrap").read_text(), re.MULTILINE)

    assert pinned is not None
    assert f"uv=={pinned[1]}" in TEXT


@pytest.mark.parametrize("stage", ["quaymaster", "edge", "etcd"])
def test_images_do_not_run_as_root(stage: str) -> None:
    assert of(stage, "USER")[-1] == f"{USER}:{USER}"


def test_the_image_serves_by_default_with_settings_that_exist() -> None:
    [entrypoint] = of("quaymaster", "ENTRYPOINT")
    [command] = of("quaymaster", "CMD")
    settings = check_settings(environment_of_image())

    assert json.loads(entrypoint) == ["quaymaster"]
    assert check_command(json.loads(command)) == "serve"
    assert settings.admin_address.is_loopback
    assert of("quaymaster", "EXPOSE") == [
        f"{settings.listen_address.port} {settings.console_listen_address.port}"
    ]
    assert json.loads(of("quaymaster", "VOLUME")[0]) == [str(settings.data_directory)]
    assert of("quaymaster", "STOPSIGNAL") == ["SIGTERM"]


def test_only_what_the_image_is_built_from_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".containerignore").read_text().splitlines()
    copied = {path for text in of("build", "COPY") for path in text.split()[:-1]}

    assert "*" in lines
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == {
        path.removeprefix("./") for path in copied
    }
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text(), (
        "Docker's name for it"
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the RUN and COPY instructions of the stage `build` make, below a temporary directory."""
    # Not below pytest's own directory, which no other user may enter: the server runs as another.
    root = tmp_path_factory.mktemp("image")
    work, image = root / "build", root / "opt"
    work.mkdir()
    image.mkdir()
    paths = {"/build": work, "/opt/quaymaster": image / "quaymaster"}
    environment = {
        name: os.environ[name] for name in os.environ if not name.startswith(("QUAYMASTER_", "PYTHON"))
    }
    python = _python()
    for stage, name, arguments in FOUND:
        if stage != "build":
            continue
        if name == "COPY":
            *sources, target = arguments.split()
            _copy([ROOT / source for source in sources], work / target)
        elif name == "RUN":
            done = subprocess.run(
                ["/bin/sh", "-ec", mounted(paths, arguments).replace("python -m venv", f"{python} -m venv")],
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
            if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
                pytest.skip(
                    "no package index can be reached: that the image installs what it needs is not tested"
                )
            assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    return image / "quaymaster"


def _python() -> Path:
    """Return a Python, without the packages of the tests; one that the image's user can run, if there is one."""
    ours, of_system = Path(sys.base_prefix) / "bin" / "python3", Path("/usr/bin/python3")
    is_new = "import sys, ensurepip; sys.exit(sys.version_info < (3, 11))"
    if not _others_can_run(ours) and of_system.exists():
        found = subprocess.run([of_system, "-c", is_new], capture_output=True, check=False)
        return of_system if found.returncode == 0 else ours
    return ours


def _others_can_run(program: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (program, *program.resolve().parents))


def _copy(sources: list[Path], target: Path) -> None:
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


class Container:
    """The image's ENTRYPOINT and CMD as a process, with its environment and, where root runs the tests, its user."""

    def __init__(self, image: Path, data: Path) -> None:
        self.port, self.admin_port = free_port(), free_port()
        paths = {"/opt/quaymaster": image, "/var/lib/quaymaster": data}
        text = {name: mounted(paths, value) for name, value in environment_of_image().items()}
        text["PATH"] = text["PATH"].replace("$PATH", os.defpath)
        self.environment = text | {
            "QUAYMASTER_LISTEN": text["QUAYMASTER_LISTEN"].replace("0.0.0.0:9324", f"127.0.0.1:{self.port}"),
            "QUAYMASTER_CONSOLE_LISTEN": f"127.0.0.1:{free_port()}",
            "QUAYMASTER_ADMIN_LISTEN": text["QUAYMASTER_ADMIN_LISTEN"].replace("9325", str(self.admin_port)),
        }
        [healthcheck] = of("quaymaster", "HEALTHCHECK")
        words = json.loads(healthcheck.partition("CMD ")[2])
        self.healthcheck = [mounted(paths, word).replace("9325", str(self.admin_port)) for word in words]
        self.data = data
        data.mkdir(mode=0o700)
        self.user: int | None = None
        if os.geteuid() == 0 and _others_can_run((image / "bin" / "python").resolve()):
            os.chown(data, USER, USER)
            self.user = USER
        self.child: subprocess.Popen[str] | None = None

    def start(self) -> None:
        [entrypoint], [command] = of("quaymaster", "ENTRYPOINT"), of("quaymaster", "CMD")
        with self.data.with_name("log").open("ab") as log:
            self.child = subprocess.Popen(
                [*json.loads(entrypoint), *json.loads(command)],
                cwd=self.data,
                env=self.environment,
                stdout=log,
                stderr=log,
                text=True,
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
            )
        deadline = time.monotonic() + PATIENCE_S
        # It is healthy while it starts, too; `env` tells what the server wrote when it served.
        while self.run(*self.healthcheck).returncode or self.run("quaymaster", "env").returncode:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise ProcessFailed(self.data.with_name("log").read_text())
            time.sleep(0.1)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as `podman exec` does."""
        return subprocess.run(
            command,
            cwd=self.data,
            env=self.environment,
            capture_output=True,
            text=True,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            timeout=PATIENCE_S,
            check=False,
        )

    def stop(self) -> int:
        assert self.child is not None, "it was never started"
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(PATIENCE_S)


@pytest.fixture
def container(installed: Path, tmp_path: Path) -> Iterator[Container]:
    for directory in (*installed.parents, *tmp_path.parents, tmp_path):
        if directory.stat().st_uid == os.geteuid() and directory.is_relative_to(gettempdir()):
            directory.chmod(directory.stat().st_mode | 0o011)
    container = Container(installed, tmp_path / "data")
    try:
        yield container
    finally:
        if container.child is not None and container.child.poll() is None:
            container.child.kill()
            container.child.wait()


@pytest.mark.slow
def test_what_the_image_installs_serves_as_its_user_and_drains_on_its_stop_signal(
    container: Container,
) -> None:
    container.start()
    known = json.loads(container.run("quaymaster", "env", "--json").stdout)
    sqs = boto3.client(
        "sqs",
        endpoint_url=known["endpoint_url"],
        region_name=known["region"],
        aws_access_key_id=known["access_key_id"],
        aws_secret_access_key=known["secret_access_key"],
    )
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="two coffees")
    [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    code = container.stop()

    assert known["endpoint_url"] == f"http://127.0.0.1:{container.port}"
    assert message["Body"] == "two coffees"
    assert code == 0
    assert container.run(*container.healthcheck).returncode != 0


@pytest.mark.slow
def test_the_image_has_no_spark_and_its_packages_fit_together(installed: Path) -> None:
    python = str(installed / "bin" / "python")
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
    names = {package["name"].lower() for package in json.loads(listed.stdout)}

    assert "quaymaster" in names
    assert not names & {"pyspark", "pandas", "pyarrow", "deltalake", "uv", "pytest", "hatchling"}
    assert subprocess.run([python, "-m", "pip", "check"], capture_output=True, check=False).returncode == 0
