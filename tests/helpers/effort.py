"""How many examples hypothesis tries where the profile's are too few."""

from hypothesis import settings

from helpers.every_pair import usually


def at_least(n: int, *, full: int) -> settings:
    """Return settings for `n` examples, for `full` by ``make test-full``, or for as many as the profile says."""
    return settings(max_examples=max(usually(n, full=full), settings.default.max_examples))


many = at_least(120, full=400)
"""For properties of pure arithmetic; the rest keep the profile that `conftest` loads."""
