"""stub"""
from contextlib import contextmanager
@contextmanager
def pretended_cuda():
    yield None
