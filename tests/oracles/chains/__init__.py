"""Random chains of commands, compared with a model that follows each image by its pixels."""
