"""The table of what providers say, as docs/failures.md shows it.

`python -m tests.docs.test_signs_table` writes it anew.
"""

import re

from tests.support import ROOT
from verifiers.v1.gepa.faults.signs import MEANINGS, SIGNS

PAGE = ROOT / "docs/failures.md"
PLACE = re.compile(r"(<!-- begin signs: .*? -->\n).*?(<!-- end signs -->)", re.DOTALL)


def table() -> str:
    lines = ["| they say | what follows | providers and forms |", "|---|---|---|"]
    for meaning, follows in MEANINGS.items():
        forms = []
        for sign in (sign for sign in SIGNS if sign.meaning == meaning):
            status = "/".join(map(str, sign.statuses))
            how = " ".join(part for part in (status, f"`{sign.code}`" if sign.code else "") if part)
            forms.append(f"{sign.provider}{f' ({how})' if how else ''}")
        lines.append(f"| {meaning} | {follows} | {'; '.join(forms)} |")
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_table_of_the_code() -> None:
    found = PLACE.search(PAGE.read_text("utf-8"))
    assert found is not None
    assert found[0] == f"{found[1]}{table()}{found[2]}"


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(PLACE.sub(lambda m: f"{m[1]}{table()}{m[2]}", text), "utf-8")
