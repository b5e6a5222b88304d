"""Which tables an SQL text reads from: so that the order of steps, and names that do not exist, are known before Spark starts.

Not a parser: it looks at words, brackets and where FROM and JOIN stand. Spark itself has the last word when it analyses the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      --[^\n]*                      # comments
    | /\*.*?\*/
    | '(?:[^'\\]|\\.|'')*'          # texts, which hold no names
    | "(?:[^"\\]|\\.)*"
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<word>[A-Za-z_]\w*)
    | (?P<sign>[(),.])
    | [^\s]
    """,
    re.VERBOSE | re.DOTALL,
)
#: What ends the list of tables behind FROM.
_CLAUSES: Final = frozenset(
    (
        "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT", "MINUS", "WINDOW", "CLUSTER", "DISTRIBUTE",
        "SORT", "SELECT", "ON", "USING", "QUALIFY", "OFFSET",
    )
)  # fmt: skip
#: Words that may stand between JOIN or FROM and a table.
_BEFORE_A_TABLE: Final = frozenset(("LATERAL", "STREAM"))
_QUERY_STARTS: Final = frozenset(("SELECT", "WITH", "FROM", "VALUES", "TABLE"))


def tables(text: str) -> list[str]:
    """The names behind FROM and JOIN, each once, in their order; neither those of the text's own WITH nor calls such as range(3).

    Names with a dot belong to a catalog and are left out too.
    """
    tokens = list(_tokens(text))
    own = _common_tables(tokens)
    found: dict[str, None] = {}
    # For each open bracket: whether a query is in it, and whether the next word there is a table.
    in_query, wanted, listing = [True], [False], [False]
    at = 0
    while at < len(tokens):
        kind, word = tokens[at]
        upper = word.upper() if kind == "word" else word
        if kind == "sign" and word == "(":
            following = tokens[at + 1][1].upper() if at + 1 < len(tokens) else ""
            # A bracket where a table is wanted holds a query or a join.
            is_query = following in _QUERY_STARTS or (wanted[-1] and bool(tokens))
            in_query.append(is_query)
            wanted.append(wanted[-1] and following not in _QUERY_STARTS)
            listing.append(wanted[-1])
            wanted[-2] = False
        elif kind == "sign" and word == ")":
            if len(in_query) > 1:
                in_query.pop(), wanted.pop(), listing.pop()
        elif kind == "sign" and word == ",":
            wanted[-1] = listing[-1] and in_query[-1]
        elif upper == "FROM" and kind == "word" and in_query[-1] and not _is_distinct_from(tokens, at):
            wanted[-1] = listing[-1] = True
        elif upper == "JOIN" and kind == "word":
            wanted[-1] = True
        elif kind == "word" and upper in _CLAUSES:
            wanted[-1] = listing[-1] = False
        elif wanted[-1] and kind in ("word", "quoted") and not (kind == "word" and upper in _BEFORE_A_TABLE):
            wanted[-1] = False
            end = at + 1
            while end + 1 < len(tokens) and tokens[end] == ("sign", "."):
                end += 2
            is_call = end < len(tokens) and tokens[end] == ("sign", "(")
            if end == at + 1 and not is_call and word.lower() not in own:
                found[word] = None
            at = end
            continue
        at += 1
    return list(found)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "quoted":
            yield "quoted", match["quoted"].replace("``", "`")
        elif match.lastgroup is not None:
            yield match.lastgroup, match[0]


def _common_tables(tokens: list[tuple[str, str]]) -> set[str]:
    """Names that stand before `AS (`, with or without columns: those of WITH. An alias of a subquery stands behind it."""
    names = set()
    for at, (kind, word) in enumerate(tokens):
        if kind != "word" or word.upper() != "AS" or tokens[at + 1 : at + 2] != [("sign", "(")]:
            continue
        before = at - 1
        if before >= 0 and tokens[before] == ("sign", ")"):
            while before >= 0 and tokens[before] != ("sign", "("):
                before -= 1
            before -= 1
        if before >= 0 and tokens[before][0] in ("word", "quoted"):
            names.add(tokens[before][1].lower())
    return names


def _is_distinct_from(tokens: list[tuple[str, str]], at: int) -> bool:
    words = [word.upper() for _, word in tokens[max(at - 3, 0) : at]]
    return words[-1:] == ["DISTINCT"] and ("IS" in words)
