"""Completing a command line by tab, in bash, zsh and fish.

`scripts` has what each shell runs, and `install` puts it where the shell finds it. At each tab the
script starts the command itself with the line so far; `answers` finds out what is being typed, and
`sources` what there is of that kind.
"""
