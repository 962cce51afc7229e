"""Programs that compose the stages: no logic of their own."""
