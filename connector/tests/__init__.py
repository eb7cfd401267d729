"""Tests of the connector: python3 -m unittest discover -s connector/tests -t connector."""
