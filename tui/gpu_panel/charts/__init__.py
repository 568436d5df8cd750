"""Charts: series in bounded memory, axes, braille dots, and the widget that draws them."""
