"""Puts the helpers of this folder on the module path of the folders below."""
