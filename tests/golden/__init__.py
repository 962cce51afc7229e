"""Expected values kept as files; README.md says who decides on them."""
