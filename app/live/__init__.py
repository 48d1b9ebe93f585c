"""The live process: sockets, streams and which connection follows which board."""
