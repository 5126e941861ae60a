"""The decisions, pure: the standard library and ``model`` only; no files, clock, config, logging or randomness."""
