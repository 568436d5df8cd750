"""Runs that differ in the values of a grid, submitted together: sweeps.

`values` reads `KEY=v1,v2`, `grid` makes the members (both pure), `submit` checks all of them and
puts them into the queue, `figures` reads how they did, `table` sums that up (pure), `group` finds
the sweeps on disk, `again` tries failed members again.
"""
