"""One readable file per semi-supervised algorithm."""
