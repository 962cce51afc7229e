"""The work of prepare, resize and adopt on a data set: the stages and the engine together."""
