"""Two themes, dark and light, in colours that people with any kind of colour blindness tell apart.

The palette is Okabe and Ito's (jfly.uni-koeln.de/color, 2008). Colours are never the only sign:
states have a glyph each, and in these themes every rank's line has its own dashes.
"""

from __future__ import annotations

from textual.theme import Theme

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

LINES = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILLION, BLUE)
"""For the lines of ranks; an eighth is black or white."""

DARK = Theme(name="colour-blind", primary=SKY, secondary=BLUE, accent=PURPLE, warning=YELLOW,
             error=VERMILLION, success=GREEN, foreground="#e8e8e8", background="#111418",
             surface="#191d22", panel="#22272e", dark=True)
# On a light background orange and vermillion have to be so dark that nobody can tell them apart.
LIGHT = Theme(name="colour-blind-light", primary=GREEN, secondary=SKY, accent=YELLOW,
              warning=PURPLE, error=VERMILLION, success=BLUE, foreground="#1c1f23",
              background="#fafafa", surface="#f0f0f0", panel="#e6e6e6", dark=False)
THEMES = (DARK, LIGHT)
