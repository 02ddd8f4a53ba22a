"""The web page: which files it has, and the headers that they must be served with.

`/` is index.html; everything else lies at `/web/...`. The page asks for nothing but these files, `/health`
and `/v1/...` of the server that it came from, and the files themselves need no key.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent

# What a model writes ends up in this page: should it ever get past the sanitizer, it can neither run nor load
# anything. KaTeX places what it draws through the CSSOM, which needs no 'unsafe-inline'.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

# Not `mimetypes`, which reads what the machine is set up with.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def files() -> dict:
    """URL path -> (file, content type) of all that the page consists of."""
    found = {"/": (FOLDER / "index.html", _TYPES[".html"])}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _TYPES and path.name != "index.html":
            found[f"/web/{path.relative_to(FOLDER).as_posix()}"] = (path, _TYPES[path.suffix])
    return found
