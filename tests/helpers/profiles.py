"""How many examples hypothesis draws, and how: the profiles, and settings that are made of the one in force."""

import os

from hypothesis import HealthCheck, settings

from helpers.every_pair import usually

settings.register_profile(
    "ci",
    max_examples=usually(12, full=60),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("few", settings.get_profile("ci"), max_examples=usually(7, full=30))
settings.register_profile("search", settings.get_profile("ci"), max_examples=2000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def at_least(n: int, *, full: int) -> settings:
    """Return settings for `n` examples, for `full` by ``make test-full``, or for as many as the profile says."""
    return settings(max_examples=max(usually(n, full=full), settings.default.max_examples))


many = at_least(120, full=400)
"""For properties of pure arithmetic; the rest keep the profile."""
