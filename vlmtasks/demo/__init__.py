"""The demo checkpoint: its data, its training and its evaluation.

Nothing here is imported by the rest of the package.
"""
