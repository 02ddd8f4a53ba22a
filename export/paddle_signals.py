"""Takes SIGTERM back from Paddle, whose handler ends the process before files are cleared away."""

from __future__ import annotations

import signal
import threading

import paddle


def restore() -> None:
    """SIGTERM goes to Python's handler again, as before Paddle was imported."""
    paddle.disable_signal_handler()
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
