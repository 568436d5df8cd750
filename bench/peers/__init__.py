"""gpu-panel measured beside other programs that people would use: docs/performance.md.

`make bench-peers` installs the others into an environment of its own and measures everything;
`python -m bench.peers measure GROUP …` measures some of it again, `python -m bench.peers write`
writes the page and its plots from results.json.
"""
