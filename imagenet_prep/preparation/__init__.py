"""The work of prepare, resize, adopt and amend on a dataset: their stages, run by the engine."""
