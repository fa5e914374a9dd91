"""The only package that uses private names of PyIceberg (pinned to 0.12.x). Each use states its reason.

docs/decisions/0005-pyiceberg-patches.md has the upstream issue of each patch, and what would make it go.
"""
