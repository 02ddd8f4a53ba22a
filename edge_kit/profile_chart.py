"""A profile as a picture: one bar per kind of step, coloured by what bounds it."""

from __future__ import annotations

from lite_runtime.errors import UnsupportedError

_COLOURS = {"bandwidth": "#2a6f97", "arithmetic": "#e07a1f", "other": "#9a9a9a"}
_LEGEND = {
    "bandwidth": "bound by read bandwidth",
    "arithmetic": "bound by arithmetic",
    "other": "neither: overhead, other work, waiting",
}
_LEAST_SHARE = 0.002  # of the phase; smaller parts are summed up


def require_matplotlib():
    """The modules to draw with; UnsupportedError where they are missing."""
    try:
        from matplotlib import figure, patches
    except ImportError:
        raise UnsupportedError(
            "--png needs matplotlib, which is missing: pip install 'edge-kit[profile]', or leave --png out"
        ) from None
    return figure, patches


def draw(phases: dict, title: str, path: str) -> None:
    """Writes a PNG. `phases`: name -> edge_kit.profile.Phase."""
    figure, patches = require_matplotlib()
    rows = {name: _rows(phase) for name, phase in phases.items()}
    heights = [len(row) + 1 for row in rows.values()]
    chart = figure.Figure(figsize=(10, 1.6 + 0.3 * sum(heights)), layout="constrained")
    chart.suptitle(title, fontsize=11)
    axes = chart.subplots(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, (name, phase) in zip(axes, phases.items()):
        _draw_phase(axis, name, phase, rows[name])
    handles = [patches.Patch(color=_COLOURS[bound], label=text) for bound, text in _LEGEND.items()]
    chart.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    chart.savefig(path, format="png", dpi=130)


def _rows(phase) -> list:
    """(label, milliseconds, bound, remark) per bar, longest first."""
    rows, rest = [], 0.0
    for part in phase.parts:
        if part.seconds < _LEAST_SHARE * phase.seconds:
            rest += part.seconds
            continue
        remarks = [f"{part.seconds / phase.seconds:.1%}", part.nearest_ceiling]
        rows.append((part.label, part.seconds * 1e3, part.bound, ", ".join(filter(None, remarks))))
    if rest > 0:
        rows.append(("all others", rest * 1e3, "other", f"{rest / phase.seconds:.1%}"))
    return rows


def _draw_phase(axis, name: str, phase, rows: list) -> None:
    labels, milliseconds, bounds, remarks = zip(*rows)
    bars = axis.barh(range(len(rows)), milliseconds, color=[_COLOURS[bound] for bound in bounds])
    axis.bar_label(bars, labels=remarks, padding=4, fontsize=8)
    axis.set_yticks(range(len(rows)), labels, fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(0, max(milliseconds) * 1.35)
    axis.set_xlabel("ms", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    ceilings = f"{phase.bandwidth / 1e9:.1f} GB/s, {2 * phase.peak / 1e9:.0f} int8 GOP/s"
    title = f"{name}: {phase.tokens} tokens in {phase.seconds * 1e3:.0f} ms; ceilings {ceilings}"
    axis.set_title(title, fontsize=10, loc="left")
