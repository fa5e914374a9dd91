"""The only package that uses private names of PyIceberg (pinned to 0.12.x). Each use states its reason."""
