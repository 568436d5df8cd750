"""Taking what runs have recorded out of gpu-panel: a page to read, or the figures."""
