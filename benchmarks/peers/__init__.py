"""Tokens per second beside other runtimes, each in an environment of its own."""
