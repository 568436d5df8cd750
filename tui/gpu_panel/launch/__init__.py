"""The launch screen: devices, form, plan and runs."""
