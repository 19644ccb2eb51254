"""A page inside another one, such as a notebook's. Knows no page's content."""

from __future__ import annotations

from html import escape


def framed(page: str) -> str:
    """In a frame of its own, so that the styles of the two do not mix."""
    return f'<iframe srcdoc="{escape(page)}" style="width: 100%; height: 40em; border: 0"></iframe>'
