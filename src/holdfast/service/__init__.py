"""The HTTP service: private answers for programs and for people, within the owner's budget."""

from ..errors import InvalidInput

try:
    from .app import create_app
    from .running import run
    from .runtime import open_predictor
    from .settings import ServiceSettings
except ModuleNotFoundError as error:
    raise InvalidInput(
        f"the service needs an extra, {error.name} is missing: pip install 'holdfast[service]'"
    ) from error

__all__ = ["ServiceSettings", "create_app", "open_predictor", "run"]
