"""WGSL sources, one idea a file, found with importlib.resources."""
