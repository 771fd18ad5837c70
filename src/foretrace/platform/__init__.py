"""Machines as files: devices, hosts, fabrics, the platforms they make, and the shipped ones."""

from foretrace._deprecated import keep_callable

keep_callable(__name__)
