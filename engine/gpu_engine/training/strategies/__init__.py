"""What torch does in each mode: one class a way of training; `choose` finds that of a mode."""
