"""Examples: the paper's blobs, example tables as files, and the demo."""
