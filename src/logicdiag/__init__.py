"""The public names."""
