"""Training scripts as their libraries' users write them: tiny by default, of a real size with ``--full``."""
