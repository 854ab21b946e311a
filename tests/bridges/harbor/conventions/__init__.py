"""Task folders by others' conventions, made to be run."""
