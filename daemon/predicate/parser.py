"""Reads the text of a predicate: the subset of Spark SQL's that docs/deletes.md names. Pure.

What Spark reads otherwise in some of its settings is refused: texts in double quotes, backslashes, NULL as a value.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from pyiceberg.types import BooleanType, StringType

from daemon.delta.actions import Metadata
from daemon.predicate.columns import Columns, Constant, LiteralKind, check_same_type, refuse, value_of
from daemon.predicate.tree import (
    EXCHANGED,
    Always,
    Among,
    And,
    Comparison,
    Field,
    IsNull,
    IsTrue,
    Like,
    Not,
    Or,
    Predicate,
)

CHARACTERS_MAX: Final = 1 << 20
# Each needs a few frames of Python's stack, here and where the tree is used.
DEPTH_MAX: Final = 100
TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<string>'(?:[^'\\]|'')*')
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w.])
    |(?P<word>[^\W\d]\w*)
    |(?P<sign><>|!=|==|<=|>=|[-+=<>(),.])
    )""",
    re.VERBOSE,
)
COMPARISONS: Final = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
# Words that are no names unless they are in backquotes.
WORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "TRUE", "FALSE"})
TYPED: Final[dict[str, LiteralKind]] = {
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ",
}
Operand = Field | Constant


def parse_predicate(text: str, metadata: Metadata) -> Predicate:
    """Parse a predicate on the columns of a table. Raises ConfigInvalid for what it does not know, or not for sure."""
    if len(text) > CHARACTERS_MAX:
        refuse(f"it has {len(text):,} characters, at most {CHARACTERS_MAX:,} are read")
    return _Parser(text, Columns(metadata)).parse()


class _Parser:
    def __init__(self, text: str, columns: Columns) -> None:
        self._text = text
        self._columns = columns
        self._depth = 0
        self._end = 0
        self._step()

    def _step(self) -> None:
        """Read the next token: its kind and its text. At the end, both are empty."""
        self._start = self._end
        found = TOKEN.match(self._text, self._end)
        if found:
            self._kind, self._token, self._end = str(found.lastgroup), found[str(found.lastgroup)], found.end()
        elif self._text[self._end :].strip():
            self._fail()
        else:
            self._kind = self._token = ""

    def _fail(self) -> NoReturn:
        rest = self._text[self._start :].strip()
        where = f"at {rest[:30]!r}" if rest else "at its end"
        refuse(f"{where}, character {self._start + 1}, is something that is not read")

    @property
    def _word(self) -> str:
        return self._token.upper() if self._kind == "word" else ""

    def _take(self, *tokens: str) -> str:
        """Step over one of these words or signs, and return it; an empty text if none is next."""
        found = self._word or (self._token if self._kind == "sign" else "")
        if found not in tokens:
            return ""
        self._step()
        return found

    def _expect(self, token: str) -> None:
        if not self._take(token):
            self._fail()

    def parse(self) -> Predicate:
        found = self._as_predicate(self._either())
        if self._kind:
            self._fail()
        return found

    def _either(self) -> Predicate | Operand:
        items = [self._both()]
        while self._take("OR"):
            items.append(self._both())
        return items[0] if len(items) == 1 else Or(tuple(map(self._as_predicate, items)))

    def _both(self) -> Predicate | Operand:
        items = [self._not()]
        while self._take("AND"):
            items.append(self._not())
        return items[0] if len(items) == 1 else And(tuple(map(self._as_predicate, items)))

    def _not(self) -> Predicate | Operand:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            refuse(f"it is nested in more than {DEPTH_MAX} levels")
        found = Not(self._as_predicate(self._not())) if self._take("NOT") else self._test()
        self._depth -= 1
        return found

    def _test(self) -> Predicate | Operand:
        left = self._primary()
        if sign := self._take(*COMPARISONS):
            return self._compared(COMPARISONS[sign], left, self._primary())
        is_negated = bool(self._take("NOT"))
        found: Predicate | Operand = left
        match word := self._take("IN", "BETWEEN", "LIKE"):
            case "IN":
                found = self._among(self._as_field(left))
            case "BETWEEN":
                low = self._primary()
                self._expect("AND")
                found = And((self._compared(">=", left, low), self._compared("<=", left, self._primary())))
            case "LIKE":
                found = self._like(self._as_field(left))
        if not word:
            if is_negated:
                self._fail()
            if self._take("IS"):
                is_negated = bool(self._take("NOT"))
                self._expect("NULL")
                found = IsNull(self._as_field(left))
        return Not(self._as_predicate(found)) if is_negated else found

    def _primary(self) -> Predicate | Operand:
        if self._take("("):
            found = self._either()
            self._expect(")")
            return found
        return self._constant() or self._column()

    def _among(self, field: Field) -> Among:
        self._expect("(")
        values = [value_of(self._known_constant(), field)]
        while self._take(","):
            values.append(value_of(self._known_constant(), field))
        self._expect(")")
        return Among(field, tuple(values))

    def _like(self, field: Field) -> Like:
        pattern = self._known_constant()
        if not isinstance(field.kind, StringType) or pattern.kind != "string":
            refuse(f"LIKE compares texts, and {field.name} LIKE {pattern} is something else")
        return Like(field, pattern.text)

    def _compared(self, sign: str, left: Predicate | Operand, right: Predicate | Operand) -> Comparison:
        if isinstance(left, Constant):
            left, right, sign = right, left, EXCHANGED[sign]
        field = self._as_field(left)
        if isinstance(right, Constant):
            return Comparison(sign, field, value_of(right, field))
        other = self._as_field(right)
        check_same_type(field, other)
        return Comparison(sign, field, other)

    def _as_field(self, found: Predicate | Operand) -> Field:
        if not isinstance(found, Field):
            what = f"{found} is compared" if isinstance(found, Constant) else "a condition is compared"
            refuse(f"{what}, and each comparison needs a column")
        return found

    def _as_predicate(self, found: Predicate | Operand) -> Predicate:
        match found:
            case Field(kind=BooleanType()):
                return IsTrue(found)
            case Constant("boolean", text):
                return Always(text == "TRUE")
            case Field():
                refuse(f"{found.name} is of the type {found.kind}, and a condition is needed")
            case Constant():
                refuse(f"{found} is no condition")
        return found

    def _known_constant(self) -> Constant:
        found = self._constant()
        if found is None:
            self._fail()
        return found

    def _constant(self) -> Constant | None:
        """Read a literal; None if something else is next."""
        if sign := self._take("-", "+"):
            if self._kind != "number":
                self._fail()
            return Constant("number", sign.strip("+") + self._read())
        if self._kind == "number":
            return Constant("number", self._read())
        if self._kind == "string":
            return Constant("string", _unquote(self._read()))
        if word := self._take("TRUE", "FALSE"):
            return Constant("boolean", word)
        following = TOKEN.match(self._text, self._end)
        if self._word in TYPED and following and following["string"]:
            kind = TYPED[self._word]
            self._step()
            return Constant(kind, _unquote(self._read()))
        return None

    def _column(self) -> Field:
        names = [self._name()]
        while self._take("."):
            names.append(self._name())
        return self._columns.find(tuple(names))

    def _name(self) -> str:
        if self._word == "NULL":
            refuse("a comparison with NULL is never true; write IS NULL or IS NOT NULL")
        if self._kind == "quoted":
            return self._read()[1:-1].replace("``", "`")
        if self._kind != "word" or self._word in WORDS:
            self._fail()
        return self._read()

    def _read(self) -> str:
        token = self._token
        self._step()
        return token


def _unquote(text: str) -> str:
    return text[1:-1].replace("''", "'")
