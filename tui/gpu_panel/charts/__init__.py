"""Curves: series in bounded memory, axes, dots, the widget that draws them."""
