"""Small mistakes in changed lines, to see which of them no test notices: `make mutants`."""
