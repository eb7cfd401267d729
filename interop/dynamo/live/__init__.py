"""Compares real processes of Blockyard and of an unmodified NVIDIA Dynamo."""
