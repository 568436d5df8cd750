"""A run on other machines: what each of them is told, and the process here that holds it together.
"""
