"""`python -m edge_kit` is `edge-kit`."""

from __future__ import annotations

import sys

from edge_kit.cli import main

sys.exit(main())
