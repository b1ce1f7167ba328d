"""Programs written in Go that judge the manifests: the machine's, else built from their modules, once.

Without Go, or where modules cannot be had, the test is skipped with the reason.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from compat.foreign import cached, fetch_or_skip, program_or_skip

MODULES = {
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5@v5.5.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7",
}


def go_program_or_skip(name: str) -> str:
    """Return the path of a program of `MODULES`."""
    if found := shutil.which(name):
        return found
    go = program_or_skip("go")

    def make(directory: Path) -> None:
        # The Go that is there: another one is not fetched for this.
        environment = {"GOBIN": str(directory), "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
        fetch_or_skip([go, "install", MODULES[name]], directory, environment)

    return str(cached(name, [MODULES[name]], make) / name)
