"""The model catalogue and themes, found with importlib.resources."""
