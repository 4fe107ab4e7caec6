"""A clock for what waits: time passes where somebody is told to wait, at once."""


class StillClock:
    """Time that passes where it is told to."""

    def __init__(self):
        self.time = 0.0
        self.slept = []

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds

    def spin(self, until_s):
        self.time = max(self.time, until_s)
