"""The tables, pictures and sections of a report, and their formatting as HTML and Markdown."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path

from fire_lm.console import columns
from fire_lm.reporting.charts import Image


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of plain text; the first column contains the names of the rows.

    `best` contains the indices of the cells to highlight.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column)

    def markdown(self) -> str:
        lines = [
            [f"**{_cell(text)}**" if (i, j) in self.best else _cell(text)
             for j, text in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]  # fmt: skip
        head = [[_cell(text) for text in self.header], ["---"] * len(self.header)]
        return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *lines])

    def plain(self) -> str:
        """Format the table and its caption for a terminal."""
        caption = [self.caption] * bool(self.caption)
        return "\n".join([*caption, *columns([self.header, *self.rows], words=1)])

    def html(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in self.header)
        body = ""
        words = {j for row in self.rows for j, text in enumerate(row) if _is_words(text)}
        for i, row in enumerate(self.rows):
            cells = [f'<th scope="row">{html.escape(row[0])}</th>']
            for j, text in enumerate(row[1:], start=1):
                escaped = html.escape(text)
                stressed = f"<b>{escaped}</b>" if (i, j) in self.best else escaped
                kind = ' class="words"' * (j in words)
                cells.append(f"<td{kind}>{stressed}</td>")
            body += f"<tr>{''.join(cells)}</tr>\n"
        return f'<p class="caption">{html.escape(self.caption)}</p>' + _scrolling(
            f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>", self.caption
        )


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture with its caption.

    Attributes:
      name: The name of the picture's files, without a suffix.
      alt: A description of the picture for readers who cannot see it.
      panels: The number of panels side by side. A picture with several panels can be scrolled
        sideways on a narrow screen.
    """

    name: str
    caption: str
    alt: str
    image: Image
    panels: int = 1

    def markdown(self) -> str:
        return f"![{_cell(self.alt)}]({self.name}.svg)\n\n{self.caption}"

    def html(self) -> str:
        data = base64.b64encode(self.image.svg.encode()).decode()
        alt = html.escape(self.alt, quote=True)
        image = f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'
        if self.panels > 1:
            image = _scrolling(image, self.name, "panels")
        return f"<figure>{image}<figcaption>{html.escape(self.caption)}</figcaption></figure>"


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report, which consists of paragraphs followed by tables and pictures."""

    title: str
    paragraphs: Sequence[str]
    parts: Sequence[Table | Picture] = ()


def _is_words(text: str) -> bool:
    """Return whether the text of a cell may be wrapped, which is never the case for numbers."""
    return len(text) > 15 and any(character.isalpha() for character in text)


def _scrolling(inside: str, label: str, kind: str = "") -> str:
    """Wrap content that may be too wide in a scrollable region with a scroll cue."""
    named = html.escape(label, quote=True)
    return (
        '<div class="wide"><p class="cue" aria-hidden="true">scroll sideways for the rest '
        f'&#8594;</p><div class="{" ".join(filter(None, ("scrolls", kind)))}" tabindex="0" '
        f'role="region" aria-label="{named} (scrollable)">{inside}</div></div>'
    )


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    text = [f"# {title}"]
    for section in sections:
        text += [f"## {section.title}", *section.paragraphs]
        for part in section.parts:
            text += (
                [part.caption, part.markdown()] if isinstance(part, Table) else [part.markdown()]
            )
    return "\n\n".join(text) + "\n"


def as_html(title: str, sections: Sequence[Section]) -> str:
    contents, body = "", ""
    for number, section in enumerate(sections):
        name = html.escape(section.title)
        contents += f'<li><a href="#s{number}">{name}</a></li>'
        paragraphs = "".join(f"<p>{html.escape(text)}</p>\n" for text in section.paragraphs)
        tables = [part.html() for part in section.parts if isinstance(part, Table)]
        pictures = [part.html() for part in section.parts if isinstance(part, Picture)]
        grid = f'<div class="pictures">{"".join(pictures)}</div>' if pictures else ""
        parts = f"{paragraphs}{''.join(tables)}{grid}"
        body += f'<section id="s{number}"><h2>{name}</h2>\n{parts}</section>\n'
    heading = html.escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{heading}</title>\n<style>{_CSS}</style></head>\n'
        f"<body><header><h1>{heading}</h1><nav><ul>{contents}</ul></nav></header>\n"
        f"<main>{body}</main></body></html>\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


_CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
