"""Operators' alerts through Debian's Prometheus and Alertmanager, and from a console through Alertmanager."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.process import free_port
from harness.waiting import eventually
from harness.webhooks import WebhookReceiver

from process.test_alerts import serving
from quaymaster.core.alerts.prometheus_rules import render_alertmanager, render_rules

ROOT = Path(__file__).resolve().parents[2]
FETCH_S = 300


def program(name: str) -> str:
    """Return the path of one of Prometheus's programs, or skip."""
    found = subprocess.run(
        [ROOT / "scripts" / "prometheus", name], capture_output=True, text=True, check=False, timeout=FETCH_S
    )
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return found.stdout.strip()


def with_own_share(path: str) -> list[str]:
    """Return how an unpacked program is run that looks for its files in /usr/share: in a mount namespace of its own."""
    share = Path(path).parent / "usr" / "share"
    if not share.is_dir():
        return [path]  # it is installed
    bind = 'mount --bind "$0" /usr/share && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", bind, str(share), path]


@contextmanager
def running(log: Path, *command: str) -> Iterator[None]:
    """Run a program until the block ends."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
        finally:
            child.terminate()
            child.wait()


def told(receiver: WebhookReceiver, path: str) -> list[dict[str, Any]]:
    """Return the alerts that Alertmanager told at a path."""
    posts = [json.loads(post.body) for post in receiver.posts if post.path == path]
    return [alert for post in posts for alert in post["alerts"]]


def is_told(receiver: WebhookReceiver, path: str, name: str, **labels: str) -> bool:
    """Tell whether Alertmanager told of an alert that has these labels and a runbook."""
    return any(
        alert["status"] == "firing"
        and alert["labels"]["alertname"] == name
        and labels.items() <= alert["labels"].items()
        and alert["annotations"]["runbook_url"] == f"docs/runbooks/{name.removeprefix('Quaymaster')}.md"
        for alert in told(receiver, path)
    )


@pytest.mark.slow
def test_operators_are_told_by_prometheus_and_by_the_console_through_alertmanager(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    prometheus, alertmanager = program("prometheus"), program("prometheus-alertmanager")
    tried = subprocess.run([*with_own_share(alertmanager), "--version"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"Alertmanager does not run here: {tried.stderr.decode().strip()}")
    alerts_port, metrics_port = free_port(), free_port()
    configuration = tmp_path / "alertmanager.yaml"
    configuration.write_text(render_alertmanager().replace("http://127.0.0.1:9099", receiver.url))
    (tmp_path / "rules.yaml").write_text(render_rules())
    with ExitStack() as stack:
        started = stack.enter_context(ExitStack())
        process = started.enter_context(
            serving(tmp_path / "data", alertmanager_url=f"http://127.0.0.1:{alerts_port}")
        )
        scraping = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(tmp_path / "rules.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts_port}"]}]}]},
            "scrape_configs": [
                {
                    "job_name": "quaymaster",
                    "static_configs": [{"targets": [process.admin_url.removeprefix("http://")]}],
                }
            ],
        }
        (tmp_path / "prometheus.yaml").write_text(json.dumps(scraping))
        stack.enter_context(
            running(
                tmp_path / "alertmanager.log",
                *with_own_share(alertmanager),
                f"--config.file={configuration}",
                f"--storage.path={tmp_path / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{alerts_port}",
                "--cluster.listen-address=",
            )
        )
        stack.enter_context(
            running(
                tmp_path / "prometheus.log",
                prometheus,
                f"--config.file={tmp_path / 'prometheus.yaml'}",
                f"--storage.tsdb.path={tmp_path / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{metrics_port}",
            )
        )

        eventually(lambda: is_told(receiver, "/watchdog", "QuaymasterWatchdog"))
        eventually(
            lambda: is_told(receiver, "/watchdog", "QuaymasterWatchdog", cell="default"), "by the console"
        )
        assert not told(receiver, "/pages")
        started.close()  # the server

        eventually(lambda: is_told(receiver, "/pages", "QuaymasterDown", severity="page"))
