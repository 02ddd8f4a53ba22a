"""The HTTP server of `edge-kit serve` and its web page."""
