"""The paper's figures and table, one small module each, over shared cached results (cells)."""
