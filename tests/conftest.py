"""Shared by all tests: hypothesis without deadlines, since the first call of a numba kernel compiles it."""

from hypothesis import settings

settings.register_profile("freshet", deadline=None)
settings.load_profile("freshet")
