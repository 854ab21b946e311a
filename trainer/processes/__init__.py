"""The processes of a run: launching them, the devices they see, their terminals."""
