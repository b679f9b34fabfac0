"""Examples: the paper's blobs, small tables to begin with, and the demo."""
