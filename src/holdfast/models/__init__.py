"""Trained models and ensembles, and the files that they are saved in."""
