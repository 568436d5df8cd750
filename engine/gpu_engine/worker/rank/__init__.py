"""What a rank has whoever trains in it: which one it is, its group, its record, its signals.

Torch is imported here, and never at the import of the package.
"""
