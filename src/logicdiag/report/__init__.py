"""See what a run thinks: a pixel in words, a report as one HTML file, figures for papers."""
