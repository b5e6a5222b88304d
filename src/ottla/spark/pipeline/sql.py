"""Which tables an SQL text reads from: so that the order of steps, and names that do not exist, are known before Spark starts.

Not a parser: it looks at words, brackets, where FROM and JOIN stand, and which names a WITH has given to whom. Spark itself has the last word
when it analyses the text; where this is wrong about one, the step says its `inputs` itself.
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
#: What ends the list of tables behind FROM. ON and USING do not: `FROM a JOIN b ON a.id = b.id, c`.
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
    #: What is in it, if it is a bracket.
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
    """The names behind FROM and JOIN, each once, in their order; neither those of the text's own WITH nor calls such as range(3).

    Names with a dot belong to a catalog and are left out too.
    """
    found: dict[str, None] = {}
    _SqlScope(_nested(_tokens(text)), frozenset(), found).query()
    return list(found)


class _SqlScope:
    """A query, or what is in a pair of brackets: read from its begin to its end. `own` are the names that a WITH around it has given."""

    def __init__(self, tokens: list[_Token], own: frozenset[str], found: dict[str, None]) -> None:
        self._tokens = tokens
        self._own = own
        self._found = found
        self._at = 0
        #: Whether a table comes next, and whether another one may come behind the next comma.
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
        """What is in brackets behind FROM, and is no query: a join."""
        self._wanted = self._listing = True
        self._relations()

    def values(self) -> None:
        """What is in other brackets: values, among which may be queries, and tables where a function takes one."""
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
        """WITH a AS (…), b (x, y) AS (…): each name is known behind its own brackets; with RECURSIVE, in them too."""
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
                # Its columns stand behind commas; no table comes behind them.
                self._wanted = self._listing = False
            elif token.is_word("AS"):
                # Whatever word it is, it is a name.
                self._at += 1
            elif token.is_word(*_CLAUSES):
                self._wanted = self._listing = False
            self._at += 1

    def _table(self) -> None:
        """The name here: a table, if it is neither a call nor of a catalog."""
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
        """VALUES (1, x), (2, y): the commas between its rows are no list of tables."""
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
    """What is in brackets as one token. A bracket that is not closed ends with the text, one that was not opened is left out."""
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
