"""`scripts/repeat`: runs of a suite that is played."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from harness.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]

STAGES_STAND_IN = """#!/bin/sh
echo run >>"$COUNT"
runs=$(wc -l <"$COUNT")
while [ "$runs" -eq 3 ] && [ ! -s "$STRESSED" ]; do sleep 0.1; done
[ "$runs" -eq 2 ] || exit 0
echo 'FAILED tests/test_luck.py::test_that_depends_on_luck - AssertionError'
exit 1
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_repeated_runs_tell_which_failed_in_what_and_whether_others_worked_meanwhile(tmp_path: Path) -> None:
    project, count, stressed = tmp_path / "project", tmp_path / "count", tmp_path / "stressed"
    program(tmp_path / "bin" / "stress", "#!/bin/sh\necho $$ >>$STRESSED\nexec sleep 600\n")
    project.mkdir()
    program(project / "scripts" / "bootstrap", "#!/bin/sh\n")
    program(project / "scripts" / "test", STAGES_STAND_IN)
    shutil.copy(ROOT / "scripts" / "repeat", project / "scripts" / "repeat")
    own = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "all")):
        subprocess.run(["git", *own, *words], cwd=project, check=True, capture_output=True)

    done = subprocess.run(
        ["scripts/repeat"],
        cwd=project,
        env=os.environ
        | {
            "RUNS": "3",
            "STRESS": "1",
            "WHERE": str(tmp_path / "where"),
            "COUNT": str(count),
            "STRESSED": str(stressed),
        }
        | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    assert "FAILED tests/test_luck.py::test_that_depends_on_luck" in done.stdout
    outcomes = [line.split() for line in done.stdout.splitlines() if line[:3].strip().isdigit()]
    assert [words[:2] for words in outcomes] == [["1", "passed"], ["2", "failed"], ["3", "passed"]]
    assert [words[-1] for words in outcomes] == ["s", "s", "stress"]
    assert "1 of 3 runs failed" in done.stdout
    assert {path.name for path in (tmp_path / "where").iterdir()} >= {"1.log", "2.log", "3.log", "2"}
    assert not (tmp_path / "where" / "3").exists()
    (pid,) = stressed.read_text().split()
    assert not Path(f"/proc/{pid}").exists() or " sleep 600" not in Path(f"/proc/{pid}/cmdline").read_text()
