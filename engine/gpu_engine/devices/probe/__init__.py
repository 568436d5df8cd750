"""The process that asks a driver, as a call into one may never come back."""
