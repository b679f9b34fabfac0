"""The demo, and the paper's figures and table: one thin file each, over shared cells."""
