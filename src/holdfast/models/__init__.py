"""Models: what training returns, alone or as an ensemble, and the files that they are saved in."""
