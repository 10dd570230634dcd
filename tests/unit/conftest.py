"""Settings of all unit tests."""

from hypothesis import settings

# No deadline: tests run beside others on few cores, and slowness is what benchmarks are for.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")
