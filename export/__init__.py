"""The host side: from a checkpoint to a `.nb` file."""

from __future__ import annotations

import warnings

# Paddle says so at import; it concerns those who compile operators for it.
warnings.filterwarnings("ignore", message="No ccache found", category=UserWarning)
