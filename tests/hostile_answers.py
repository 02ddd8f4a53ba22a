"""Answers that would run a script, load something or cover the page, were they not drawn safely."""
from __future__ import annotations

HOSTILE = [
    "<img src=x onerror=\"window.ran = 'img'\">",
    "<script>window.ran = 'script'</script>",
    "<svg><animate onbegin=\"window.ran = 'svg'\" attributeName=x></svg>",
    "<iframe srcdoc=\"<script>parent.ran = 'frame'</script>\"></iframe>",
    "<details open ontoggle=\"window.ran = 'toggle'\">x</details>",
    "<form action=/v1/models><button>send</button></form>",
    "<style>body { display: none }</style><p style='position: fixed'>over</p>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=ran=1&gt;'>",
    "<a href=\"javascript:window.ran = 'a'\" id=question name=ask>click</a>",
    "![x](https://example.com/pixel.png) ![y](/v1/models)",
    "[click](javascript:window.ran='link') [click](<JaVaScRiPt:window.ran=1>) [click](data:text/html,x)",
    "[click](&#106;avascript:window.ran=1) <javascript:window.ran=1>",
    "[x](https://example.com/\"onmouseover=\"window.ran='quote')",
    "```\"onmouseover=\"window.ran=1\n</code><img src=x onerror=window.ran='fence'>\n```",
    r"$\href{javascript:window.ran='tex'}{x}$ $\htmlStyle{color:red}{x}$ $\includegraphics{https://example.com/x}$",
    r"$$\def\a{\a\a}\a$$ $\text{<img src=x onerror=window.ran='text'>}$",
]
