"""The speeds as bars: prefill and decode, one row of axes per thread count."""

from __future__ import annotations

from edge_kit.profile_chart import require_matplotlib

_OWN = "#d1495b"
_PEERS = (
    "#1f4e79",
    "#2e75b6",
    "#6fa8dc",
    "#9fc5e8",
    "#38761d",
    "#6aa84f",
    "#b6d7a8",
    "#7f6000",
    "#bf9000",
    "#ffd966",
)
_PANELS = (
    ("prefill_tps", "prefill, tokens/s", ("32", "128", "512"), "prompt tokens"),
    ("decode_tps", "decode, tokens/s", ("32", "1024"), "tokens in the context"),
)


def draw(report: dict, path) -> None:
    """Writes the PNG; whiskers span the rounds' minimum and maximum."""
    figures, patches = require_matplotlib()
    rows = [row for row in report["rows"] if "prefill_tps" in row]
    counts = sorted({row["threads"] for row in rows})
    names = list(dict.fromkeys(f"{row['engine']} {row['quant']}" for row in rows))
    peers = [name for name in names if not name.startswith("edge-kit")]
    colors = {name: _PEERS[peers.index(name) % len(_PEERS)] if name in peers else _OWN for name in names}
    size = (11, 3.4 * max(len(counts), 1) + 0.8)
    figure = figures.Figure(figsize=size)
    grid = figure.subplots(max(len(counts), 1), 2, squeeze=False)
    for axes_row, threads in zip(grid, counts):
        for axes, (kind, title, lengths, label) in zip(axes_row, _PANELS):
            present = [row for row in rows if row["threads"] == threads]
            _bars(axes, present, kind, lengths, colors)
            axes.set_title(f"{title}, {threads} thread{'s' if threads > 1 else ''}", fontsize=10)
            axes.set_xlabel(label, fontsize=9)
    handles = [patches.Patch(color=colors[name]) for name in names]
    figure.legend(handles, names, loc="upper center", ncol=min(len(names), 5) or 1, fontsize=9, frameon=False)
    figure.text(0.01, 0.005, f"{report['model']}, {report['machine']['cpu']}", fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.02, 1, 0.99 - 0.03 * -(-len(names) // 5)))
    figure.savefig(path, format="png", dpi=130)


def _bars(axes, rows: list, kind: str, lengths: tuple, colors: dict) -> None:
    width = 0.8 / max(len(rows), 1)
    for i, row in enumerate(rows):
        for x, length in enumerate(lengths):
            figure = row[kind].get(length)
            if figure is None:
                continue
            place = x + (i - (len(rows) - 1) / 2) * width
            whiskers = [[figure["median"] - figure["min"]], [figure["max"] - figure["median"]]]
            color = colors[f"{row['engine']} {row['quant']}"]
            axes.bar(place, figure["median"], width, color=color, yerr=whiskers, ecolor="#444444", capsize=2)
            text = f"{figure['median']:.{0 if figure['median'] >= 20 else 1}f}"
            axes.annotate(
                text, (place, figure["max"]), (0, 2), textcoords="offset points", ha="center", fontsize=6.5
            )
    axes.set_xticks(range(len(lengths)), lengths)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.12)
