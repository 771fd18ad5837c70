"""Chakra execution traces of MLCommons: one protobuf file per rank, for simulators such as ASTRA-sim."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
