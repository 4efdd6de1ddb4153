"""The palette of all pictures, and what can be read on it."""

from __future__ import annotations

#: Eighteen colours, each as far as possible from those before it, for full colour vision and for the two kinds of red-green
#: blindness (distances in OKLab; Machado et al. 2009 for the simulation). All stand out on white and on near-black.
PALETTE = (
    *("#4b78c3", "#f0e169", "#f0a5ff", "#c37800", "#2dc396", "#a54b78", "#96f0e1", "#78692d", "#b4b42d"),
    *("#a596d2", "#5a9696", "#d26978", "#ffd2b4", "#ff96b4", "#78c3d2", "#00965a", "#b4d287", "#d29669"),
)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on ``#rrggbb`` (relative luminance of WCAG 2)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"
