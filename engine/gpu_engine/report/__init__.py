"""A run, or several beside each other, as one page: HTML or Markdown, with curves as SVG."""
