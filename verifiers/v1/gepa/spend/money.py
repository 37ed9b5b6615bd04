"""What tokens cost, in US dollars.

The price of a call is what the run is told (`--price-in`, `--price-out`), else the cost that the
endpoint itself reports with it, else the list price of the model in `genai-prices`, whose data come
with the package: nothing is fetched. Each call is priced by itself, since list prices may depend on
its length. What has no price is unknown, never 0.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from typing import Any

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.types import Usage

MILLION = 1_000_000

Call = tuple[str, Usage | None]
"""An answered call: its role, and its usage where the endpoint reported one."""

FLAGS = {
    "student": "--price-in and --price-out",
    "teacher": "--reflection-price-in and --reflection-price-out",
    "judges": "--judge-price-in and --judge-price-out",
}
"""By role, the flags that say what its tokens cost."""


@dataclass(frozen=True)
class Price:
    """What a role's calls cost."""

    source: str
    usd: Callable[[Usage], Decimal]
    told: bool = False
    """Whether the run was told: then what the endpoint reports is passed over."""


@dataclass
class Tally:
    """What a role has spent."""

    calls: int = 0
    """Calls whose usage the endpoint reported; the tokens are theirs."""
    input: int = 0
    """Input tokens, cached ones included."""
    cached_input: int = 0
    output: int = 0
    usd: Decimal = Decimal(0)
    """What the calls with a price cost."""
    unpriced: int = 0
    """Calls without a price."""
    unreported: int = 0
    """Answered calls whose usage the endpoint did not report."""
    sources: set[str] = field(default_factory=set)
    """Where the prices come from."""


@dataclass
class Spending:
    """Tokens and money of a run, by role: student, teacher, judges."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    _tallies: dict[str, Tally] = field(default_factory=dict)

    @property
    def by_role(self) -> dict[str, Tally]:
        """What each role has spent, of those that made a call, always in the same order."""
        return {role: self._tallies[role] for role in FLAGS if role in self._tallies}

    def count(self, role: str, usage: Usage | None) -> None:
        """Add an answered call; None where its endpoint reported no usage."""
        tally = self._tallies.setdefault(role, Tally())
        if usage is None:
            tally.unreported += 1
            return
        tally.calls += 1
        tally.input += max(0, usage.input_tokens)
        tally.cached_input += max(0, usage.cached_input_tokens or 0)
        tally.output += max(0, usage.completion_tokens)
        priced = self._priced(role, usage)
        if priced is None:
            tally.unpriced += 1
            return
        usd, source = priced
        tally.usd += usd
        tally.sources.add(source)

    def count_all(self, calls: Iterable[Call]) -> None:
        """`count` for each role and usage."""
        for role, usage in calls:
            self.count(role, usage)

    def _priced(self, role: str, usage: Usage) -> tuple[Decimal, str] | None:
        price = self.prices.get(role)
        reported = usage.cost
        if reported is not None and _is_believed(reported, price):
            return Decimal(str(reported)), "reported by the endpoint"
        if price is None:
            return None
        try:
            return price.usd(usage), price.source
        except ValueError:  # usage that contradicts itself
            return None

    @property
    def tokens(self) -> dict[str, dict[str, int]]:
        """Input and output tokens by role, of those that reported any."""
        return {
            role: {"input": tally.input, "output": tally.output}
            for role, tally in self.by_role.items()
            if tally.calls
        }

    @property
    def usd(self) -> float | None:
        """What the run has cost; None where a part of that is unknown."""
        return None if self.reason else _rounded(sum(t.usd for t in self.by_role.values()))

    @property
    def reason(self) -> str | None:
        """Why the cost is unknown, None where it is known."""
        return "; ".join(filter(None, map(self._reason, self.by_role))) or None

    def role_usd(self, role: str) -> float | None:
        """What a role has cost; None where that is unknown."""
        return None if self._reason(role) else _rounded(self._tallies[role].usd)

    def _reason(self, role: str) -> str | None:
        tally = self._tallies[role]
        if tally.unreported:
            return f"{role}: the endpoint reported no token usage for {tally.unreported} calls"
        return f"{role}: {_unpriced(role)}" if tally.unpriced else None

    def record(self) -> dict[str, Any]:
        """The key `cost` of `result.json`."""
        return {
            "usd": self.usd,
            "reason": self.reason,
            "roles": {
                role: {
                    "input": tally.input,
                    "cached_input": tally.cached_input,
                    "output": tally.output,
                    "usd": self.role_usd(role),
                    "source": ", ".join(sorted(tally.sources)) or None,
                    "reason": self._reason(role),
                }
                for role, tally in self.by_role.items()
            },
        }


def prices_of(config: GEPAConfig) -> dict[str, Price]:
    """The prices that are known before the run, by role. Those of judges are known only where the
    run is told: which models they are is the taskset's business."""
    model, client = config.teacher
    same = model == config.student and config.reflection_client is None
    students = _told(config.price_in, config.price_out, "student")
    teachers = _told(config.reflection_price_in, config.reflection_price_out, "teacher")
    prices = {
        "student": students or list_price(config.student, config.endpoints[0].base_url),
        "teacher": teachers or (students if same else None) or list_price(model, client.base_url),
        "judges": _told(config.judge_price_in, config.judge_price_out, "judges"),
    }
    return {role: price for role, price in prices.items() if price is not None}


