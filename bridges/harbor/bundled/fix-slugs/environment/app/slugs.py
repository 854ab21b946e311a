"""Names for URLs, made from titles."""

import re


def slug(title, limit=40):
    """Return a title as a name of small letters a-z, digits and single dashes.

    Accents are dropped ("Café" becomes "cafe"), "ß" becomes "ss", "&" becomes "and"; all else that is
    no letter or digit separates words. It is cut to at most ``limit`` characters, after a whole word
    if the first word fits. No dash stands at an end. A title without letters and digits gives
    "untitled".
    """
    text = re.sub("[^a-z0-9]", "-", title.lower())
    return text[:limit]


def unique(title, taken):
    """Return the slug of a title, with "-2", "-3", ... if it is in the set ``taken``, and add it.

    With the number, too, it has at most 40 characters.
    """
    name = slug(title)
    number = 1
    while name in taken:
        number += 1
        name = name + "-" + str(number)
    return name
