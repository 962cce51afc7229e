"""Expected values in files; README.md says how they may change."""