def missing_prices(config: GEPAConfig) -> list[str]:
    """What to tell a person about each role that will be paid for and has no known price."""
    prices = prices_of(config)
    models = {"student": config.student, "teacher": config.teacher[0]}
    missing = [
        f"the {role}'s model {model!r}: {_unpriced(role)}"
        for role, model in models.items()
        if role not in prices
    ]
    if config.taskset.task.judges and "judges" not in prices:
        missing.append(f"the judges: {_unpriced('judges')}")
    return missing


def list_price(model: str, base_url: str) -> Price | None:
    """The list price of `model` at the provider whose API `base_url` is; where that is nobody's
    known, at the provider that the model's name tells (`gpt-4.1-mini`, `openai/gpt-4.1-mini`)."""
    # Not at the top: reading all prices takes a while, and help and most dry runs ask for none.
    from genai_prices import Usage as PricedUsage
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    try:
        by_url = snapshot.find_provider(None, None, base_url)
    except LookupError:
        by_url = None
    # Under this name genai-prices reads a prefix of the model's as its provider.
    by_name = None if by_url else "litellm"
    try:
        provider, found = snapshot.find_provider_model(model, by_url, by_name, None)
    except LookupError:
        return None
    today = datetime.now(UTC)
    prices = found.get_prices(today)
    if prices.input_mtok is None or prices.output_mtok is None:
        return None  # what is not listed would count as free

    source = f"genai-prices {version('genai-prices')}: {provider.id} {found.id}"
    cached = prices.cache_read_mtok or prices.input_mtok
    per_million = (prices.input_mtok, cached, prices.output_mtok)
    flat = [price for price in per_million if isinstance(price, Decimal)]
    if len(flat) == len(per_million) and prices.requests_kcount is None:
        return Price(source, _linear(*flat))

    def usd(usage: Usage) -> Decimal:
        priced = PricedUsage(
            input_tokens=max(0, usage.input_tokens),
            cache_read_tokens=max(0, usage.cached_input_tokens or 0),
            output_tokens=max(0, usage.completion_tokens),
        )
        return found.calc_price(priced, provider, genai_request_timestamp=today).total_price

    return Price(source, usd)


def _told(price_in: float | None, price_out: float | None, role: str) -> Price | None:
    """The price of the flags; cached input counts like other input."""
    if price_in is None or price_out is None:
        return None
    per_input, per_output = Decimal(str(price_in)), Decimal(str(price_out))
    return Price(FLAGS[role], _linear(per_input, per_input, per_output), told=True)


def _linear(per_input: Decimal, per_cached: Decimal, per_output: Decimal) -> Callable[..., Decimal]:
    """The cost of a call by prices in USD per million tokens, whatever its length."""

    def usd(usage: Usage) -> Decimal:
        cached = max(0, usage.cached_input_tokens or 0)
        fresh, output = max(0, usage.input_tokens - cached), max(0, usage.completion_tokens)
        return (per_input * fresh + per_cached * cached + per_output * output) / MILLION

    return usd


def _is_believed(reported: float, price: Price | None) -> bool:
    """Whether a call cost what its endpoint reports. Some report 0 for what they know no price of,
    so 0 counts only where nothing else is known."""
    if price is None:
        return 0 <= reported < math.inf
    return not price.told and 0 < reported < math.inf


def _unpriced(role: str) -> str:
    return f"no price is known, give {FLAGS[role]}"


def _rounded(usd: Decimal | int) -> float:
    """To a millionth of a cent, so that the order of adding up can't show."""
    return float(round(Decimal(usd), 8))
