"""Finds the tables that a SQL text reads, for the order of steps, before Spark starts.

This is not a full parser: it looks at words, brackets, FROM, JOIN and the names that WITH defines. Spark
analyses the text later. If a table is not found correctly, the step can set its `inputs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      --[^\n]*                      # comments
    | /\*.*?\*/
    | (?P<text>'(?:[^'\\]|\\.|'')*' # texts, which hold no names
    | "(?:[^"\\]|\\.)*")
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<word>[A-Za-z_]\w*)
    | (?P<sign>\|>|=>|[(),.])
    | (?P<other>\S)
    """,
    re.VERBOSE | re.DOTALL,
)
#: Words that end the table list after FROM. ON and USING do not: `FROM a JOIN b ON a.id = b.id, c`.
_CLAUSES: Final = frozenset(
    (
        "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT", "MINUS", "WINDOW", "CLUSTER", "DISTRIBUTE",
        "SORT", "SELECT", "QUALIFY", "OFFSET",
    )
)  # fmt: skip
#: Words that may stand between JOIN or FROM and a table.
_BEFORE_A_TABLE: Final = frozenset(("LATERAL", "STREAM"))
_QUERY_STARTS: Final = frozenset(("SELECT", "WITH", "FROM", "VALUES", "TABLE"))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str = ""
    #: The tokens inside, if this is a bracket.
    inside: list[_Token] = field(default_factory=list)

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words

    def is_sign(self, sign: str) -> bool:
        return self.kind == "sign" and self.text == sign


_NOTHING: Final = _Token("")


def tables(text: str) -> list[str]:
    """The names after FROM and JOIN, each once, in order, without names of WITH and calls like range(3).

    Names with a dot belong to a catalog and are left out.
    """
    found: dict[str, None] = {}
    _SqlScope(_nested(_tokens(text)), frozenset(), found).query()
    return list(found)


class _SqlScope:
    """A query, or the content of brackets. `own` are the names that WITH clauses around it define."""

    def __init__(self, tokens: list[_Token], own: frozenset[str], found: dict[str, None]) -> None:
        self._tokens = tokens
        self._own = own
        self._found = found
        self._at = 0
        #: Whether a table is next, and whether another may follow after a comma.
        self._wanted = self._listing = False

    def _token(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if 0 <= at < len(self._tokens) else _NOTHING

    def query(self) -> None:
        if self._token().is_word("WITH"):
            self._common_tables()
        if self._token().is_word("TABLE") and self._token(1).is_name:
            self._wanted = True
            self._at += 1
        self._relations()

    def relation(self) -> None:
        """Brackets after FROM that contain a join instead of a query."""
        self._wanted = self._listing = True
        self._relations()

    def values(self) -> None:
        """Other brackets: values, which may contain queries, and table arguments of functions."""
        while self._at < len(self._tokens):
            token = self._token()
            before, behind = self._token(-1), self._token(1)
            if token.is_word("TABLE") and (before is _NOTHING or before.kind == "sign"):
                if behind.is_name:
                    self._at += 1
                    self._table()
                    continue
                if behind.kind == "bracket":
                    self._bracket(behind, of_tables=True)
                    self._at += 2
                    continue
            if token.kind == "bracket":
                self._bracket(token, of_tables=False)
            self._at += 1

    def _common_tables(self) -> None:
        """WITH a AS (…), b (x, y) AS (…): names are defined after their brackets; with RECURSIVE, also inside."""
        self._at += 1
        is_recursive = self._token().is_word("RECURSIVE") and self._token(1).is_name
        self._at += is_recursive
        while self._token().is_name:
            name = self._token().text.lower()
            while self._token() is not _NOTHING and not self._token().is_word("AS"):
                self._at += 1
            body = self._token(1)
            inside = self._own | {name} if is_recursive else self._own
            _SqlScope(body.inside, inside, self._found).query()
            self._own |= {name}
            self._at += 2
            if not self._token().is_sign(","):
                return
            self._at += 1

    def _relations(self) -> None:
        while self._at < len(self._tokens):
            token = self._token()
            if token.kind == "bracket":
                self._bracket(token, of_tables=self._wanted)
                self._wanted = False
            elif token.is_sign(","):
                self._wanted = self._listing
            elif token.is_sign("|>"):
                self._wanted = self._listing = False
            elif self._wanted and token.is_word("VALUES") and not self._token(1).is_name:
                self._skip_rows()
                continue
            elif self._wanted and token.is_name and not self._is_before_a_table(token):
                self._table()
                continue
            elif token.is_word("FROM") and not self._is_distinct_from():
                self._wanted = self._listing = True
            elif token.is_word("JOIN"):
                self._wanted = True
            elif token.is_word("LATERAL") and self._token(1).is_word("VIEW"):
                # Columns follow with commas, but no table.
                self._wanted = self._listing = False
            elif token.is_word("AS"):
                # Any word here is a name.
                self._at += 1
            elif token.is_word(*_CLAUSES):
                self._wanted = self._listing = False
            self._at += 1

    def _table(self) -> None:
        """The name here: a table, unless it is a call or belongs to a catalog."""
        name = self._token().text
        self._wanted = False
        self._at += 1
        parts = 1
        while self._token().is_sign("."):
            self._at += 2
            parts += 1
        is_call = self._token().kind == "bracket"
        if parts > 1 or (not is_call and name.lower() in self._own):
            return
        if not is_call:
            self._found[name] = None
        elif name.upper() in ("TABLE", "STREAM"):
            self._bracket(self._token(), of_tables=True)
            self._at += 1

    def _bracket(self, bracket: _Token, *, of_tables: bool) -> None:
        inside = _SqlScope(bracket.inside, self._own, self._found)
        if inside._token().is_word(*_QUERY_STARTS) and not (
            inside._token().is_word("TABLE") and inside._token(1).kind == "bracket"
        ):
            inside.query()
        elif of_tables:
            inside.relation()
        else:
            inside.values()

    def _is_before_a_table(self, token: _Token) -> bool:
        behind = self._token(1)
        return token.is_word(*_BEFORE_A_TABLE) and (
            (behind.is_name and not behind.is_word("AS", "JOIN", *_CLAUSES))
            or (token.is_word("LATERAL") and behind.kind == "bracket")
        )

    def _skip_rows(self) -> None:
        """VALUES (1, x), (2, y): the commas between rows do not separate tables."""
        self._wanted = False
        self._at += 1
        while self._token().kind == "bracket" or (
            self._token().is_sign(",") and self._token(1).kind == "bracket"
        ):
            if self._token().kind == "bracket":
                self._bracket(self._token(), of_tables=False)
            self._at += 1

    def _is_distinct_from(self) -> bool:
        return self._token(-1).is_word("DISTINCT") and (
            self._token(-2).is_word("IS")
            or (self._token(-2).is_word("NOT") and self._token(-3).is_word("IS"))
        )


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "quoted":
            yield _Token("quoted", match["quoted"].replace("``", "`"))
        elif match.lastgroup is not None:
            yield _Token(match.lastgroup, match[0])


def _nested(tokens: Iterator[_Token]) -> list[_Token]:
    """Nest brackets as one token. An unclosed bracket ends with the text; an unopened one is ignored."""
    open_parts: list[list[_Token]] = [[]]
    for token in tokens:
        if token.is_sign("("):
            bracket = _Token("bracket")
            open_parts[-1].append(bracket)
            open_parts.append(bracket.inside)
        elif token.is_sign(")"):
            if len(open_parts) > 1:
                open_parts.pop()
        else:
            open_parts[-1].append(token)
    return open_parts[0]
