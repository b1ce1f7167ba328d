"""Runs the model of partitions: see the package."""

from __future__ import annotations

import sys

from .world import MODEL

sys.exit(MODEL.main())
