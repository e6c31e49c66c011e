"""The commands of the first hour with own events: guess a schema, train on a file, predict a file."""
