"""Blockyard beside an unmodified NVIDIA Dynamo: real processes of both, compared."""
