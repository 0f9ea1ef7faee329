"""A table for a paper: LaTeX that needs the package booktabs and nothing else, and fits a page of one column."""

from __future__ import annotations

import re

from crad.report.tables import RECONSTRUCTION, Cell, Table

# What LaTeX would take for a command, and the signs of our tables that its fonts have in mathematics only.
_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "²": "$^2$",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": "--",
    RECONSTRUCTION: r"$^\dagger$",
    **{
        sign: rf"$\{word}$"
        for sign, word in zip("±Δ≈στε", ("pm", "Delta", "approx", "sigma", "tau", "varepsilon"), strict=True)
    },
}
_MINUS = re.compile("(?<!\\w)-(?=[\\d\N{GREEK SMALL LETTER SIGMA}])")  # before a value; CIFAR-10 keeps its hyphen
_ABSENT = re.compile(r"(?<!\S)-(?=:|$)")  # in place of a value
TEXT_WIDTH_PT = 345.0  # of LaTeX's own article, the narrowest page of one column in use
# Size of the letters, how high they are and how far apart columns are, in points; from roomy to tight.
_SIZES = (
    *((r"\small", 9, 10), (r"\small", 9, 6), (r"\footnotesize", 8, 6)),
    *((r"\scriptsize", 7, 5), (r"\scriptsize", 7, 3)),
)
LETTER = 0.55  # how wide a letter of a table is, in heights of its font


def table_latex(table: Table) -> str:
    """Return a floating table; `\\usepackage{booktabs}` is all that it needs."""
    width = len(table.header)
    size, gap_pt = _fitting_size(table)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex(table.caption)}}}",
            rf"\label{{tab:{table.name.replace('_', '-')}}}",
            r"\vskip\abovecaptionskip",  # LaTeX keeps this distance below a table only
            size,
            rf"\setlength{{\tabcolsep}}{{{gap_pt / 2:g}pt}}",
            rf"\begin{{tabular}}{{@{{}}l{'r' * (width - 1)}@{{}}}}",
            r"\toprule",
            *_heading_lines(table),
            r"\midrule",
            *_body_lines(table, width),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def latex(text: str) -> str:
    """Return text for LaTeX: nothing in it is a command, a minus is as long as a plus."""
    plain = _ABSENT.sub("\N{EN DASH}", _MINUS.sub("\N{MINUS SIGN}", text))
    return "".join(_SIGNS.get(letter, letter) for letter in plain)


def _heading_lines(table: Table) -> list[str]:
    """Return what columns have in common above a rule, their own names below it."""
    above, rules, at = [], [], 1
    for group, names in table.headings:
        last = at + len(names) - 1
        above.append(
            rf"\multicolumn{{{len(names)}}}{{c}}{{{latex(group)}}}" if group else " & ".join("" for _ in names)
        )
        rules += [rf"\cmidrule(lr){{{at}-{last}}}"] if group else []
        at = last + 1
    own = rf"{' & '.join(latex(name) for _, names in table.headings for name in names)} \\"
    return [rf"{' & '.join(above)} \\", "".join(rules), own] if rules else [own]


def _body_lines(table: Table, width: int) -> list[str]:
    lines = []
    for number, row in enumerate(table.rows):
        if number in table.sections:
            lines += [r"\midrule"] if number else []
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l}}{{\textit{{{latex(table.sections[number])}}}}} \\")
        lines.append(rf"{' & '.join(map(_cell, row))} \\")
    return lines


def _cell(cell: Cell) -> str:
    return rf"\textbf{{{latex(cell.text)}}}" if cell.is_best else latex(cell.text)


def _fitting_size(table: Table) -> tuple[str, int]:
    """Return the largest letters and gaps with which the table fits, by counting letters."""
    names = [name for _, names in table.headings for name in names]
    letters = sum(
        max(len(text) for text in (name, *(row[column].text for row in table.rows)))
        for column, name in enumerate(names)
    )
    fitting = [
        (size, gap)
        for size, height, gap in _SIZES
        if letters * height * LETTER + gap * (len(names) - 1) <= TEXT_WIDTH_PT
    ]
    return fitting[0] if fitting else (_SIZES[-1][0], _SIZES[-1][2])
