"""Data sets, splits, weak and strong views, and the built-in scenes."""
