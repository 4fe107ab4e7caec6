"""Stores and servers that lie, fail, record or stand behind a network, and raw access to what a store holds."""
