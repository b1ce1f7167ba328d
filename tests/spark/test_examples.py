"""The scripts of `examples/`, run as their users run them, against the real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint

from .conftest import WAIT_S

EXAMPLES = Path(__file__).parents[2] / "examples"
# Spark's settings that tests need; a user's script has none.
SPARK = (
    "--master local[2] --driver-memory 1g --conf spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
    " --conf spark.driver.bindAddress=127.0.0.1 --conf spark.driver.host=127.0.0.1 --conf spark.ui.enabled=false"
    " --conf spark.sql.shuffle.partitions=2 pyspark-shell"
)


def run_example(name: str, server: QuaymasterProcess, directory: Path, *arguments: str) -> list[str]:
    known = server.env()
    environment = {
        "AWS_ENDPOINT_URL_SQS": known.endpoint_url,
        "AWS_REGION": known.region,
        "AWS_DEFAULT_REGION": known.region,
        "AWS_ACCESS_KEY_ID": known.access_key_id,
        "AWS_SECRET_ACCESS_KEY": known.secret_access_key,
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env=os.environ | environment | {"PYSPARK_SUBMIT_ARGS": SPARK},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_events_are_in_the_table_and_alerts_in_the_queue_once_though_batches_are_repeated(
    tmp_path: Path,
) -> None:
    server = QuaymasterProcess(tmp_path / "data", settings={"authentication": "signed"})
    server.start()
    try:
        said = run_example("spark_events.py", server, tmp_path, "--events", "300")
        # As after a crash that came before Spark noted the ends of these batches.
        ends = [*(tmp_path / "spark-events" / "checkpoints").glob("*/commits/*0")]
        assert len(ends) == 2
        for end in ends:
            end.unlink()
            end.with_name(f".{end.name}.crc").unlink(missing_ok=True)
        repeated = run_example("spark_events.py", server, tmp_path, "--events", "300")

        known = server.env()
        sqs = Endpoint(
            known.endpoint_url, known.region, known.account_id, known.access_key_id, known.secret_access_key
        )
        alerts = sqs.client().get_queue_attributes(
            QueueUrl=sqs.queue_url("spark-alerts"), AttributeNames=["ApproximateNumberOfMessages"]
        )["Attributes"]
    finally:
        server.stop()

    for lines in (said, repeated):
        assert lines[:3] == ["failure: 100", "order: 100", "view: 100"]
        assert lines[-1] == "rows of the table: 300"
    offsets = DeltaTable(tmp_path / "spark-events" / "events").to_pyarrow_table().column("offset")
    assert sorted(offsets.to_pylist()) == list(range(1, 301))
    assert alerts == {"ApproximateNumberOfMessages": "100"}
