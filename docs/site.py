"""What `make docs` does besides: links to files outside of docs/ become their names."""

import re

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:examples|tests|src|benchmarks|[A-Z]+\.md)[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Keep the text of links that lead out of the site; in the repository they lead there."""
    return OUTSIDE.sub(r"\1", markdown)
