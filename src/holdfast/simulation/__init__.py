"""What private answers would be worth: closed-form expectations for the owner. NOT private."""

from .mechanisms import contenders
from .outcomes import Outcome, Outcomes, largest_queries
from .plan import distance_needed, plan

__all__ = ["Outcome", "Outcomes", "contenders", "distance_needed", "largest_queries", "plan"]
