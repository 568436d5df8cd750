"""The habits that a person writes once: `settings.toml`, used by the panel and the command line."""
