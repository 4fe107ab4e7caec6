"""How many examples hypothesis tries where one costs microseconds."""

from hypothesis import settings

many = settings(max_examples=max(400, settings.default.max_examples))
"""For properties of pure arithmetic; the rest keep the profile that `conftest` loads."""
