"""Chakra execution traces of MLCommons: a file of protobuf messages a rank, for simulators such as ASTRA-sim."""

from foretrace.formats.chakra_reader import read_chakra
from foretrace.formats.chakra_writer import write_chakra

__all__ = ["read_chakra", "write_chakra"]
