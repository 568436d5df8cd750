# Two trainings one after the other, started by a shell.
cd "$(dirname "$0")" || exit 1
"$1" autograd.py && "$1" accumulate.py
