"""One process per engine, each in its own virtual environment, all driven alike."""
