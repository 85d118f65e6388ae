"""Passages about countries and cities; a hash of the place decides order and wording."""

import random
from dataclasses import dataclass

from branchwise.types import Passage

from ..splits import hashed
from .facts import City, Country


@dataclass(frozen=True, slots=True)
class FactPassage:
    """A passage with the sentence that states each fact, by relation."""

    passage: Passage
    sentences: dict[str, str]


def country_id(country: Country) -> str:
    """Returns the passage id of a country."""
    return f"atlas-country-{country.iso}"


def city_id(city: City) -> str:
    """Returns the passage id of a city."""
    return f"atlas-city-{city.id}"


def country_text(country: Country) -> FactPassage:
    """Returns all facts of a country, about 45 words."""
    pick = random.Random(hashed("country passage", country.iso))
    name = country.name
    opening = pick.choice(
        [
            f"{name} lies in {country.continent}.",
            f"{name} is part of {country.continent}.",
            f"On the map, {name} belongs to {country.continent}.",
        ]
    )
    facts = {
        "capital": [
            f"Its capital is {country.capital}.",
            f"{country.capital} is the seat of its government.",
            f"It is governed from {country.capital}.",
        ],
        "currency": [
            f"The currency is the {country.currency} ({country.currency_code}).",
            f"People pay with the {country.currency} ({country.currency_code}).",
            f"Its money is the {country.currency} ({country.currency_code}).",
        ],
        "domain": [
            f"Internet addresses end in {country.domain}.",
            f"The internet domain is {country.domain}.",
        ],
        "dialling_code": [
            f"The dialling code is {country.dialling_code}.",
            f"Telephone numbers begin with {country.dialling_code}.",
        ],
        "area": [
            f"It covers {country.area:,} square kilometres.",
            f"The area is {country.area:,} square kilometres.",
        ],
        "population": [
            f"It has {country.population:,} inhabitants.",
            f"{country.population:,} people live there.",
        ],
    }
    sentences = {
        relation: pick.choice(wordings)
        for relation, wordings in facts.items()
        if getattr(country, relation)
    }
    order = list(sentences)
    pick.shuffle(order)
    text = " ".join([opening, *(sentences[relation] for relation in order)])
    passage = Passage(id=country_id(country), title=name, text=text)
    return FactPassage(passage, {"continent": opening, **sentences})


def city_text(city: City, country: Country) -> FactPassage:
    """Returns the country, inhabitants and time zone of a city, about 30 words."""
    pick = random.Random(hashed("city passage", city.id))
    name, half = city.name, "north" if city.latitude >= 0 else "south"
    opening = pick.choice(
        [
            f"{name} is a city in {country.name}.",
            f"{name} is a town of {country.name}.",
            f"{name} is a populated place in {country.name}.",
            f"The city of {name} belongs to {country.name}.",
        ]
    )
    people = pick.choice(
        [
            f"It has {city.population:,} inhabitants.",
            f"About {city.population:,} people live here.",
            f"The population is {city.population:,}.",
        ]
    )
    clocks = pick.choice(
        [
            f"Its time zone is {city.time_zone}.",
            f"Clocks follow {city.time_zone}.",
            f"The local time is that of {city.time_zone}.",
        ]
    )
    place = pick.choice(
        [
            f"It lies about {abs(city.latitude):.0f} degrees {half} of the equator.",
            f"The latitude is {abs(city.latitude):.0f} degrees {half}.",
        ]
    )
    sentences = [people, clocks, place]
    pick.shuffle(sentences)
    passage = Passage(id=city_id(city), title=name, text=" ".join([opening, *sentences]))
    return FactPassage(passage, {"country": opening, "population": people, "time_zone": clocks})
