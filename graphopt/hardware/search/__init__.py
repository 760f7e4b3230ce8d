"""Searches that know how programs are measured."""
