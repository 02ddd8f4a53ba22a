"""Programs to run by hand; they check what they time."""
