"""The colours of all pictures: a palette, colours that follow the reader's light or dark scheme, and text colours for a
background. *The page* is the HTML report; a *file* is an SVG, PNG or PDF file."""

from __future__ import annotations

#: Eighteen colours. Each is as far as possible from those before it, both for full colour vision and for two kinds of red-green
#: blindness (distances in OKLab; simulation of Machado et al. 2009). All stand out on white and on near-black.
PALETTE = (
    *("#4b78c3", "#f0e169", "#f0a5ff", "#c37800", "#2dc396", "#a54b78", "#96f0e1", "#78692d", "#b4b42d"),
    *("#a596d2", "#5a9696", "#d26978", "#ffd2b4", "#ff96b4", "#78c3d2", "#00965a", "#b4d287", "#d29669"),
)

#: Colours of tiers from slow to fast: dark red, amber, blue, and more for chips with more tiers. They can be told apart with
#: colour-blind eyes, and in grey.
TIER_COLOURS = ("#8c2d3c", "#e8b13a", "#4b90c8", "#2d5a3c", "#b48cd2", "#5a5a5a")

#: Colours by purpose: on a light background, as in files, and on a dark one. The HTML page follows the reader's scheme.
THEME = {
    "paper": ("#ffffff", "#14171b"),
    "panel": ("#f6f7f9", "#1c2026"),
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#57606a", "#a3acb8"),
    "line": ("#d4d9df", "#3a414a"),
    "grid": ("#e6e9ed", "#2a3038"),
    "accent": ("#2f6db5", "#6ea8ea"),
    "warm": ("#c2640a", "#f0a04b"),
    "stall": ("#c0143c", "#ff6b81"),
    "good": ("#1a7f4b", "#5fcf95"),
    "usage": ("#9aa7b5", "#5f6c7b"),
    "note": ("#fff6df", "#33290f"),
    "note-line": ("#d9a514", "#b98d1a"),
}


def tier_colour(tier: int) -> str:
    """The colour of a tier, by its number, in all pictures. Colours repeat if there are more tiers than colours."""
    return TIER_COLOURS[tier % len(TIER_COLOURS)]


def on_paper(colour: str) -> str:
    """A colour as it is written to a file: a name of :data:`THEME` becomes its light colour."""
    return THEME[colour][0] if colour in THEME else colour


def on_page(colour: str) -> str:
    """A colour as it is written to the page: a name of :data:`THEME` becomes a variable of the style sheet."""
    return f"var(--{colour})" if colour in THEME else colour


def theme_css() -> str:
    """The rules that define :data:`THEME` in a style sheet."""
    light, dark = ("".join(f" --{name}: {colours[at]};" for name, colours in THEME.items()) for at in (0, 1))
    return f":root {{ color-scheme: light dark;{light} }}\n@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n"


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on ``#rrggbb`` (relative luminance of WCAG 2). Raises ValueError for any
    other colour."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"
