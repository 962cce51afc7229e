"""The stages of prepare, resize, adopt and amend, which the engine runs on a dataset."""
