"""What comes from public knowledge: preprocessing by schema, ranges and whitening; a start that answers nothing."""

from .preprocessing import Preprocessing
from .start import zero_output

__all__ = ["Preprocessing", "zero_output"]
