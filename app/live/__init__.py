"""The live process: sockets, streams and who follows which board."""
