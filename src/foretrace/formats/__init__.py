"""Readers and writers of others' files."""
