"""A page on this computer to look at a run: images, conflicts, pixels, and rules that can be changed."""
