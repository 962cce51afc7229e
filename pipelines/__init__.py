"""Programs that compose the stages, without logic of their own."""
