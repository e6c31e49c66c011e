"""Tests of the commands of the first hour."""
